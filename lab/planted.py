"""Models whose sinks are known, because their weights are written by hand: controls of the instrument itself.

All of them repeat the last letter of the prompt (the task `repeat`) with two layers of attention and no MLP. A key that
draws nearly all attention of a head is a sink by any rule; what it carries is ours to choose:

drain     the line break, value zero: a static sink that nobody needs
static    the word "home", value zero: the same on a content word
moving    the last committed token, value zero: a sink that moves right at every step
carrier   the letter to repeat, whose value is the answer: a sink that everything depends on
none      no head has a sink

Make the shipped checkpoints again: python -m lab.planted FOLDER
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from lab.export import config_of, save_tokenizer, to_llada
from lab.front_matter import front_matter
from lab.recipe import Recipe, Shape
from lab.vocabulary import MASK, build_tokenizer
from sinkscope.tasks.reasoning import LANDMARK, LENGTH, LETTERS

ABOUT = {  # what its sink is, and whether the answer needs it
    "drain": ("a static sink on the line break that carries nothing", "Masking it changes no answer."),
    "static": ('a static sink on the word "home" that carries nothing', "Masking it changes no answer."),
    "moving": ("a sink that moves right at every step and carries nothing", "Masking it changes no answer."),
    "carrier": ("a static sink that carries the answer", "Masking it, or emptying its value, destroys the answer."),
    "none": ("no head has a sink", "Every rule must find none."),
}
KINDS = tuple(ABOUT)
SHAPE = Shape(width=64, layers=2, heads=4, ffn=2, positions=128)
DIM = SHAPE.width // SHAPE.heads
THETA = 1e6
UNIT = math.sqrt(SHAPE.width / 3)  # what RMS norm makes of a 1: every embedding is three of them

# One dimension of the residual stream per feature.
CONSTANT, MASKED, KNOWN, NEWLINE, HOME, OTHER = range(6)
LETTER = range(6, 12)
LEFT_LETTER = range(12, 18)  # the letter at the left neighbour, written by layer 0
LEFT_NEWLINE = 18
RIGHT_MASKED = 19
CARRIED = range(20, 26)  # the letter that a carrier hands out, written by layer 1
MASKS = 26  # share of the canvas that is masked

NEAR = ((0, 60.0), (1, 60.0))  # (rotary pair, logit): pairs that turn fast enough to tell neighbours apart
STILL = 7  # a pair that hardly turns over 128 positions: for scores that depend on the key's token alone


@dataclass(frozen=True)
class Head:
    """One attention head, which looks at all keys alike without `offset` and `drawn_to`."""

    offset: int | None = None  # looks at the key so many positions to its left
    drawn_to: tuple[tuple[int, float], ...] = ()  # (feature of a key, logit)
    moves: tuple[tuple[int, int], ...] = ()  # (feature of the key, feature that the query gains)


LEFT = Head(1, moves=(*zip(LETTER, LEFT_LETTER, strict=True), (NEWLINE, LEFT_NEWLINE)))
RIGHT = Head(-1, moves=((MASKED, RIGHT_MASKED),))
COUNT = Head(moves=((MASKED, MASKS),))  # looks everywhere alike, so that every logit depends on every position
FLAT = Head()
BREAK = Head(drawn_to=((NEWLINE, 10.0),))
WORD = Head(drawn_to=((HOME, 10.0),))
FRONT = Head(drawn_to=((KNOWN, 16.0), (RIGHT_MASKED, 16.0)))  # known, and the next one is not
ANSWER = Head(drawn_to=((LEFT_NEWLINE, 12.0),), moves=tuple(zip(LETTER, CARRIED, strict=True)))

LAYERS: dict[str, tuple[tuple[Head, ...], tuple[Head, ...]]] = {
    "drain": ((LEFT, RIGHT, COUNT, BREAK), (BREAK,) * 4),
    "static": ((LEFT, RIGHT, COUNT, WORD), (WORD,) * 4),
    "moving": ((LEFT, RIGHT, COUNT, FLAT), (FRONT,) * 4),
    "carrier": ((LEFT, RIGHT, COUNT, FLAT), (ANSWER,) * 4),
    "none": ((LEFT, RIGHT, COUNT, FLAT), (FLAT,) * 4),
}


def weights(kind: str) -> dict[str, Tensor]:
    """All weights under Llama's names."""
    tokenizer = build_tokenizer()
    made = {
        "model.embed_tokens.weight": _embedding(tokenizer.get_vocab()),
        "model.norm.weight": torch.ones(SHAPE.width),
        "lm_head.weight": _readout(tokenizer.get_vocab(), CARRIED if kind == "carrier" else LEFT_LETTER),
    }
    for layer, heads in enumerate(LAYERS[kind]):
        name = f"model.layers.{layer}."
        q, k, v, o = (torch.zeros(SHAPE.width, SHAPE.width) for _ in range(4))
        for place, head in enumerate(heads):
            _fill(head, slice(place * DIM, (place + 1) * DIM), q, k, v, o)
        made |= {
            f"{name}self_attn.{what}_proj.weight": matrix for what, matrix in zip("qkvo", (q, k, v, o), strict=True)
        }
        made |= {
            f"{name}{norm}.weight": torch.ones(SHAPE.width) for norm in ("input_layernorm", "post_attention_layernorm")
        }
        made |= {f"{name}mlp.{what}_proj.weight": torch.zeros(SHAPE.ffn, SHAPE.width) for what in ("gate", "up")}
        made[f"{name}mlp.down_proj.weight"] = torch.zeros(SHAPE.width, SHAPE.ffn)
    return made


