"""Small calls and masks: another tree and this one in one process, in turns; lab/results/small-calls.md.

    python benchmarks/small_calls.py OLD [--rounds 9] [--repeats 3] [--only tiny ar call mask model row page] [--write]

OLD is a folder with another tree's src. Time is processor time on one thread. A ratio is of the fastest of the rounds on each
side, since other work on the machine only adds; the range is over the repeats.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from attention import machine

RESULTS = Path(__file__).parents[1] / "lab" / "results" / "small-calls.md"
PROMPT = "Tom has 3 apples. Then Tom finds 4.\nHow many apples are left?"
LENGTH, BLOCK, RULE = 24, 8, 0.3
Run = Callable[[], object]


class Tree:
    """One tree's modules, which are put in place of another's while it runs."""

    at_work: Tree | None = None

    def __init__(self, folder: Path) -> None:
        self.modules: dict[str, Any] = {}
        self.activate()
        sys.path.insert(0, str(folder / "src"))
        for name in ("", ".attention.attend", ".decoding", ".report.live", ".tracing.record"):
            importlib.import_module(f"sinkscope{name}")
        sys.path.remove(str(folder / "src"))
        self.sk = sys.modules["sinkscope"]
        if not str(self.sk.__file__).startswith(str(folder)):
            raise SystemExit(f"{folder} was not imported")

    def activate(self) -> None:
        if Tree.at_work is self:
            return
        own = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "sinkscope"}
        if Tree.at_work is not None:
            Tree.at_work.modules = own
        sys.modules.update(self.modules)
        Tree.at_work = self

    def part(self, name: str) -> Any:
        self.activate()
        return importlib.import_module(f"sinkscope.{name}")


def sampler(model: Any, ids: Tensor) -> Run:
    """The published sampler on the native class: logits and confidences of the whole canvas, at every step."""

    @torch.inference_mode()
    def run() -> Tensor:
        canvas = torch.cat([ids, torch.full((1, LENGTH), model.mask_id)], 1)
        for start in range(ids.shape[1], canvas.shape[1], BLOCK):
            for _ in range(BLOCK):
                masked = canvas == model.mask_id
                logits = model.module(canvas, is_causal=False, use_cache=False).logits
                chosen = logits.argmax(-1)
                sure = logits.softmax(-1).gather(-1, chosen.unsqueeze(-1)).squeeze(-1)
                sure[:, start + BLOCK :] = -torch.inf
                place = torch.where(masked, sure, -torch.inf)[0].topk(1).indices
                canvas[0, place] = torch.where(masked, chosen, canvas)[0, place]
        return canvas

    return run


def decodes(tree: Tree, name: str, dtype: str = "float32") -> dict[str, Run]:
    """A decode that nobody watches, one that is traced, and the sampler without us where the model is no autoregressive one."""
    tree.activate()
    sk, model = tree.sk, tree.sk.load(name, dtype=dtype)
    ids = model.batch(PROMPT, None)[0]
    settings = replace(model.defaults, length=LENGTH, stop="never")
    if not model.causal:
        settings = sk.Decode.llada(length=LENGTH, block=BLOCK, steps=LENGTH)
    found: dict[str, Run] = {
        "untraced": lambda: sk.decode(model, ids, settings, history=False),
        "traced": lambda: sk.trace(model, ids, settings),
    }
    return found if model.causal else {**found, "floor": sampler(model, ids)}


def calls(tree: Tree, shape: tuple[int, ...]) -> dict[str, Run]:
    """One call, a hundred times."""
    attend = tree.part("attention.attend").attend
    q, k, v = (torch.randn(shape).transpose(1, 2) for _ in range(3))
    labels = torch.randint(0, 3, (shape[1],))
    return {
        "sdpa": lambda: [scaled_dot_product_attention(q, k, v) for _ in range(100)],
        "attend": lambda: [attend(q, k, v, groups=labels, group_count=3) for _ in range(100)],
    }


def masks(tree: Tree, length: int) -> dict[str, Run]:
    """The call of a layer with and without its top key dropped, and the ranking of twelve such layers."""
    attend, top = tree.part("attention.attend").attend, tree.part("interventions.base").top
    q, k, v = (torch.randn(1, length, 4, 64).transpose(1, 2) for _ in range(3))
    words: dict[str, Any] = {"groups": torch.randint(0, 3, (length,)), "group_count": 3}
    drop = (torch.arange(length) == 1).expand(1, 4, -1)
    scores = torch.rand(12, 1, 12, length)
    return {
        "traced": lambda: attend(q, k, v, **words),
        "masked": lambda: attend(q, k, v, **words, drop_keys=drop, clean=True),
        "ranking": lambda: top(scores, 1),
    }


def single_queries(tree: Tree, rows: int) -> dict[str, Run]:
    """A padded batch of SmolLM2's shape in bfloat16 behind a cache: a step of a small model of two layers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tree.activate()
    sk = tree.sk
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=576, intermediate_size=64, num_hidden_layers=2, num_attention_heads=9,
        num_key_value_heads=3, max_position_embeddings=2048, bos_token_id=0, eos_token_id=1, pad_token_id=2,
    )  # fmt: skip
    module = LlamaForCausalLM(config).eval().to(torch.bfloat16)
    model = sk.wrap(module, None, family="llama")
    ids, mask = torch.randint(3, 64, (rows, 400)), torch.ones(rows, 400, dtype=torch.int64)
    mask[0, :9] = 0
    settings = sk.Decode.autoregressive(length=32, stop="never")
    short = sk.Decode.autoregressive(length=1, stop="never")
    return {
        "32 tokens": lambda: sk.decode(model, ids, settings, attention_mask=mask, history=False),
        "1 token": lambda: sk.decode(model, ids, short, attention_mask=mask, history=False),
    }


