"""`HarnessLM`: any sinkscope model, under any intervention, as a model of lm-evaluation-harness."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sinkscope.decoding import Decode
from sinkscope.errors import TaskError
from sinkscope.evals.answering import answer_tokens, text_of
from sinkscope.evals.answers import Answers, key
from sinkscope.evals.conditions import as_list, described, made_of_words
from sinkscope.evals.likelihood import Likelihood, chain_likelihoods, masked_likelihood
from sinkscope.evals.presets import settings_for
from sinkscope.models.base import Model
from sinkscope.models.template import rendered

try:
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import register_model
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
except ImportError as error:  # pragma: no cover - the environment of the tests has it
    raise TaskError(
        f"Benchmarks need lm-evaluation-harness, which is not here ({error}); install it with: "
        "pip install sinkscope[eval]"
    ) from error

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

    from sinkscope.interventions import Effect


@register_model("sinkscope")
class HarnessLM(TemplateLM):  # type: ignore[misc]
    """A model for `lm_eval.simple_evaluate(model=HarnessLM(model, intervention), …)`.

    `settings` is a Decode for all tasks, or words that replace single settings of each task's preset. `samples` is the
    number of maskings in a diffusion model's likelihood. With `store`, finished requests are kept in that file and not
    redone. As a registered model (`--model sinkscope --model_args model=tiny-llada,mask_sinks=5`) it takes words.
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
        store: Path | str | None = None,
        mask_sinks: int | None = None,
        mask_random: int | None = None,
        rank: str | None = None,
        dtype: str | None = None,
        device: str | None = None,
        max_batch_size: int | None = None,
        **words: Any,
    ) -> None:
        super().__init__()
        if isinstance(model, str):
            from sinkscope.models.load import load

            model = load(model, dtype=dtype, device=device)
        self.model = model
        self.intervention = intervention if intervention is not None else made_of_words(mask_sinks, mask_random, rank)
        self.asked: Decode | Mapping[str, Any] | None = words or settings
        self.batch_size = _whole(batch_size, max_batch_size)
        self.samples, self.seed = _count("samples", samples, 1), _count("seed", seed, 0)
        settings_for(model, "", self.asked)  # wrong words are told now, and not at the first request
        self.tokenizer = model.require_tokenizer()
        self.answers = Answers(Path(store) if store is not None else None)
        self.used: dict[str, Decode] = {}  # settings that each task was run with
        self.counts: Counter[str] = Counter()
        self.errors: list[float] = []  # standard errors of the likelihoods
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
        """Messages as the model's own prompt; a last message of the assistant becomes the start of its answer."""
        last = chat_history[-1]
        prefill = "" if add_generation_prompt or last["role"] != "assistant" else last["content"]
        # Asked to leave the answer's header out, some templates add it all the same and close the turn before it: so
        # the start of the answer is written behind the header here.
        messages = chat_history[:-1] if prefill else chat_history
        text = rendered(self.tokenizer, messages) + prefill
        self._rendered.add(text)
        return text

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Text to ids; a rendered chat has its begin token already."""
        if add_special_tokens is None:
            begin = self.tokenizer.bos_token
            started = bool(begin) and string.startswith(str(begin))
            add_special_tokens = not (started or string in self._rendered)
        ids: list[int] = self.tokenizer(string, add_special_tokens=add_special_tokens)["input_ids"]
        return ids

    # ---- generation

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Answers in the order of the requests, made in padded batches of like length, each cut at its own stops."""
        asked = [self._generation(request, nth) for request, nth in zip(requests, _occurrences(requests), strict=True)]
        waiting: dict[Decode, dict[str, tuple[Tensor, list[str]]]] = {}
        for name, settings, prompt, stops in asked:
            if self.answers.get(name) is None:
                waiting.setdefault(settings, {})[name] = (prompt, stops)
            else:
                self.counts["found"] += 1
        total = sum(map(len, waiting.values()))
        with _progress(total, disable_tqdm, "generating") as advance:
            for settings, group in waiting.items():
                # Longest first: what does not fit into memory fails at once, and not after hours.
                order = sorted(group, key=lambda name: -group[name][0].shape[1])
                for start in range(0, len(order), self.batch_size):
                    names = order[start : start + self.batch_size]
                    rows = self.tokens([group[n][0] for n in names], settings, [group[n][1] for n in names])
                    for name, row in zip(names, rows, strict=True):
                        self.answers.add(name, text=text_of(self.model, row, group[name][1]))
                        advance()
        return [str(self._answer(name)["text"]) for name, *_ in asked]

    def _generation(self, request: Instance, nth: int) -> tuple[str, Decode, Tensor, list[str]]:
        text, words = _text(request.args[0]), _mapping(request.args[1])
        task = str(request.task_name or "")
        settings = settings_for(self.model, task, self.asked, _longest(words.get("max_gen_toks")))
        self.used[task] = settings
        if nth and (settings.temperature > 0 or settings.confidence == "random" or settings.commit == "origin"):
            settings = replace(settings, seed=settings.seed + nth)
        stops = _stops(words.get("until"))
        # As the harness has it for likelihoods: an empty context is the token that texts begin with.
        ids = self._fit(self.tok_encode(text) or [self.prefix_token_id], self.model.context - settings.length)
        name = key(kind="generate", prompt=ids, settings=settings.to_dict(), until=stops, **self._dependence())
        return name, settings, torch.tensor([ids]), stops

    def _fit(self, ids: list[int], room: int) -> list[int]:
        """The last `room` tokens of a prompt that is too long, counted so that the results can say it."""
        if room < 1:
            raise TaskError(f"The answer's length leaves no room for a prompt in the {self.model.context} positions.")
        if len(ids) > room:
            self.counts["truncated"] += 1
        return ids[-room:]

    def tokens(self, prompts: list[Tensor], settings: Decode, stops: Sequence[list[str]] = ()) -> list[list[int]]:
        """Prompts [1, position] → answer ids, in one batch, under the intervention."""
        with self._intervened():
            rows = answer_tokens(self.model, prompts, settings, stops)
        self.counts["generated"] += len(prompts)
        return rows

    # ---- likelihoods

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """How likely each continuation is, and whether greedy decoding says it; an empty one is refused."""
        for request in requests:
            _, continuation = map(_text, request.args[:2])
            if not continuation:
                raise TaskError("Expected a continuation of at least one character to score, got an empty one.")
        found: list[tuple[float, bool]] = super().loglikelihood(requests, disable_tqdm=disable_tqdm)
        return found

    def _loglikelihood_tokens(
        self, requests: list[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False, **_: Any
    ) -> list[tuple[float, bool]]:
        pairs = [(self._fit(context, self.model.context - len(answer)), answer) for _, context, answer in requests]
        names = [
            key(kind="likelihood", pair=pair, samples=self.samples, seed=self.seed, **self._dependence())
            for pair in pairs
        ]
        waiting = {name: pair for name, pair in zip(names, pairs, strict=True) if self.answers.get(name) is None}
        with _progress(len(waiting), disable_tqdm, "scoring") as advance, self._intervened():
            if self.model.causal:
                found = chain_likelihoods(
                    self.model, list(waiting.values()), batch_size=self.batch_size, settle=self._needs_two()
                )
                for name, likelihood in zip(waiting, found, strict=True):
                    self.answers.add(name, **likelihood.to_dict())
                    advance()
            else:
                for name, (context, answer) in waiting.items():
                    self.answers.add(name, **self._masked(context, answer).to_dict())
                    advance()
        results = [self._answer(name) for name in names]
        self.errors += [record["error"] for record in results]
        return [(record["value"], record["greedy"]) for record in results]

    def _masked(self, context: list[int], answer: list[int]) -> Likelihood:
        return masked_likelihood(
            self.model, context, answer, samples=self.samples, batch_size=self.batch_size, seed=self.seed,
            settle=self._needs_two(),
        )  # fmt: skip

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Log-likelihood of whole texts, in windows of the model's context that overlap in what is given only."""
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

    @contextmanager
    def _intervened(self) -> Iterator[None]:
        """The intervention in force; what it took away is added up over all batches."""
        if self.intervention is None:
            yield
            return
        from sinkscope.interventions import intervene

        with intervene(self.model, *as_list(self.intervention)) as active:
            yield
        self._note(active.effect)

    def _note(self, effect: Effect) -> None:
        """Kept beside the answers, so that a resumed run can still say what was taken away."""
        prefix = f"effect-{key(**self._dependence())}-"
        self.answers.add(f"{prefix}{len(self.answers.starting(prefix))}", **asdict(effect))

    def _effect(self) -> dict[str, float] | None:
        """Shares of keys and of attention that were taken away, and what leaked, over all batches; None without any."""
        parts = self.answers.starting(f"effect-{key(**self._dependence())}-")
        if not parts:
            return None
        from sinkscope.interventions import Effect

        total = Effect(leak=max(part["leak"] for part in parts))
        for name in ("keys", "keys_seen", "mass", "mass_seen"):
            setattr(total, name, sum(part[name] for part in parts))
        return total.to_dict()

    def _needs_two(self) -> bool:
        """Whether the intervention ranks the forward before: a likelihood then runs each canvas twice."""
        return any(one.maps() for one in as_list(self.intervention) if not one.is_noop)

    def _dependence(self) -> dict[str, Any]:
        """What every answer of this model depends on, beside the request."""
        return {"model": self.model.identity(), "intervention": described(self.intervention)}

    def _attention(self) -> str:
        """What computed the attention: the model's own implementation, or ours where it had to be changed."""
        if self.intervention is None:
            return str(getattr(self.model.config, "_attn_implementation", "own"))
        from sinkscope.attention.attend import choose_backend

        return str(choose_backend(torch.empty(0, dtype=self.model.dtype, device=self.model.device)))

    def _answer(self, name: str) -> dict[str, Any]:
        record = self.answers.get(name)
        assert record is not None
        return record

    def get_model_info(self) -> dict[str, Any]:
        """Taken into the harness's results, under `config`."""
        info: dict[str, Any] = {
            **self._dependence(),
            "effect": self._effect(),
            "backend": self._attention(),
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


def _count(name: str, value: Any, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 1 << 63:
        raise TaskError(f"Expected {name} as a whole number of at least {least}, got {value!r}.")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TaskError(f"Expected the text of a request, got {type(value).__name__}; is the task's doc_to_text right?")
    return value


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise TaskError(f"Expected generation settings such as until and max_gen_toks, got {type(value).__name__}.")
    return dict(value)


def _stops(until: Any) -> list[str]:
    """Stop strings: one, several or none. A number would never be found in a text, so that it is refused."""
    several = [] if until is None else [until] if isinstance(until, str) else until
    if not isinstance(several, list | tuple) or any(not isinstance(stop, str) for stop in several):
        raise TaskError(f"Expected stop strings in until, such as ['\\n\\n'], got {until!r}; put quotes round numbers.")
    return [stop for stop in several if stop]


def _longest(asked: Any) -> int | None:
    """The length that a task wishes for; YAML and command lines may give it as text."""
    if asked is None:
        return None
    text = str(asked)
    if isinstance(asked, bool) or not (text.isascii() and text.isdecimal()) or not 0 < int(text) < 1 << 31:
        raise TaskError(f"Expected max_gen_toks as a whole number of at least 1, got {asked!r}.")
    return int(text)


def _whole(batch_size: int | str | None, most: int | None) -> int:
    """The harness hands `None` or "auto" on where nobody gave a batch size."""
    asked = "8" if batch_size is None or str(batch_size).startswith("auto") else str(batch_size)
    if not (asked.isascii() and asked.isdecimal() and int(asked)):
        raise TaskError(f"Expected a batch size of at least 1, or auto, got {batch_size!r}.")
    return max(1, min(int(asked), most or int(asked)))


def _occurrences(requests: list[Instance]) -> list[int]:
    """Of each request, how often the same object came before: the harness asks for repeats by handing it in again."""
    seen: Counter[int] = Counter()
    counted = []
    for request in requests:
        counted.append(seen[id(request)])
        seen[id(request)] += 1
    return counted


@contextmanager
def _progress(total: int, disabled: bool, what: str) -> Iterator[Callable[[], None]]:
    """A bar on the terminal's error stream, none elsewhere; what is yielded counts one request."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    silent = disabled or total == 0 or not console.is_terminal
    with Progress(*columns, console=console, disable=silent) as bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)
