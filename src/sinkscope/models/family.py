"""What a family of checkpoints is: how config.json, keys, tokenizer and positions become a Model, and how it decodes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from sinkscope.errors import CheckpointError, DecodeError, TokenizerError, UnknownFamilyError
from sinkscope.registry import Registry
from sinkscope.validation import show_value

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

    from sinkscope.models.model import Model

Config = dict[str, Any]  # of config.json
Messages = Sequence[Mapping[str, str]]  # {"role": "user", "content": "…"} each
# Fields of config.json that only the authors' code reads, or that stand elsewhere in transformers' own.
FOREIGN = {
    "model_type", "architectures", "auto_map", "attn_implementation", "rope_theta", "rope_scaling", "_name_or_path",
    "transformers_version", "torch_dtype", "dtype", "is_causal", "use_mrope",
}  # fmt: skip
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")


class Family:
    """One family of checkpoints: how to recognise them, and which transformers class and decode settings they need.

    Subclass it, override what differs, and pass an instance to `register_family`.
    """

    name: ClassVar[str]
    priority: ClassVar[int] = (
        50  # families are asked in this order whether a config.json is theirs; the catch-all is last
    )
    model_type: ClassVar[str] = ""  # of its config.json, in lower case: a regular expression for all of it …
    marks: ClassVar[tuple[str, ...]] = ()  # … and fields of it that are not empty
    native: ClassVar[str] = ""  # transformers' configuration with the same mathematics …
    requires: ClassVar[dict[str, Any]] = {}  # … which holds under these values of config.json
    native_class: ClassVar[str | None] = None  # transformers class, where the native config does not lead to it
    sampler: ClassVar[str] = "llada"  # the authors' decoder, as Decode names it …
    default_settings: ClassVar[dict[str, Any]] = {"block": 32, "steps": 128}  # … and their settings
    shift: ClassVar[bool] = False
    causal: ClassVar[bool] = False
    sees_later: ClassVar[bool | None] = None  # whether positions see those behind them; None: unless it is causal
    samplers: ClassVar[tuple[str, ...]] = ()  # that it was trained for; (): all that start from masks
    modes: ClassVar[tuple[str, ...]] = ()  # ways in which the same weights decode, the usual one first; (): one way
    block_length: ClassVar[tuple[str, int] | None] = None  # if block-causal: its field of config.json, default
    padding_position: ClassVar[int | None] = None  # of padded columns, where real tokens are counted; None: columns are
    float32_rotary: ClassVar[bool] = False  # queries and keys are rotated in float32, whatever the dtype
    plain_tokenizer: ClassVar[bool] = False  # tokenizer.json alone: AutoTokenizer would warn of an unknown type
    mask_token: ClassVar[str | None] = None  # text of the mask token, where config.json and tokenizer do not name it
    end_of_turn: ClassVar[str | None] = None  # text of the token that closes a chat turn
    empty_prompt: ClassVar[bool] = False  # writes without a prompt too
    bound: ClassVar[str] = "masks"  # on the likelihood: of masked tokens, of "blocks" in turn, of "hybrid" noise
    built_in_key: ClassVar[bool] = False  # every head has a learned key in front of all others, on no position
    key_mapping: ClassVar[dict[str, str]] = {}  # regular expression of a stored key → native key

    def matches(self, config: Config, folder: Path) -> bool:
        """Decide whether a checkpoint belongs to this family.

        Args:
            config: Content of the checkpoint's config.json.
            folder: Folder of the checkpoint. Its name must not decide.
        """
        named = self.model_type and re.fullmatch(self.model_type, str(config.get("model_type", "")).lower())
        return bool(named) and all(config.get(field) for field in self.marks)

    def native_config(self, config: Config) -> PretrainedConfig:
        """Build the transformers configuration, with every size taken from the checkpoint's config.json.

        Args:
            config: Content of the checkpoint's config.json.
        """
        return qwen_config(self.native, config)

    def own_class(self) -> Any | None:
        """Return a module class of sinkscope, for checkpoints that no transformers class can compute; else None."""
        return None

    def block(self, config: Config) -> int | None:
        """Return the block length of a checkpoint trained with block-causal attention, or None for full attention.

        Args:
            config: Content of the checkpoint's config.json.
        """
        if self.block_length is None:
            return None
        field, default = self.block_length
        return int(config.get(field) or default)

    @property
    def causal_module(self) -> bool:
        """Whether the module's attention is causal unless a forward asks for something else."""
        return self.causal or bool(self.modes)

    def visible(self, model: Model, ids: Tensor, real: Tensor | None) -> Tensor | None:
        """Return which keys each query attends to, bool [batch, 1, query, key], or None for plain full or causal
        attention.

        Args:
            model: Model that runs the forward.
            ids: Token ids [batch, position].
            real: bool [batch, position], False at padding; None if nothing is padded.
        """
        return None

    def logits(self, model: Model, ids: Tensor, mask: Tensor | None) -> Tensor | None:
        """Compute logits for a module whose forward takes other arguments than ids and an attention mask; None for all
        others.

        Args:
            model: Model that runs the forward.
            ids: Token ids [batch, position].
            mask: Attention mask [batch, position], 0 at padding; None if nothing is padded.
        """
        return None

    def check_settings(self, settings: Any) -> None:
        """Refuse decode settings that would mean something else for this family.

        Args:
            settings: Decode settings (`Decode`).
        """
        fits = settings.sampler in self.samplers if self.samplers else not settings.needs_own_model
        if not fits:
            raise DecodeError(
                f"A {self.name} model does not read as {settings.sampler} decoding does; use Decode.{self.sampler}."
            )

    def adapt(self, module: nn.Module, config: Config) -> None:
        """Change the loaded module where the transformers class computes something else than the checkpoint's own code.

        Args:
            module: Loaded module, changed in place.
            config: Content of the checkpoint's config.json.
        """

    def load_tokenizer(self, folder: Path) -> PreTrainedTokenizerBase:
        """Load the tokenizer of a checkpoint.

        Args:
            folder: Folder of the checkpoint.
        """
        from transformers import AutoTokenizer, PreTrainedTokenizerFast

        if self.plain_tokenizer and (folder / "tokenizer.json").is_file():
            plain: PreTrainedTokenizerBase = PreTrainedTokenizerFast.from_pretrained(str(folder))
            return plain
        # Without the argument transformers asks on stdin whether to run the code in `auto_map`.
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
        return tokenizer

    def eos_ids(self, config: Any, tokenizer: PreTrainedTokenizerBase | None) -> tuple[int, ...]:
        """Return the token ids that end a text, from the native configuration or else from the tokenizer.

        Args:
            config: Native transformers configuration.
            tokenizer: Tokenizer, or None.
        """
        eos = config.eos_token_id if config.eos_token_id is not None else getattr(tokenizer, "eos_token_id", None)
        several = eos if isinstance(eos, list | tuple) else () if eos is None else (int(eos),)
        return tuple(one for one in several if one >= 0)  # -1 stands for none in some files

    def pad_id(self, config: Any, tokenizer: PreTrainedTokenizerBase | None) -> int | None:
        """Return the padding token's id, from the native configuration or else from the tokenizer.

        Args:
            config: Native transformers configuration.
            tokenizer: Tokenizer, or None.
        """
        found = config.pad_token_id if config.pad_token_id is not None else getattr(tokenizer, "pad_token_id", None)
        return None if found is None or found < 0 else int(found)

    def mask_id(self, config: Config, tokenizer: PreTrainedTokenizerBase | None) -> int | None:
        """Return the mask token's id, from config.json or else from the tokenizer; None for autoregressive families.

        Args:
            config: Content of the checkpoint's config.json.
            tokenizer: Tokenizer, or None.

        Raises:
            CheckpointError: If a diffusion checkpoint names no mask token.
        """
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
            "neither; a diffusion model cannot start without one: pass mask_id=… to load (--mask-id on the command line)."
        )

    def encode(self, tokenizer: PreTrainedTokenizerBase, text: str | Messages, chat: bool) -> Tensor:
        """Encode text or chat messages as token ids [1, position].

        Args:
            tokenizer: Tokenizer of the model.
            text: Text, or chat messages.
            chat: True to apply the tokenizer's chat template.
        """
        if not chat:
            plain: Tensor = tokenizer(text, return_tensors="pt")["input_ids"]
            return plain
        written = render_chat(tokenizer, [{"role": "user", "content": text}] if isinstance(text, str) else text)
        # The template writes its own begin token: special tokens must not be added a second time.
        ids: Tensor = tokenizer(written, return_tensors="pt", add_special_tokens=False)["input_ids"]
        return ids

    def positions(self, attention_mask: Tensor | None) -> Tensor | None:
        """Return position ids [batch, position] of a padded batch; None to count columns from 0, padding included.

        Args:
            attention_mask: Attention mask [batch, position], 0 at padding; None if nothing is padded.
        """
        if attention_mask is None or self.padding_position is None:
            return None
        return counted(attention_mask).masked_fill(attention_mask == 0, self.padding_position)

    def head(self, module: Any, hidden: Tensor) -> Tensor:
        """Apply the output head.

        Args:
            module: Loaded module.
            hidden: Hidden states [n, width] of the last layer.

        Returns:
            Logits [n, vocab].
        """
        return self.cap(module, module.get_output_embeddings()(hidden))

    def cap(self, module: Any, logits: Tensor) -> Tensor:
        """Apply what the module does to the output of its head; override it if logits are scaled or capped.

        Args:
            module: Loaded module.
            logits: Output of the head [..., vocab].
        """
        return logits

    def valid_vocab_size(self, model: Model) -> int | None:
        """Return the number of rows of the output head that stand for tokens, or None if all do.

        Args:
            model: Loaded model.
        """
        return None

    def defaults(self, model: Model) -> tuple[str, dict[str, Any]]:
        """Return the authors' sampler and decode settings, under the names that `Decode` uses.

        Args:
            model: Loaded model.
        """
        return self.sampler, {"length": 128, **self.default_settings}


