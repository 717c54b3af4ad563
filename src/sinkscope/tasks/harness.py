"""`HarnessLM`: any sinkscope model, under any intervention, as a model of lm-evaluation-harness."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import torch
from pydantic import Field

from sinkscope.attention.attend import choose_backend
from sinkscope.conditions import Condition
from sinkscope.decoding import Decode
from sinkscope.decoding.likelihood import Likelihood, chain_likelihoods, masked_likelihood
from sinkscope.decoding.stop_strings import generate_until
from sinkscope.errors import TaskError
from sinkscope.interventions import Effect, MaskSinks, intervene
from sinkscope.models.family import render_chat
from sinkscope.models.model import Model
from sinkscope.progress import step_bar
from sinkscope.tasks.protocol import Protocol, settings_for, setup_for
from sinkscope.validation import LARGEST, validate

try:
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import register_model
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
except ImportError as error:  # pragma: no cover - the environment of the tests has it
    raise TaskError(
        f"Benchmarks need lm-evaluation-harness, which is not here ({error}); install it with: pip install -e '.[eval]'"
    ) from error

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

T = TypeVar("T")
Asked = tuple[Decode, tuple[int, ...], tuple[str, ...]]  # settings, prompt and stop strings of a generation


@register_model("sinkscope")
class HarnessLM(TemplateLM):  # type: ignore[misc]
    """Model for lm-evaluation-harness: `lm_eval.simple_evaluate(model=HarnessLM(model, intervention),
    tasks=["gsm8k"])`.

    On the command line of lm-evaluation-harness the model is named `sinkscope`, as in `--model sinkscope --model_args
    model=tiny-llada,mask_sinks=5`.

    Args:
        model: Model, or a name that `load` accepts.
        intervention: Intervention, list of interventions, or condition of a study, active in every request.
        settings: Decode settings for all tasks, or a mapping that replaces single settings of each task's evaluation
            protocol.
        batch_size: Largest number of requests per batch; None or "auto" means 8.
        samples: Number of random maskings by which a diffusion model's likelihood is estimated.
        seed: Seed of decoding, interventions and maskings.
        mask_sinks: Number of sinks to mask; replaces `intervention`.
        dtype: Floating-point type, as in `load`, if `model` is a name.
        device: Device, as in `load`, if `model` is a name.
        max_batch_size: Upper limit of `batch_size`.
        protocol: Evaluation protocol; the default is the checkpoint's.
        **words: Single decode settings; they replace `settings`.

    Raises:
        TaskError: If a number is malformed.
        DecodeError: If the decode settings do not fit the model.
    """

    backend = "causal"  # how the base class splits context and continuation: tokenised together, then cut

    def __init__(
        self,
        model: Model | str,
        intervention: Any = None,
        settings: Decode | Mapping[str, Any] | None = None,
        *,
        batch_size: int | str | None = 8,
        samples: int = 128,
        seed: int = 0,
        mask_sinks: int | None = None,
        dtype: str | None = None,
        device: str | None = None,
        max_batch_size: int | None = None,
        protocol: Protocol | None = None,
        **words: Any,
    ) -> None:
        super().__init__()
        if isinstance(model, str):
            from sinkscope.models.load import load

            model = load(model, dtype=dtype, device=device)
        self.model = model
        self.change: Any = MaskSinks(k=mask_sinks) if mask_sinks else intervention
        self.asked: Decode | Mapping[str, Any] | None = words or settings
        # The harness hands None or "auto" on where nobody gave a batch size, and numbers as text.
        asked = 8 if batch_size is None or str(batch_size).startswith("auto") else _whole("batch_size", batch_size)
        self.batch_size = max(1, min(asked, max_batch_size or asked))
        self.samples, self.seed = _whole("samples", samples), _whole("seed", seed, 0)
        change = self.change
        self.intervention = change.seeded(self.seed) if isinstance(change, Condition) else change
        settings_for(model, "", self.asked)  # wrong words are told now, and not at the first request
        self.tokenizer = model.require_tokenizer()
        self.answers: dict[Asked, str] = {}
        self.used: dict[str, Decode] = {}  # settings that each task was run with
        self.counts: Counter[str] = Counter()
        self.errors: list[float] = []  # standard errors of the likelihoods
        self.protocol = protocol
        self.effects: list[Effect] = []  # of every batch
        self._rendered: set[str] = set()

    # ---- text and tokens

    @property
    def eot_token_id(self) -> int:
        found = self.model.eos_id
        if found is None:
            raise TaskError(
                f"{self.model.name} names no end-of-text token, which likelihoods without a context start from."
            )
        return found

    @property
    def prefix_token_id(self) -> int:
        begin = self.tokenizer.bos_token_id
        return int(begin) if begin is not None else self.eot_token_id

    @property
    def tokenizer_name(self) -> str:
        return str(getattr(self.tokenizer, "name_or_path", None) or self.model.name).replace("/", "__")

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Write chat messages as the model's own prompt.

        Args:
            chat_history: Messages with `role` and `content`; a last message of the assistant becomes the start of its
                answer.
            add_generation_prompt: Whether the prompt ends where the assistant's answer begins.
        """
        last = chat_history[-1]
        prefill = "" if add_generation_prompt or last["role"] != "assistant" else last["content"]
        # Asked to leave the answer's header out, some templates add it all the same and close the turn before it: so
        # the start of the answer is written behind the header here.
        messages = chat_history[:-1] if prefill else chat_history
        text = render_chat(self.tokenizer, messages) + prefill
        self._rendered.add(text)
        return text

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Encode text as token ids.

        Args:
            string: Text.
            add_special_tokens: Whether special tokens are added. The default is to add them, except to a rendered chat,
                which has its BOS token already.
        """
        if add_special_tokens is None:
            begin = self.tokenizer.bos_token
            started = bool(begin) and string.startswith(str(begin))
            add_special_tokens = not (started or string in self._rendered)
        ids: list[int] = self.tokenizer(string, add_special_tokens=add_special_tokens)["input_ids"]
        return ids

    # ---- generation

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Answer requests in padded batches of similar length, each answer cut at its own stop strings.

        Args:
            requests: Requests of the harness.
            disable_tqdm: Whether the progress bar is hidden.

        Returns:
            Answers in the order of the requests.
        """
        seen: Counter[int] = Counter()  # the harness asks for repeats by handing the same object in again
        asked = []
        for request in requests:
            asked.append(self.read_request(request, seen[id(request)]))
            seen[id(request)] += 1
        groups: dict[Decode, list[Asked]] = {}
        for one in dict.fromkeys(asked):
            if one not in self.answers:
                groups.setdefault(one[0], []).append(one)
        with step_bar(sum(map(len, groups.values())), "generating", asked=not disable_tqdm) as bar:
            for settings, group in groups.items():
                # Longest first: what does not fit into memory fails at once, and not after hours.
                group.sort(key=lambda one: -len(one[1]))
                for batch in batched(group, self.batch_size):
                    prompts, stops = [torch.tensor([one[1]]) for one in batch], [one[2] for one in batch]
                    with self._changed():
                        answers = generate_until(self.model, prompts, settings, stops)
                    self.answers |= {one: answer.text for one, answer in zip(batch, answers, strict=True)}
                    bar.update(len(batch))
        return [self.answers[one] for one in asked]

    def read_request(self, request: Instance, nth: int = 0) -> Asked:
        """Return the decode settings, prompt ids and stop strings of a request.

        Args:
            request: Request of the harness.
            nth: Number of times that the request was asked before.
        """
        text, words = _text(request.args[0]), request.args[1]
        task = str(request.task_name or "")
        longest, stops = words.get("max_gen_toks"), words.get("until") or []
        longest = None if longest is None else _whole("max_gen_toks", longest)
        stops = [stops] if isinstance(stops, str) else stops
        # A number would never be found in a text.
        if not isinstance(stops, list | tuple) or any(not isinstance(stop, str) for stop in stops):
            raise TaskError(
                f"Expected stop strings in until, such as ['\\n\\n'], got {stops!r:.60}; put quotes round numbers."
            )
        settings = settings_for(self.model, task, self.asked, longest, self.protocol)
        text = self.begun(task, text)
        self.used[task] = settings
        if nth and settings.is_stochastic:
            settings = replace(settings, seed=settings.seed + nth)
        # As the harness has it for likelihoods: an empty context is the token that texts begin with.
        ids = self._fit(self.tok_encode(text) or [self.prefix_token_id], self.model.context - settings.length)
        return settings, tuple(ids), tuple(stop for stop in stops if stop)

    @contextmanager
    def _changed(self) -> Iterator[None]:
        """The intervention in force; what it removes is counted."""
        changes = as_list(self.intervention)
        if not changes:
            yield
            return
        with intervene(self.model, *changes) as active:
            yield
        self.effects.append(active.effect)

    def begun(self, task: str, text: str) -> str:
        """Return plain text, after a BOS token if the evaluation protocol wants one.

        Args:
            task: Name of the task.
            text: Prompt.
        """
        setup = setup_for(self.model, task, self.protocol)
        wanted = setup is not None and setup.begin and text not in self._rendered
        return f"{self.tokenizer.bos_token or ''}{text}" if wanted else text

    def _fit(self, ids: list[int], room: int) -> list[int]:
        """The last `room` tokens of a prompt that is too long, counted so that the results can say it."""
        if room < 1:
            raise TaskError(f"The answer's length leaves no room for a prompt in the {self.model.context} positions.")
        if len(ids) > room:
            self.counts["truncated"] += 1
        return ids[-room:]

    # ---- likelihoods

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Compute the log-likelihood of each continuation, and whether greedy decoding would write it.

        Args:
            requests: Requests of the harness, each a context and a continuation.
            disable_tqdm: Whether the progress bar is hidden.

        Raises:
            TaskError: If a continuation is empty.
        """
        for request in requests:
            context, continuation = map(_text, request.args[:2])
            if not continuation or not (context or self.tok_encode(continuation, add_special_tokens=False)):
                raise TaskError(
                    f"Expected a continuation of at least one token to score, got {continuation!r:.60}; leave it out."
                )
        found: list[tuple[float, bool]] = super().loglikelihood(requests, disable_tqdm=disable_tqdm)
        return found

    def _loglikelihood_tokens(
        self, requests: list[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False, **_: Any
    ) -> list[tuple[float, bool]]:
        pairs = [(self._fit(context, self.model.context - len(answer)), answer) for _, context, answer in requests]
        # What ranks the forward before, or starts at the second, needs two forwards of each canvas.
        settle = any(
            one.maps() or getattr(one, "since", None) == "second" or getattr(one, "steps", None)
            for one in as_list(self.intervention)
            if not one.is_noop
        )
        found: list[Likelihood] = []
        with step_bar(len(pairs), "scoring", asked=not disable_tqdm) as bar:
            # Of an autoregressive model several fit into a padded batch; a diffusion model's maskings are a batch already.
            for batch in batched(pairs, self.batch_size if self.model.causal else 1):
                with self._changed():
                    found += self._likelihoods(batch, settle)
                bar.update(len(batch))
        self.errors += [one.error for one in found]
        return [(one.value, one.greedy) for one in found]

    def _likelihoods(self, pairs: Sequence[tuple[list[int], list[int]]], settle: bool) -> list[Likelihood]:
        if self.model.causal:
            return chain_likelihoods(self.model, list(pairs), settle=settle)
        words: dict[str, Any] = {"samples": self.samples, "batch_size": self.batch_size, "seed": self.seed}
        return [masked_likelihood(self.model, *pair, **words, settle=settle) for pair in pairs]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Compute the log-likelihood of whole texts, in windows of the model's context in which every token is scored
        once.

        Args:
            requests: Requests of the harness, each a text.
            disable_tqdm: Whether the progress bar is hidden.
        """
        spans, windows = [], []
        for request in requests:
            ids = self.tok_encode(_text(request.args[0]), add_special_tokens=False)
            cut = get_rolling_token_windows(
                token_list=ids, prefix_token=self.prefix_token_id, max_seq_len=self.model.context - 1, context_len=1
            )
            own = [(None, *pair) for pair in map(make_disjoint_window, cut)]
            spans.append(len(own))
            windows += own
        values = iter(self._loglikelihood_tokens(windows, disable_tqdm=disable_tqdm))
        return [sum(next(values)[0] for _ in range(span)) for span in spans]

    # ---- what the results say about us

    def get_model_info(self) -> dict[str, Any]:
        """Return what the harness stores in its results under `config`."""
        info: dict[str, Any] = {
            "model": self.model.identity(),
            "intervention": [one.to_dict() for one in as_list(self.intervention)],
            "effect": sum_effects(self.effects),
            "backend": name_attention(self.model, self.intervention),
            "settings": {task: settings.to_dict() for task, settings in self.used.items()},
            "requests": dict(self.counts),
            "versions": {name: version(name) for name in ("sinkscope", "lm_eval", "torch", "transformers")},
        }
        if self.errors:
            info["likelihood"] = {
                "estimate": "chain rule, exact" if self.model.causal else "mean over maskings, a lower bound of log p",
                "samples": 1 if self.model.causal else self.samples,
                "requests": len(self.errors),
                "largest_standard_error": max(self.errors),
                "mean_standard_error": sum(self.errors) / len(self.errors),
            }
        return {"sinkscope": info}


