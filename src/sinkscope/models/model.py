"""A checkpoint that is ready to run: the native transformers module and the facts that its family adds."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import Tensor, nn

from sinkscope.errors import CheckpointError, DecodeError, PromptError, TokenizerError
from sinkscope.files import short
from sinkscope.models.checkpoint import as_checkpoint_error
from sinkscope.models.family import Messages, block_mask, counted

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from sinkscope.decoding import Decode
    from sinkscope.models.family import Family

# One prompt: text, chat messages ({"role": "user", "content": "…"} each), or token ids.
Prompt = str | Messages | Sequence[int] | Tensor


@dataclass
class Model:
    """Loaded model of any family, as returned by `load` and `wrap`.

    Args:
        module: Module of a transformers class, without remote code.
        tokenizer: Tokenizer; None if the checkpoint has none, and then only token ids can be passed as prompts.
        family: Family that the checkpoint belongs to.
        name: Name or path that the model was loaded by.
        mask_id: Token id of the mask token; None for an autoregressive model.
        shift: Whether the logits at position i predict token i + 1.
        causal: Whether the model is autoregressive.
        context: Largest number of positions, prompt and answer together.
        eos_ids: Token ids that end a text.
        pad_id: Token id of padding; None if there is none.
        eot_id: Token id that ends a chat turn; None if there is none.
        fingerprint: Digest of the weights.
        checkpoint_defaults: Decode settings that the checkpoint itself asks for.
        block: Block length of training with block-causal attention; None for full attention.
        mode: Present mode of a checkpoint that decodes in several ways; None if it has one way only.
        revision: Commit of the Hub repository; None for other sources.
        quantization: Format of the packed weights; None for plain numbers.
    """

    module: nn.Module
    tokenizer: PreTrainedTokenizerBase | None
    family: Family
    name: str
    mask_id: int | None
    shift: bool
    causal: bool
    context: int
    eos_ids: tuple[int, ...]
    pad_id: int | None
    eot_id: int | None
    fingerprint: str = ""
    checkpoint_defaults: dict[str, Any] = field(default_factory=dict)
    block: int | None = None
    mode: str | None = None
    revision: str | None = None
    quantization: str | None = None

    def __repr__(self) -> str:
        config = self.config
        size = f"{config.num_hidden_layers} layers × {config.num_attention_heads} heads, vocabulary {self.vocabulary}"
        kind = "autoregressive" if self.causal else "diffusion"
        dtype = str(self.dtype).removeprefix("torch.") + (
            f" ({self.quantization} weights)" if self.quantization else ""
        )
        return f"Model({self.name}, {self.family.name}, {kind}, {size}, {dtype} on {self.device})"

    @property
    def eos_id(self) -> int | None:
        """Token id that ends a text, the first of `eos_ids`; None if there is none."""
        return self.eos_ids[0] if self.eos_ids else None

    @property
    def fill_id(self) -> int:
        """Token id used at ignored positions: padding, else end-of-text, else 0."""
        return next((token for token in (self.pad_id, self.eos_id) if token is not None), 0)

    @property
    def config(self) -> Any:
        """Transformers configuration of the language model (of a multimodal checkpoint: of its text part)."""
        config: Any = self.module.config
        return config.get_text_config() if hasattr(config, "get_text_config") else config

    @property
    def device(self) -> torch.device:
        """Device of the first parameter."""
        return next(self.module.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """Floating-point type of the first parameter."""
        return next(self.module.parameters()).dtype

    @property
    def vocabulary(self) -> int:
        """Number of rows of the output head, which may exceed the tokenizer's vocabulary."""
        return int(self.config.vocab_size)

    @property
    def chat_template(self) -> str | None:
        """Chat template of the tokenizer; None if there is none."""
        template = getattr(self.tokenizer, "chat_template", None)
        return template if isinstance(template, str) else None

    @property
    def valid_vocab_size(self) -> int | None:
        """Number of rows of the output head that stand for tokens, if there are further rows, which must never be
        chosen; else None.
        """
        return self.family.valid_vocab_size(self)

    @property
    def defaults(self) -> Decode:
        """Decode settings of the family's authors, or those that the checkpoint's config.json gives under
        `sinkscope_decode`.
        """
        from sinkscope.decoding import SAMPLERS

        sampler, settings = self.family.defaults(self)
        return SAMPLERS[sampler](**settings).changed(self.checkpoint_defaults)

    def in_mode(self, mode: str) -> Model:
        """Return the same weights in another decoding mode.

        Args:
            mode: "diffusion", "autoregressive" or "self_speculation".

        Raises:
            CheckpointError: If the checkpoint does not decode in this mode.
        """
        if mode not in self.family.modes:
            known = f"one of {', '.join(self.family.modes)}" if self.family.modes else "none: it decodes in one way"
            raise CheckpointError(f"Expected a mode of {self.name} ({known}), got {mode!r}.")
        causal = mode == "autoregressive"
        return replace(self, mode=mode, causal=causal, shift=causal)

    def for_settings(self, settings: Decode) -> Model:
        """Return the model in the mode that decode settings need.

        Args:
            settings: Decode settings.

        Raises:
            DecodeError: If the settings mean something else for this family.
        """
        self.family.check_settings(settings)
        if not self.family.modes:
            return self
        return self if settings.mode == self.mode else self.in_mode(settings.mode)

    def positions(self, attention_mask: Tensor | None) -> Tensor | None:
        """Return position ids of a padded batch in the family's convention; None stands for 0, 1, 2 and so on.

        Args:
            attention_mask: Attention mask [batch, position], 0 at padding; None if nothing is padded.
        """
        return self.family.positions(attention_mask)

    @torch.inference_mode()
    def logits(self, ids: Tensor, attention_mask: Tensor | None = None, block: int | None = None) -> Tensor:
        """Compute the logits of one forward, without a cache.

        Args:
            ids: Token ids [batch, position].
            attention_mask: Attention mask [batch, position], 0 at padding and 1 elsewhere; None if nothing is padded.
            block: Block length of block-causal attention, counted from column 0: a position attends to its own block
                and to earlier blocks. Without it, all positions of a diffusion model attend to each other.

        Returns:
            Logits [batch, position, vocab], as the module gives them. With `shift`, the logits at position i predict
                token i + 1.
        """
        ids = check_ids(ids, self)
        mask = None if attention_mask is None else check_mask(attention_mask, ids)
        mask = None if mask is None or bool(mask.all()) else mask
        real = None if mask is None else mask.bool()
        if block is None:
            if (special := self.family.logits(self, ids, mask)) is not None:
                return special
            visible, positions = self.family.visible(self, ids, real), self.positions(mask)
            visible = mask if visible is None else visible
        else:
            if self.causal or type(block) is not int or block < 1:
                raise PromptError(f"Expected block ≥ 1 for a diffusion model, got {block!r} for {self.name}.")
            visible = block_mask(block, 0, ids.shape[1], real, ids.device)
            positions = None if real is None else counted(real)
        logits: Tensor = self.module(
            ids, attention_mask=visible, position_ids=positions, use_cache=False, **self.direction()
        ).logits
        return logits

    def direction(self) -> dict[str, bool]:
        """Return the keyword arguments that every forward of a bidirectional model needs, because transformers' classes
        are causal.
        """
        return {} if self.causal else {"is_causal": False}

    def encode(self, prompt: Prompt, chat: bool | None = None) -> Tensor:
        """Encode one prompt as token ids [1, position].

        Args:
            prompt: Text, chat messages (mappings with `role` and `content`), or token ids, which are checked and
                returned.
            chat: Whether text is written with the chat template. The default is to do so if the tokenizer has one.
                Messages always are.

        Raises:
            PromptError: If the prompt is empty, malformed, or outside the vocabulary.
        """
        if is_ids(prompt):
            return check_ids(torch.as_tensor(prompt).reshape(1, -1), self).cpu()
        tokenizer, messages = self.require_tokenizer(), is_messages(prompt)
        for text in [one["content"] for one in prompt] if messages else [prompt]:  # type: ignore[index]
            check_text(text, self.family.empty_prompt)
        if prompt == "":
            return torch.empty(1, 0, dtype=torch.int64)
        if messages and self.chat_template is None:
            raise PromptError(f"{self.name} has no chat template to write messages with; pass text or token ids.")
        through = messages or (self.chat_template is not None if chat is None else chat)
        with as_checkpoint_error(f"The tokenizer or chat template of {self.name}"):
            return self.family.encode(tokenizer, prompt, through)  # type: ignore[arg-type]

    def batch(self, prompts: Any, attention_mask: Tensor | None = None) -> tuple[Tensor, Tensor | None, bool]:
        """Encode one prompt or a list of prompts as one left-padded batch.

        Args:
            prompts: One prompt, a list of prompts, or token ids [batch, position].
            attention_mask: Attention mask [batch, position] of token ids, 0 at padding; refused with other prompts.

        Returns:
            Token ids [batch, position], their attention mask (or None), and whether there was one prompt alone.
        """
        if isinstance(prompts, Tensor) and prompts.dim() == 2:
            ids = check_ids(prompts, self)
            return ids, None if attention_mask is None else check_mask(attention_mask, ids), len(prompts) == 1
        if attention_mask is not None:
            raise PromptError("An attention mask goes with ids [batch, position] and no other prompt; leave it out.")
        alone = isinstance(prompts, str) or is_ids(prompts) or is_messages(prompts)
        if not alone and (not isinstance(prompts, list | tuple) or not prompts):
            raise PromptError(
                f"Expected a prompt as text, chat messages or token ids, or a list of them, got {short(repr(prompts))}."
            )
        return *pad([self.encode(one) for one in ([prompts] if alone else prompts)], self), alone

    def decode_text(self, ids: Tensor) -> str:
        """Decode token ids as text up to the first end token, without special tokens.

        Args:
            ids: Token ids [position].
        """
        tokenizer = self.require_tokenizer()
        stops = {*self.eos_ids, self.eot_id}
        kept: list[int] = []
        for token in ids.tolist():
            if token in stops:
                break
            kept.append(token)
        return str(tokenizer.decode(kept, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def require_mask(self) -> int:
        """Return the mask token's id.

        Raises:
            DecodeError: If the model is autoregressive.
        """
        if self.mask_id is None:
            raise DecodeError(f"{self.name} is autoregressive and has no mask token; use Decode.autoregressive.")
        return self.mask_id

    def require_tokenizer(self) -> PreTrainedTokenizerBase:
        """Return the tokenizer.

        Raises:
            TokenizerError: If the model was loaded without one.
        """
        if self.tokenizer is None:
            raise TokenizerError(
                f"{self.name} was loaded without a tokenizer (its folder has no tokenizer files), so text cannot be "
                "read or written; pass token ids, or put tokenizer.json beside config.json."
            )
        return self.tokenizer

    @overload
    def generate(self, text: str | Messages, settings: Decode | None = None, **words: Any) -> str: ...
    @overload
    def generate(self, text: list[str], settings: Decode | None = None, **words: Any) -> list[str]: ...
    @overload
    def generate(self, text: Any, settings: Decode | None = None, **words: Any) -> str | list[str]: ...
    def generate(self, text: Any, settings: Decode | None = None, **words: Any) -> str | list[str]:
        """Generate an answer to one prompt, or to each prompt of a list.

        Args:
            text: Text, chat messages or token ids; or a list of these.
            settings: Decode settings; the default is the model's `defaults`.
            **words: Single decode settings that replace those of `settings` (`length=64`, `steps=32`). Transformers'
                names such as `max_new_tokens` are accepted.

        Returns:
            Text of the answer; a list of texts if `text` is a list.
        """
        from sinkscope import decoding

        if isinstance(text, list | tuple) and not text:
            return []
        ids, mask, alone = self.batch(text)
        chosen = decoding.resolve_settings(settings or self.defaults, self, ids.shape[1], words)
        if settings is not None and not words:
            chosen = settings  # as they are: with words, what these leave open is made to fit
        decoding.refuse_unused(chosen, self, words)
        done = decoding.decode(self, ids, chosen, attention_mask=mask, history=False)
        texts = [self.decode_text(answer) for answer in done.returned]
        return texts[0] if alone else texts

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write a checkpoint folder that `load` and transformers can read.

        Args:
            folder: New or empty folder.

        Returns:
            Path of the folder.
        """
        from sinkscope.models.weights import save

        return save(self, folder)

    def identity(self) -> dict[str, Any]:
        """Return name, fingerprint, dtype and size, which traces and runs record to tie results to the weights."""
        return {
            "name": self.name,
            "family": self.family.name,
            "fingerprint": self.fingerprint,
            "dtype": str(self.dtype).removeprefix("torch."),
            "parameters": sum(parameter.numel() for parameter in self.module.parameters()),
            "layers": int(self.config.num_hidden_layers),
            "heads": int(self.config.num_attention_heads),
            **{
                name: value
                for name in ("mode", "revision", "quantization")
                if (value := getattr(self, name)) is not None
            },
        }


def is_messages(prompt: Any) -> bool:
    """Whether it is a chat: a list of messages, each with a role and its text."""
    several = isinstance(prompt, list | tuple) and len(prompt) > 0
    return several and all(isinstance(one, Mapping) and {"role", "content"} <= set(one) for one in prompt)


def is_ids(prompt: Any) -> bool:
    """Whether it is token ids of one prompt: a list of whole numbers, or a tensor [position] or [1, position]."""
    if isinstance(prompt, Tensor):
        return prompt.dim() == 1 or (prompt.dim() == 2 and len(prompt) == 1)
    return isinstance(prompt, list | tuple) and len(prompt) > 0 and all(type(one) is int for one in prompt)


def check_text(text: Any, empty: bool = False) -> None:
    """A prompt is text that can be written as UTF-8, and not empty, unless the model writes without one too."""
    if not isinstance(text, str):
        raise PromptError(f"Expected a prompt as text, got {short(repr(text))}.")
    if not text.strip() and not empty:
        raise PromptError("Expected a prompt with some text, got an empty one; give the model something to answer.")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise PromptError(
            f"Expected a prompt in Unicode, got half a character (U+{ord(text[error.start]):04X}) at place "
            f"{error.start}; decode the text that it came from as what it is."
        ) from None


def check_ids(ids: Any, model: Model) -> Tensor:
    """The prompt as int64 [batch, position] on the model's device, or one clear sentence."""
    if not isinstance(ids, Tensor) or ids.dim() != 2 or ids.is_floating_point() or ids.dtype == torch.bool:
        came = f"{tuple(ids.shape)} {ids.dtype}" if isinstance(ids, Tensor) else type(ids).__name__
        raise PromptError(f"Expected token ids as an integer tensor [batch, position], got {came}.")
    if ids.numel() == 0 and not (model.family.empty_prompt and len(ids)):
        raise PromptError(
            "Expected a prompt of at least one token, got an empty one; give the model something to answer."
        )
    if ids.numel() and (int(ids.min()) < 0 or int(ids.max()) >= model.vocabulary):
        raise PromptError(
            f"Expected token ids from 0 to {model.vocabulary - 1}, got {int(ids.min())} to {int(ids.max())}; "
            f"was the prompt made with the tokenizer of {model.name}?"
        )
    placed: Tensor = ids.to(model.device, torch.int64)
    return placed


def check_mask(mask: Any, ids: Tensor) -> Tensor:
    """An attention mask as int64 of the shape and on the device of `ids`, 0 where padded and 1 elsewhere."""
    if not isinstance(mask, Tensor) or mask.shape != ids.shape:
        came = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        raise PromptError(f"Expected an attention mask of shape {tuple(ids.shape)}, got {came}.")
    if not bool(((mask == 0) | (mask == 1)).all()):
        raise PromptError("Expected an attention mask of zeros (padding) and ones, got other numbers; make it 0 and 1.")
    placed: Tensor = mask.to(ids.device, torch.int64)
    return placed


def pad(prompts: list[Tensor], model: Model) -> tuple[Tensor, Tensor]:
    """Left-pad prompts [1, position] to one batch; returns ids and attention mask [batch, position]."""
    longest = max(prompt.shape[1] for prompt in prompts)
    ids = torch.full((len(prompts), longest), model.fill_id, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, longest - prompt.shape[1] :] = prompt[0]
        mask[row, longest - prompt.shape[1] :] = 1
    return ids, mask
