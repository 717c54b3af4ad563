"""Models for the harness's tests: random ones that really run, and one that says what a script tells it to."""

from types import SimpleNamespace
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from sinkscope.decoding.stop_strings import answer_tokens
from sinkscope.models.families.causal import Llama
from sinkscope.models.families.llada import LLaDA
from sinkscope.models.families.qwen import Dream
from sinkscope.models.family import Family
from sinkscope.models.model import Model

SPECIAL = ["<|endoftext|>", "<|mask|>", "<|eot_id|>", "<|startoftext|>"]
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}<|eot_id|>{% endfor %}"
    "<answer>"
)


def byte_tokenizer(chat: bool = False) -> PreTrainedTokenizerFast:
    """A token a byte, so that every text can be said and read back exactly."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(letters)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token=SPECIAL[0], mask_token=SPECIAL[1], bos_token=SPECIAL[3], pad_token=SPECIAL[0],
        additional_special_tokens=[SPECIAL[2]],
    )  # fmt: skip
    if chat:
        tokenizer.chat_template = TEMPLATE
    return tokenizer


def random_model(family: Family, *, context: int = 256, seed: int = 0, chat: bool = False) -> Model:
    """A small Llama with random weights and a byte tokenizer, in the family's conventions."""
    tokenizer = byte_tokenizer(chat)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=context, is_causal=family.causal, initializer_range=0.3,
    )  # fmt: skip
    return _model(LlamaForCausalLM(config).eval(), family, tokenizer, context)


def _model(module: nn.Module, family: Family, tokenizer: PreTrainedTokenizerFast, context: int) -> Model:
    known = tokenizer.get_vocab()
    return Model(
        module=module, tokenizer=tokenizer, family=family, name=f"test-{family.name}",
        mask_id=None if family.causal else known["<|mask|>"], shift=family.shift, causal=family.causal, context=context,
        eos_ids=(known["<|endoftext|>"],), pad_id=known["<|endoftext|>"], eot_id=known["<|eot_id|>"],
        fingerprint="test",
    )  # fmt: skip


class Scripted(LLaDA):
    """Logits that are sure of the token that `hidden` names."""

    def head(self, module: Any, hidden: Tensor) -> Tensor:
        return torch.zeros(len(hidden), module.config.vocab_size).scatter(1, hidden.long(), 50.0)


class Script(nn.Module):
    """Looks its prompt up and is sure of the answer from the first step on: masks in, answer out."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, answers: dict[str, str], length: int) -> None:
        super().__init__()
        self.tokenizer, self.length, self.asked = tokenizer, length, 0
        self.answers = {tuple(tokenizer(prompt)["input_ids"]): self.ids(answer) for prompt, answer in answers.items()}
        self.config = SimpleNamespace(vocab_size=len(tokenizer), num_hidden_layers=1, num_attention_heads=1)
        self.weight = nn.Parameter(torch.zeros(1))

    @property
    def base_model(self) -> nn.Module:
        return self

    def ids(self, answer: str) -> list[int]:
        ids = self.tokenizer(answer)["input_ids"]
        assert len(ids) < self.length, f"an answer of {len(ids)} bytes"
        return ids + [self.tokenizer.eos_token_id] * (self.length - len(ids))

    def forward(self, ids: Tensor, attention_mask: Tensor | None = None, **_: Any) -> Any:
        width = ids.shape[1] - self.length
        hidden = torch.zeros(*ids.shape, 1)
        for row in range(len(ids)):
            start = 0 if attention_mask is None else int((attention_mask[row] == 0).sum())
            hidden[row, width:, 0] = torch.tensor(self.answers[tuple(ids[row, start:width].tolist())])
        self.asked += 1
        return SimpleNamespace(last_hidden_state=hidden)


def scripted_model(answers: dict[str, str], length: int, context: int = 4096) -> Model:
    tokenizer = byte_tokenizer()
    return _model(Script(tokenizer, answers, length), Scripted(), tokenizer, context)


FAMILIES = {"llada": LLaDA, "dream": Dream, "llama": Llama}


def tokens(lm: Any, prompts: list[Tensor], settings: Any, stops: Any = ()) -> list[list[int]]:
    """Prompts [1, position] → answer ids, in one batch, under the adapter's intervention."""
    with lm._changed():
        return answer_tokens(lm.model, prompts, settings, stops)[0]
