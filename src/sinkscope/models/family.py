"""What a family of checkpoints is: how config.json, keys, tokenizer, positions and decoder become a Model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, nn

from sinkscope.errors import TokenizerError

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

    from sinkscope.models.base import Model
    from sinkscope.settings.decode import Decode

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")


class Family:
    """One kind of checkpoint. Subclass, override what differs, and hand an instance to `register`."""

    name: ClassVar[str]
    shift: ClassVar[bool] = False
    causal: ClassVar[bool] = False
    mask_token: ClassVar[str | None] = None  # text of the mask token, where config.json and tokenizer do not name it
    end_of_turn: ClassVar[str | None] = None  # text of the token that closes a chat turn
    key_mapping: ClassVar[dict[str, str]] = {}  # regular expression of a stored key → native key

    def knows(self, config: dict[str, Any], folder: Path) -> bool:
        """Whether this family wrote that config.json (never decided by the folder's name)."""
        raise TypeError(f"{type(self).__name__} must say which config.json files it knows")

    def native_config(self, config: dict[str, Any]) -> PretrainedConfig:
        """The native transformers configuration with every size taken from the checkpoint's config.json."""
        raise TypeError(f"{type(self).__name__} must translate config.json")

    def adapt(self, module: nn.Module, config: dict[str, Any]) -> None:
        """Last changes to the loaded module, for what the native class does differently."""

    def load_tokenizer(self, folder: Path) -> PreTrainedTokenizerBase:
        from transformers import AutoTokenizer

        # Without the argument transformers asks on stdin whether to run the code in `auto_map`.
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
        return tokenizer

    def mask_id(self, config: dict[str, Any], tokenizer: PreTrainedTokenizerBase | None) -> int | None:
        """Id of the mask token from config.json, else from the tokenizer, else an error; None for causal families."""
        if self.causal:
            return None
        if config.get("mask_token_id") is not None:
            return int(config["mask_token_id"])
        if tokenizer is not None:
            if tokenizer.mask_token_id is not None:
                return int(tokenizer.mask_token_id)
            if self.mask_token is not None and self.mask_token in tokenizer.get_vocab():
                return int(tokenizer.get_vocab()[self.mask_token])
        raise TokenizerError(
            "Expected a mask token, as mask_token_id in config.json or as the tokenizer's mask_token, and found "
            "neither; a diffusion model cannot start without one."
        )

    def encode(self, tokenizer: PreTrainedTokenizerBase, text: str, chat: bool) -> Tensor:
        if not chat:
            plain: Tensor = tokenizer(text, return_tensors="pt")["input_ids"]
            return plain
        rendered = tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
        )
        # The template writes its own begin token: special tokens must not be added a second time.
        ids: Tensor = tokenizer(rendered, return_tensors="pt", add_special_tokens=False)["input_ids"]
        return ids

    def positions(self, attention_mask: Tensor | None) -> Tensor | None:
        """Position ids [batch, position] of a padded batch; None counts from the first column, padding included."""
        return None

    def head(self, module: Any, hidden: Tensor) -> Tensor:
        """hidden [n, width] → logits [n, vocab]; override where logits are scaled or capped after the head."""
        logits: Tensor = module.get_output_embeddings()(hidden)
        return logits

    def nameless_from(self, model: Model) -> int | None:
        return None

    def defaults(self, model: Model) -> Decode:
        raise TypeError(f"{type(self).__name__} must give default decode settings")


def has_tokenizer(folder: Path) -> bool:
    return any((folder / name).is_file() for name in TOKENIZER_FILES)