FAMILIES: Registry[Family] = Registry("family of models", CheckpointError)


def register(own: Family) -> Family:
    """Register a family of your own, so that `load` recognises its checkpoints.

    A registered family is tried before the families of the package.

    Args:
        own: Instance of a subclass of `Family` with a `name`.

    Returns:
        The same instance.
    """
    return FAMILIES.add(own.name, own, replace=True)


def families() -> list[Family]:
    """Every family in the order in which they are asked, those of other packages first."""
    return sorted(FAMILIES.values(), key=lambda one: (is_built_in(one), one.priority))


def is_built_in(family: Family) -> bool:
    return type(family).__module__.startswith("sinkscope.")


def family_for(config: Config, folder: Path, unsupported: Mapping[str, str]) -> Family:
    """The first family that a config.json is of; unsupported: word in its names → why its checkpoints are refused."""
    words = " ".join(map(str, (config.get("model_type"), config.get("architectures"), *config))).lower()
    refused = next((why for word, why in unsupported.items() if word in words), None)
    for family in families():
        if refused and is_built_in(family):  # those of other packages are asked first
            raise CheckpointError(refused)
        if family.matches(config, folder):
            return family
    raise UnknownFamilyError(
        f"No family knows model_type {config.get('model_type')!r} in config.json; write a Family and hand it to "
        "sinkscope.register (see help(sinkscope.models.Family))."
    )


