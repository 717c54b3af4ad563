"""What a token is: the text to show and one of a few kinds, decided from the tokenizer.

Kinds: mask, begin, end, template, special, newline, word, digit, punctuation, space, unknown. A role decides first
(mask; chat markers such as <|im_start|> are `template`; whatever ends a text or a turn is `end`; whatever begins a text
is `begin`; other markers are `special`). Everything else is decided by its characters. A token can mix them (".⏎⏎" is
one token of Dream's), so there is an order. A line break anywhere makes it a `newline`, else a letter makes it a
`word` (piece), else a digit a `digit`, else a visible sign `punctuation`, else it is `space`. So " world" is a word,
"3." a digit, " =" punctuation.

One thing only the place of a token tells. The name of a role between chat markers ("user" in <|start_header_id|>user
<|end_header_id|>) is part of the template, and a word anywhere else. `kinds_in_context` decides that.
"""

import json
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

KINDS = ("mask", "begin", "end", "template", "special", "newline", "word", "digit", "punctuation", "space", "unknown")
STRUCTURAL = ("mask", "begin", "end", "template", "newline", "punctuation", "space")
CONTENT = tuple(kind for kind in KINDS if kind not in STRUCTURAL)
# Names that say their role themselves. They are needed because a tokenizer's own roles are incomplete (LLaDA's names no
# mask token) or misleading (SmolLM2 calls <|im_start|> its begin token).
MASK_NAMES = frozenset({"<|mdm_mask|>", "<|mask|>", "[MASK]", "<mask>", "<|mask_token|>"})
TEMPLATE_NAMES = re.compile(
    r"im_start|im_sep|(start|end)_header|start_of_turn|role_(start|end)|^\[/?INST\]$|^\[/?SYS", re.I
)
END_NAMES = re.compile(r"im_end|eot|eom|end_?of_?(turn|text|sentence|message)|^</s>$|^<eos>$", re.I)
BEGIN_NAMES = re.compile(r"(start|begin)_?of_?(text|sentence)|^<s>$|^<bos>$", re.I)
ROLE_FOLLOWS = re.compile(r"im_start|start_header|start_of_turn|role_start|^<role>$", re.I)
ROLE_KIND = "template"
UNKNOWN = ("", "unknown")
LONGEST_ROLE = 4  # tokens; a small vocabulary may split "assistant"
MARKER = re.compile(r"^(<[^\s<>]+>|\[[^\s\[\]]+\])$")
BYTE = re.compile(r"^<0x([0-9A-Fa-f]{2})>$")


def describe(
    tokenizer: "PreTrainedTokenizerBase | None", ids: Iterable[int], mask_id: int | None = None
) -> dict[int, tuple[str, str]]:
    """Text to show and kind of each id: {198: ("⏎", "newline"), …}; without a tokenizer only the mask is known.

    Line breaks show as ⏎, tabs as ⇥, and a token of nothing but spaces as ␣, so that tables stay whole.
    """
    known, found = None if tokenizer is None else _Tokens(tokenizer, mask_id), {}
    for i in sorted({int(i) for i in ids}):
        piece = None if known is None else known.piece(i)
        if known is None or piece is None:  # a row of the embedding that no token belongs to
            found[i] = (f"#{i}", "mask" if i == mask_id else "unknown")
            continue
        role = known.role(i, piece)
        text = piece if role else known.text(i, piece)
        found[i] = (shown(text), role or kind_of_text(text))
    return found


def kinds_named(kinds: str | Sequence[str]) -> tuple[str, ...]:
    """ "structural", "content", or a list of kinds, as kinds; empty where a name is not known."""
    if isinstance(kinds, str):
        return {"structural": STRUCTURAL, "content": CONTENT}.get(kinds, ())
    return tuple(kinds) if all(kind in KINDS for kind in kinds) else ()


def kinds_in_context(ids: Sequence[int], vocabulary: Mapping[int, tuple[str, str]]) -> list[str]:
    """The kind of every token of a sequence; names of roles between chat markers are `template`.

    vocabulary: what `describe` says of each id.
    """
    roles = role_names(np.array([ids], dtype=np.int64), vocabulary)[0]
    return [ROLE_KIND if role else vocabulary.get(i, UNKNOWN)[1] for i, role in zip(ids, roles, strict=True)]


def role_names(canvas: npt.NDArray[np.int64], vocabulary: Mapping[int, tuple[str, str]]) -> npt.NDArray[np.bool_]:
    """canvas [step, position] → whether the name of a role stands there.

    A role stands behind a marker that begins a turn's header, is at most four tokens long, and ends with another marker or a
    line break.
    """
    found = np.zeros(canvas.shape, dtype=np.bool_)
    opens = [i for i, (text, kind) in vocabulary.items() if kind == "template" and ROLE_FOLLOWS.search(text)]
    for step, start in np.argwhere(np.isin(canvas, opens)):
        behind = [vocabulary.get(i, UNKNOWN)[1] for i in canvas[step, start + 1 : start + LONGEST_ROLE + 2].tolist()]
        stop = next((place for place, kind in enumerate(behind) if kind in ("template", "newline")), 0)
        if all(kind in ("word", "digit", "punctuation") for kind in behind[:stop]):
            found[step, start + 1 : start + 1 + stop] = True
    return found