def masked_decodes(tree: Tree, canvas: int) -> dict[str, Run]:
    """Four layers of a model of 98 M parameters: a traced decode of four steps, and one with each head's top key masked."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tree.activate()
    sk = tree.sk
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=16000, hidden_size=768, intermediate_size=2048, num_hidden_layers=4, num_attention_heads=12,
        max_position_embeddings=2048, tie_word_embeddings=True, bos_token_id=0, eos_token_id=1, pad_token_id=2,
    )  # fmt: skip
    module = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for layer in module.model.layers:
            layer.self_attn.q_proj.weight.mul_(30)  # attention of random weights is almost even
    model = sk.wrap(module, None, family="llada", mask_id=15999)
    ids = torch.randint(3, 15999, (1, canvas - 16), generator=torch.Generator().manual_seed(1))
    settings = sk.Decode.llada(length=16, block=16, steps=4)

    def masked() -> None:
        with sk.intervene(model, sk.MaskSinks(k=1)):
            sk.decode(model, ids, settings, history=False)

    return {"traced": lambda: sk.trace(model, ids, settings), "masked": masked}


def pages(tree: Tree, name: str) -> dict[str, Run]:
    """What the live page runs for a decode, with its events made and written as JSON; and `generate`."""
    live = tree.part("report.live")
    words = {"length": LENGTH} if name.startswith("tiny") else {"length": 16, "steps": 16}
    page = live.Live.__new__(live.Live)
    page.names, page.models, page.recordings, page.decodes = [name], {0: tree.sk.load(name)}, {}, 0
    asked, rule, stop = live.Asked(0, PROMPT, words), tree.sk.HeadShare(RULE), threading.Event()
    return {
        "generate": lambda: page.models[0].generate(PROMPT, **words),
        "page": lambda: page._decode(asked, None, rule, json.dumps, stop),
    }


# Name → what is timed, the two sides of the ratio, and what makes them for a tree.
CASES: dict[str, list[tuple[str, str, str, Callable[[Tree], dict[str, Run]]]]] = {
    "tiny": [
        ("tiny-llada, untraced over the published sampler", "untraced", "floor", lambda tree: decodes(tree, "tiny-llada")),
        ("tiny-llada in bfloat16, untraced over the sampler", "untraced", "floor",
         lambda tree: decodes(tree, "tiny-llada", "bfloat16")),
        ("tiny-llada, traced over untraced", "traced", "untraced", lambda tree: decodes(tree, "tiny-llada")),
    ],
    "ar": [
        ("tiny-llama, traced over untraced", "traced", "untraced", lambda tree: decodes(tree, "tiny-llama")),
        ("smol-llama, traced over untraced", "traced", "untraced", lambda tree: decodes(tree, "smol-llama")),
    ],
    "call": [("attend [1, 4, 53, 32] over SDPA", "attend", "sdpa", lambda tree: calls(tree, (1, 53, 4, 32)))],
    "mask": [
        ("one key dropped, S = 512, over none", "masked", "traced", lambda tree: masks(tree, 512)),
        ("one key dropped, S = 1024, over none", "masked", "traced", lambda tree: masks(tree, 1024)),
        ("ranking of 144 heads, S = 1024, over one call of 4", "ranking", "traced", lambda tree: masks(tree, 1024)),
    ],
    "model": [
        ("decode of 512 positions, top key masked, over traced", "masked", "traced", lambda tree: masked_decodes(tree, 512)),
        ("decode of 1024 positions, top key masked, over traced", "masked", "traced",
         lambda tree: masked_decodes(tree, 1024)),
    ],
    "row": [("32 tokens over 1, 16 padded rows in bfloat16", "32 tokens", "1 token", lambda tree: single_queries(tree, 16))],
    "page": [
        ("page over generate, tiny-llada", "page", "generate", lambda tree: pages(tree, "tiny-llada")),
        ("page over generate, smol-dream", "page", "generate", lambda tree: pages(tree, "smol-dream")),
    ],
}  # fmt: skip


def fastest(sides: dict[tuple[str, str], tuple[Tree, Run]], rounds: int) -> dict[tuple[str, str], float]:
    """Seconds of the fastest round of each side; they take turns, and each is the first as often."""
    best = dict.fromkeys(sides, float("inf"))
    for turn in range(rounds + 1):
        for key in list(sides) if turn % 2 else reversed(sides):
            tree, run = sides[key]
            tree.activate()
            started = time.process_time()
            run()
            if turn:  # the first is for warming up
                best[key] = min(best[key], time.process_time() - started)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--write", action="store_true", help=f"add to {RESULTS.name}")
    given = parser.parse_args()
    torch.set_num_threads(1)
    trees = {"before": Tree(given.old.resolve()), "after": Tree(Path(__file__).resolve().parents[1])}
    head = f"`{' '.join(['python', 'benchmarks/small_calls.py', 'OLD', *sys.argv[2:]])}` on {machine()}."
    before = RESULTS.read_text(encoding="utf-8") if RESULTS.exists() else "# Small calls, masks and the live page\n"
    lines = ["| what | before: ms | ratio (from, to) | after: ms | ratio (from, to) |", "|---|---|---|---|---|"]
    for what, over, under, make in [case for name in given.only for case in CASES[name]]:
        sides = {}
        for when, tree in trees.items():
            made = make(tree)
            sides |= {(when, side): (tree, made[side]) for side in (over, under)}
        ratios: dict[str, list[float]] = {when: [] for when in trees}
        with torch.inference_mode():
            for _ in range(given.repeats):
                best = fastest(sides, given.rounds)
                for when, found in ratios.items():
                    found.append(best[when, over] / best[when, under])
        cells = [what]
        for when, found in ratios.items():
            low, middle, high = min(found), sorted(found)[len(found) // 2], max(found)
            cells += [f"{1000 * best[when, over]:.3g}", f"{middle:.3f} ({low:.3f}, {high:.3f})"]
        lines.append(f"| {' | '.join(cells)} |")
        print(lines[-1], flush=True)
        if given.write:  # after each case: the next may take minutes
            RESULTS.write_text("\n".join([before, head, "", *lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