def as_list(intervention: Any) -> list[Any]:
    """None, one intervention or several, as a list."""
    if intervention is None:
        return []
    return list(intervention) if isinstance(intervention, (list, tuple)) else [intervention]


def batched(values: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(values), size):
        yield values[start : start + size]


def sum_effects(effects: Sequence[Effect]) -> dict[str, float] | None:
    """Shares of keys and of attention that were removed, over all batches; None without an intervention."""
    if not effects:
        return None
    sums = {name: sum(getattr(one, name) for one in effects) for name in ("keys", "keys_seen", "mass", "mass_seen")}
    return Effect(**sums, leak=max(one.leak for one in effects)).to_dict()


def name_attention(model: Model, intervention: Any) -> str:
    """What computes the attention: the model's own implementation, or ours where it has to be changed."""
    if intervention is None:
        return str(getattr(model.config, "_attn_implementation", "own"))
    return str(choose_backend(torch.empty(0, dtype=model.dtype, device=model.device)))


def _whole(name: str, value: Any, least: int = 1) -> int:
    """A whole number, which YAML and command lines may give as text."""
    number = (
        int(value) if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 20 else value
    )
    checked: int = validate(Annotated[int, Field(strict=True, ge=least, le=LARGEST)], number, name, TaskError)
    return checked


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TaskError(f"Expected the text of a request, got {type(value).__name__}; is the task's doc_to_text right?")
    return value
