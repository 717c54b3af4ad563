"""`HarnessLM`: any sinkscope model, under any intervention, as a model of lm-evaluation-harness."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sinkscope.decoding import Decode
from sinkscope.errors import TaskError
from sinkscope.evals.batches import Batch, Kind, Request, Runner, attention_of, runner_of, total_effect
from sinkscope.evals.masking import described
from sinkscope.evals.protocol import Protocol, draws, settings_for, setup_for
from sinkscope.evals.store import Answers, key
from sinkscope.fields import need, whole
from sinkscope.interventions import MaskSinks
from sinkscope.interventions.conditions import Condition
from sinkscope.io.progress import step_bar
from sinkscope.models.base import Model
from sinkscope.models.template import rendered

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


class PartAnswered(Exception):  # noqa: N818 - it ends what the harness does, and is no error
    """This part of the requests is answered; the others are not there to be scored."""


@register_model("sinkscope")
class HarnessLM(TemplateLM):  # type: ignore[misc]
    """A model for `lm_eval.simple_evaluate(model=HarnessLM(model, intervention), …)`.

    `intervention` may be a `Condition`, as study files name it: workers elsewhere can make only that.
    `settings` is a Decode for all tasks, or words that replace single settings of each task's protocol (`protocol`, by
    default that of the checkpoint). `samples` is the number of maskings in a diffusion model's likelihood. With `store`,
    finished requests are kept in that file and not redone. `runner`: what answers batches in place of this process.
    `on_answers`: is told how many answers came, in place of a bar. As a registered model (`--model sinkscope
    --model_args model=tiny-llada,mask_sinks=5`) it takes words.
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
        dtype: str | None = None,
        device: str | None = None,
        max_batch_size: int | None = None,
        runner: Runner | None = None,
        protocol: Protocol | None = None,
        on_answers: Callable[[int], object] | None = None,
        part: tuple[int, int] | None = None,
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
        self.intervention = change.intervention(self.seed) if isinstance(change, Condition) else change
        settings_for(model, "", self.asked)  # wrong words are told now, and not at the first request
        self.tokenizer = model.require_tokenizer()
        self.answers = Answers(Path(store) if store is not None else None)
        self.used: dict[str, Decode] = {}  # settings that each task was run with
        self.counts: Counter[str] = Counter()
        self.errors: list[float] = []  # standard errors of the likelihoods
        self.attention: str | None = None  # what computed it, once something was
        self.runner, self.protocol, self.on_answers, self.part = runner or runner_of(model), protocol, on_answers, part
        self._rendered: set[str] = set()
        self.generations: dict[str, dict[int, Request]] = {}  # the first of each problem, by task and number

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
        seen: Counter[int] = Counter()  # the harness asks for repeats by handing the same object in again
        asked = []
        for request in requests:
            asked.append(self._generation(request, seen[id(request)]))
            seen[id(request)] += 1
        new = [one.name for _, one in asked if one.name not in self.answers]
        found = self._answered("generate", asked, self.batch_size, disable_tqdm)
        self.counts += Counter(generated=len(set(new)), found=len(asked) - len(new))
        return [str(record["text"]) for record in found]

    def answered(self, task: str) -> tuple[list[dict[str, Any]], list[tuple[int, ...]]]:
        """First answers and prompts of a task's problems, in the order of their numbers."""
        own = [one for _, one in sorted(self.generations.get(task, {}).items())]
        return [self.answers[one.name] for one in own], [one.prompt for one in own]

    def _generation(self, request: Instance, nth: int) -> tuple[Decode, Request]:
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
        stops = [stop for stop in stops if stop]
        settings = settings_for(self.model, task, self.asked, longest, self.protocol)
        text = self.begun(task, text)
        self.used[task] = settings
        if nth and draws(settings):
            settings = replace(settings, seed=settings.seed + nth)
        # As the harness has it for likelihoods: an empty context is the token that texts begin with.
        ids = self._fit(self.tok_encode(text) or [self.prefix_token_id], self.model.context - settings.length)
        name = key(kind="generate", prompt=ids, settings=settings.to_dict(), until=stops, **self._dependence())
        found = Request(name, tuple(ids), tuple(stops))
        if nth == 0:
            self.generations.setdefault(task, {})[int(request.doc_id or 0)] = found
        return settings, found

    def begun(self, task: str, text: str) -> str:
        """Plain text with a begin token before it, where the protocol wants one."""
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
        """How likely each continuation is, and whether greedy decoding says it; an empty one is refused."""
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
        asked = []
        for pair in pairs:
            name = key(kind="likelihood", pair=pair, samples=self.samples, seed=self.seed, **self._dependence())
            asked.append((None, Request(name, tuple(pair[0]), answer=tuple(pair[1]))))
        # Of an autoregressive model several fit into a padded batch; a diffusion model's maskings are a batch already.
        results = self._answered("score", asked, self.batch_size if self.model.causal else 1, disable_tqdm)
        self.errors += [record["error"] for record in results]
        return [(record["value"], record["greedy"]) for record in results]

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

    # ---- answers

    def _answered(
        self, kind: Kind, asked: Sequence[tuple[Decode | None, Request]], together: int, silent: bool
    ) -> list[dict[str, Any]]:
        """A record per request, in their order; those that are kept are not asked again.

        The others are answered here or elsewhere; each batch is kept whole, with what was taken away in it, as it is done.
        """
        groups: dict[Decode | None, dict[str, Request]] = {}
        for settings, one in asked:
            if self.part is not None or one.name not in self.answers:
                groups.setdefault(settings, {})[one.name] = one
        batches: list[Batch] = []
        for settings, group in groups.items():
            # Longest first: what does not fit into memory fails at once, and not after hours.
            order = sorted(group.values(), key=lambda one: -len(one.prompt) - len(one.answer))
            pieces = [tuple(order[start : start + together]) for start in range(0, len(order), together)]
            batches += [Batch(kind, some, settings, self.samples, self.batch_size, self.seed) for some in pieces]
        if self.on_answers is not None:
            self.on_answers(len(asked) - sum(map(len, groups.values())))
        if self.part is not None:  # the batches of the whole run, of which this process has every so manieth
            index, count = self.part
            mine = batches[index - 1 :: count]
            batches = [batch for batch in mine if any(one.name not in self.answers for one in batch.requests)]
        total = sum(len(batch.requests) for batch in batches)
        with step_bar(total, f"{kind[:-1]}ing", asked=not silent) as bar:
            advance = self.on_answers or bar.update
            for batch, outcome in self.runner(self.change, batches):
                names, effect = [one.name for one in batch.requests], outcome["effect"]
                taken = [] if effect is None else [(f"{self._effects()}{batch.id}", effect)]
                self.answers.add_all([*zip(names, outcome["answers"], strict=True), *taken])
                self.attention = outcome["attention"]
                advance(len(names))
        if self.part is not None:
            raise PartAnswered
        return [self.answers[one.name] for _, one in asked]

    # ---- what the results say about us

    def _effects(self) -> str:
        return f"effect-{key(**self._dependence())}-"

    def _dependence(self) -> dict[str, Any]:
        """What every answer of this model depends on, beside the request."""
        return {"model": self.model.identity(), "intervention": described(self.intervention)}

    def get_model_info(self) -> dict[str, Any]:
        """Taken into the harness's results, under `config`."""
        effects = [record for name, record in self.answers.items() if name.startswith(self._effects())]
        info: dict[str, Any] = {
            **self._dependence(),
            "effect": total_effect(effects),
            "backend": self.attention or attention_of(self.model, self.intervention),
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


def _whole(name: str, value: Any, least: int = 1) -> int:
    """A whole number, which YAML and command lines may give as text."""
    number = (
        int(value) if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 20 else value
    )
    need(name, number, whole(least), TaskError)
    return int(number)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TaskError(f"Expected the text of a request, got {type(value).__name__}; is the task's doc_to_text right?")
    return value
