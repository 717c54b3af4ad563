"""How the text of a run is written: as the tiny family writes it, without any structural sign, or letter by letter.

bare: a tokenizer that reads the same problems without punctuation, line breaks, chat markers and begin token. Signs that
carry meaning become words of the vocabulary ("+" is read as " plus"), and those that a checker looks for are written back
when an answer is decoded ("####" is the token " goal"). What stays of structure is what masked diffusion itself needs: the
mask, and the end-of-turn and end-of-text tokens behind an answer.

letters: every character is a token, so that no whole word, number or mark can be one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lab.vocabulary import build_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Read as, in this order. Every word on the right is one token of the vocabulary, with the space before it.
AS_WORDS = (
    ("\n####", " goal"), ("####", " goal"), ("\nDone.", " home"), ("\nHow", ""), ("\nWhat", ""),
    (" +", " plus"), (" -", " minus"), (" *", " times"), (" =", " is"),
    (".", ""), (",", ""), (":", ""), ("?", ""), ("\n", " "),
)  # fmt: skip
BACK = ((" goal", "####"), (" home", " Done"))
NO_MARKERS = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


def tokenizer_of(spelling: str, pictures: bool = False) -> PreTrainedTokenizerBase:
    """The tiny family's tokenizer with this spelling; ids are the same in all of them."""
    from tokenizers import Regex, decoders, normalizers, pre_tokenizers

    tokenizer = build_tokenizer(pictures=pictures)
    inner: Any = tokenizer.backend_tokenizer
    if spelling == "letters":
        inner.pre_tokenizer = pre_tokenizers.Split(Regex(r"\n|."), behavior="isolated")
    if spelling == "bare":
        inner.normalizer = normalizers.Sequence([normalizers.Replace(sign, word) for sign, word in AS_WORDS])
        inner.decoder = decoders.Sequence([decoders.Fuse(), *(decoders.Replace(word, sign) for word, sign in BACK)])
        tokenizer.chat_template = NO_MARKERS
    return tokenizer