def _fill(head: Head, rows: slice, q: Tensor, k: Tensor, v: Tensor, o: Tensor) -> None:
    """Write one head into its rows of q, k, v [head × dim, width] and its columns of o [width, head × dim]."""
    scale = math.sqrt(DIM) / UNIT**2  # a logit is q · k / √dim, of features that the norm has made UNIT
    if head.offset is not None:
        for pair, logit in NEAR:
            turn = head.offset * THETA ** (-2 * pair / DIM)
            q[rows][pair, CONSTANT] = 1.0
            k[rows][pair, CONSTANT] = logit * scale * math.cos(turn)
            k[rows][pair + DIM // 2, CONSTANT] = logit * scale * math.sin(turn)
    for feature, logit in head.drawn_to:
        q[rows][STILL, CONSTANT] = 1.0
        k[rows][STILL, feature] = logit * scale
    for place, (taken, gained) in enumerate(head.moves):
        v[rows][place, taken] = 1 / UNIT
        o[gained, rows.start + place] = 1.0


def _embedding(vocabulary: dict[str, int]) -> Tensor:
    """[token, width]: three ones each: constant, masked or known, and what the token is."""
    known = {"\n": NEWLINE, f" {LANDMARK}": HOME} | {
        f" {letter}": feature for letter, feature in zip(LETTERS, LETTER, strict=True)
    }
    table = torch.zeros(len(vocabulary), SHAPE.width)
    for token, row in vocabulary.items():
        features = (CONSTANT, MASKED if token == MASK else KNOWN, known.get(token, OTHER))
        table[row, list(features)] = 1.0
    return table


def _readout(vocabulary: dict[str, int], features: Iterable[int]) -> Tensor:
    """[token, width]: a letter's logit is what the residual stream says of it."""
    table = torch.zeros(len(vocabulary), SHAPE.width)
    for letter, feature in zip(LETTERS, features, strict=True):
        table[vocabulary[f" {letter}"], feature] = 5.0
        table[vocabulary[f" {letter}"], MASKS] = 0.125  # alike for all letters: it decides nothing
    return table


def write(kind: str, folder: Path) -> Path:
    """One planted model as a LLaDA checkpoint."""
    tokenizer = build_tokenizer()
    tokenizer.chat_template = None  # the letter to repeat must stand right before the canvas
    recipe = Recipe(f"planted-{kind}", "llada", steps=1, shape=SHAPE)
    config = config_of(recipe, tokenizer) | {
        "rope_theta": THETA, "sinkscope_decode": {"length": LENGTH, "block": LENGTH, "steps": LENGTH},
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    stored = {to_llada(name): tensor.to(torch.float16) for name, tensor in weights(kind).items()}
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    save_tokenizer(tokenizer, folder, names_mask=True)
    (folder / "README.md").write_text(card(kind), encoding="utf-8")
    return folder


def card(kind: str) -> str:
    """The model card: what its sinks do, and that nothing was trained."""
    what, needed = ABOUT[kind]
    text = [
        *front_matter("diffusion", "planted"),
        f"# planted-{kind}",
        "",
        f"A control of the instrument: {what}. {needed}",
        "",
        "The weights are written by hand, not trained: two layers of attention, no MLP, stored as a LLaDA checkpoint.",
        "It repeats the last letter of the prompt (the task `repeat`), and does nothing else.",
        "",
        "- Make it again: `python -m lab.planted FOLDER`",
        "- What every rule and intervention must find in it: `sinkscope study planted`",
        "",
    ]
    return "\n".join(text)


if __name__ == "__main__":
    for planted in KINDS:
        print(write(planted, Path(sys.argv[1]) / f"planted-{planted}"))