class KindsOf:
    """The kinds of the tokens on a canvas, as indices into KINDS; ids that were looked up once are remembered."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase | None", mask_id: int | None = None) -> None:
        self.tokenizer, self.mask_id = tokenizer, mask_id
        self.vocabulary: dict[int, tuple[str, str]] = {}

    def __call__(self, ids: "Tensor") -> "Tensor":
        """ids [batch, position] → kinds [batch, position]."""
        rows = ids.tolist()
        if new := {i for row in rows for i in row} - self.vocabulary.keys():
            self.vocabulary |= describe(self.tokenizer, new, self.mask_id)
        return ids.new_tensor([[KINDS.index(kind) for kind in kinds_in_context(row, self.vocabulary)] for row in rows])


def kind_of_text(text: str) -> str:
    """The kind of a token by its characters, the first in the stated order that occurs."""
    inside = set(map(_kind_of_character, text))
    return next((kind for kind in ("newline", "word", "digit", "punctuation") if kind in inside), "space")


def _kind_of_character(character: str) -> str:
    if character in "\n\r\v\f\x85\u2028\u2029":
        return "newline"
    if character == "\N{REPLACEMENT CHARACTER}":  # part of a character that is spread over several tokens
        return "word"
    category = unicodedata.category(character)
    by_category = {"L": "word", "M": "word", "N": "digit", "P": "punctuation", "S": "punctuation"}
    return by_category.get(category[0], "space")  # separators, and what cannot be seen


def shown(text: str) -> str:
    """A text as tables show it: one line, with white space that can be seen where there is nothing else."""
    if text and not text.strip(" "):
        return "␣" * len(text)
    signs = {"\n": "⏎", "\t": "⇥", "\r": "␍"}
    return "".join(signs.get(c, c if c.isprintable() else f"\\u{ord(c):04x}") for c in text)


class _Tokens:
    """What a tokenizer says of its tokens: how they are spelled, and which have a role beside their text."""

    def __init__(self, tokenizer: Any, mask_id: int | None) -> None:
        self.tokenizer, self.scheme = tokenizer, _scheme(tokenizer)
        self.mask = {mask_id, getattr(tokenizer, "mask_token_id", None)} - {None}
        self.end = {getattr(tokenizer, f"{role}_token_id", None) for role in ("eos", "sep")} - {None}
        self.begin = {getattr(tokenizer, f"{role}_token_id", None) for role in ("bos", "cls")} - {None}
        self.added = getattr(tokenizer, "added_tokens_decoder", {})
        special = (i for i, token in self.added.items() if token.special)
        self.special = {*getattr(tokenizer, "all_special_ids", ()), *special}
        template = getattr(tokenizer, "chat_template", None)
        self.template = template if isinstance(template, str) else json.dumps(template or "")

    def piece(self, i: int) -> str | None:
        """The entry of the vocabulary as it is written there."""
        try:
            piece = self.tokenizer.convert_ids_to_tokens(i)
        except (IndexError, KeyError, OverflowError, ValueError):
            return None
        return piece if isinstance(piece, str) else None

    def role(self, i: int, piece: str) -> str | None:
        """The role of a token, None if it is plain text."""
        marker = i in self.special or (i in self.added and bool(MARKER.match(piece)))
        if i in self.mask or (marker and not self.mask and piece in MASK_NAMES):
            return "mask"
        if marker and TEMPLATE_NAMES.search(piece):
            return "template"
        if i in self.end or (marker and END_NAMES.search(piece)):
            return "end"
        if i in self.begin or (marker and BEGIN_NAMES.search(piece)):
            return "begin"
        if marker:
            return "template" if piece in self.template else "special"
        return None

    def text(self, i: int, piece: str) -> str:
        """The text that an entry stands for; added tokens are written plainly in every scheme."""
        if i in self.added:
            return piece
        if self.scheme == "bytes":
            return str(self.tokenizer.convert_tokens_to_string([piece]))
        if byte := BYTE.match(piece):
            return bytes.fromhex(byte[1]).decode("utf-8", "replace")
        if self.scheme == "sentencepiece":
            return piece.replace("▁", " ")
        return piece.removeprefix("##") if self.scheme == "wordpiece" and len(piece) > 2 else piece


def _scheme(tokenizer: Any) -> str:
    """How a vocabulary writes text: from the tokenizer's decoder where it has one, else from the spaces of its vocabulary."""
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    if decoder is not None:
        state = decoder.__getstate__().decode()
        signs = {"ByteLevel": "bytes", "▁": "sentencepiece", '"WordPiece"': "wordpiece"}
        return next((scheme for sign, scheme in signs.items() if sign in state), "plain")
    vocabulary = tokenizer.get_vocab()
    if "Ġ" in vocabulary:
        return "bytes"
    if any(piece.startswith("▁") for piece in vocabulary):
        return "sentencepiece"
    return "wordpiece" if any(piece.startswith("##") and len(piece) > 2 for piece in vocabulary) else "plain"