def has_tokenizer(folder: Path) -> bool:
    return any((folder / name).is_file() for name in TOKENIZER_FILES)


def render_chat(tokenizer: PreTrainedTokenizerBase, messages: Messages) -> str:
    """Messages as the model's own prompt, up to and with the header of its answer."""
    return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))  # type: ignore[arg-type]


def qwen_config(name: str, config: Config) -> PretrainedConfig:
    """Transformers' configuration of that name; what only the authors' code reads is left out, the rotary base put in place."""
    import transformers

    kept = {field: value for field, value in config.items() if field not in FOREIGN}
    rope = {"rope_type": "default", **(config.get("rope_scaling") or {}), "rope_theta": float(config["rope_theta"])}
    made: PretrainedConfig = getattr(transformers, name)(**kept, rope_parameters=rope)
    return made


def config_of_type(model_type: str, config: Config) -> PretrainedConfig:
    """Transformers' configuration of a type, from fields that are its own."""
    from transformers import AutoConfig

    kept = {field: value for field, value in config.items() if field not in ("model_type", "auto_map", "is_causal")}
    made: PretrainedConfig = AutoConfig.for_model(model_type, **kept)
    return made


def check_requirements(config: Config, required: Mapping[str, Any], family: str) -> None:
    """Refuse values of config.json under which the native class would compute something else."""
    for field, value in required.items():
        if config.get(field, value) not in (value, None):
            raise CheckpointError(
                f"Expected {field} = {value!r} in config.json, got {show_value(config[field])}; "
                f"this variant of {family} computes something else than transformers' class does and is not supported."
            )


# ---- which keys a query sees: its own block and all before it, or what WeDLM's order of reading gives it ----


def block_mask(block: int, start: int, stop: int, real: Tensor | None, device: torch.device) -> Tensor | None:
    """Which keys 0 … stop each query start … stop may see, bool [batch | 1, 1, query, key]; None where all see all.

    real: bool [batch, position], False at padding. A padded query sees all real keys (or itself, where there are none),
    so that no row is fully masked and a key that nobody sees is padding.
    """
    if start // block == (stop - 1) // block and real is None:
        return None
    queries, keys = torch.arange(start, stop, device=device), torch.arange(stop, device=device)
    visible = (keys // block <= (queries // block).unsqueeze(1))[None, None]
    if real is None:
        return visible
    return without_padding(visible, real[:, :stop], start)


def reordered_mask(known: Tensor, real: Tensor | None) -> Tensor:
    """Known tokens first and masks last, causally in that order, told in the text's order: bool [batch, 1, query, key].

    A known token sees the known ones up to itself, a mask all known tokens and the masks up to itself. known: bool
    [batch, position].
    """
    columns = torch.arange(known.shape[1], device=known.device)
    before = columns <= columns.unsqueeze(1)
    query, key = known[:, None, :, None], known[:, None, None, :]
    visible = torch.where(key, ~query | before, ~query & before)
    return visible if real is None else without_padding(visible, real, 0)


def without_padding(visible: Tensor, real: Tensor, start: int) -> Tensor:
    """No padded key is seen, and a padded query sees what is real; real: bool [batch, key], queries begin at `start`."""
    queries = torch.arange(start, start + visible.shape[2], device=real.device)
    keys_real, columns = real[:, None, None], torch.arange(real.shape[1], device=real.device)
    instead = torch.where(keys_real.any(-1, keepdim=True), keys_real, queries.unsqueeze(1) == columns)
    return torch.where(real[:, None, start : start + visible.shape[2], None], visible & keys_real, instead)


def counted(real: Tensor) -> Tensor:
    """Positions that count real tokens only, [batch, position]; 0 at padding."""
    return (real.to(torch.int64).cumsum(-1) - 1).masked_fill(~real.bool(), 0)
