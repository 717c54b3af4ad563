"""Adapters of a larger language model: the same loop as the tiny family's, but only small changes are trained."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sinkscope.errors import TrainingError
from sinkscope.tasks.problem import Problem
from sinkscope.training import checkpoint
from sinkscope.training.data import Coder, draw_problems, rng_of, rows_of
from sinkscope.training.lora import Trained, merge_all, wrap
from sinkscope.training.objectives import Rows, Targets, even_ratios, masked, next_token
from sinkscope.training.optimiser import Optimisation
from sinkscope.training.recipe import Data, Objective, Optimiser

# Without the base's system prompt: 21 tokens, half of a row, that say nothing about the problem.
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@dataclass(frozen=True)
class Adaptation:
    """One training run of an adapter. Its fields are a recipe's, with a base and a rank in place of a shape.

    `keep`: steps whose adapters stay beside the last one. `canvas` in data: positions beyond the longest answer of a
    chunk, drawn for each chunk; a negative one stands for a canvas of just that length after the prompt.
    """

    name: str
    base: str
    family: str
    steps: int
    mask_token: str | None = None
    rank: int = 12
    alpha: float = 12.0
    seed: int = 0
    batch: int = 16
    chunks: int = 2
    frozen: str = "bfloat16"
    objective: Objective = field(default_factory=Objective)
    data: Data = field(default_factory=Data)
    optimiser: Optimiser = field(default_factory=Optimiser)
    save_every: int = 25
    log_every: int = 5
    keep: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.family not in ("llama", "dream"):
            raise TrainingError(f"an adapter's family must be llama or dream, not {self.family!r}; fix the recipe.")
        if (self.family == "dream") != (self.mask_token is not None):
            raise TrainingError("a dream adapter needs a mask_token, and a llama adapter has none; fix the recipe.")

    @property
    def causal(self) -> bool:
        """Is this the autoregressive one?"""
        return self.family == "llama"

    def to_dict(self) -> dict[str, Any]:
        """The recipe as plain YAML values."""
        plain = asdict(self)
        plain["optimiser"]["betas"] = list(self.optimiser.betas)
        plain["data"]["canvas"] = list(self.data.canvas)
        plain["keep"] = list(self.keep)
        return plain

    def fingerprint(self) -> dict[str, Any]:
        """What must be equal for a run to go on."""
        loose = ("steps", "save_every", "log_every", "keep")
        return {key: value for key, value in self.to_dict().items() if key not in loose}


class AdapterRun:
    """A run in its folder: the wrapped module, the optimiser and how far it is."""

    def __init__(self, recipe: Adaptation, out: Path) -> None:
        from sinkscope.models.load import load

        self.recipe, self.out = recipe, out
        base = load(recipe.base)
        self.base_fingerprint = base.fingerprint
        self.tokenizer = base.require_tokenizer()
        self.tokenizer.chat_template = TEMPLATE
        self.coder = _coder(self.tokenizer)
        self.mask_id = self.tokenizer.get_vocab()[recipe.mask_token] if recipe.mask_token else None
        self.module: Any = base.module
        wrap(self.module, recipe.rank, recipe.alpha, self.mask_id, recipe.seed, getattr(torch, recipe.frozen))
        self.module.train()
        self.optimisation = Optimisation(Trained(self.module), recipe.optimiser)
        self.step, self.seconds, self.tokens = 0, 0.0, 0
        state = checkpoint.load_state(out)
        if state is not None:
            self.step, self.seconds, tensors = state
            self._restore(tensors)
        merge_all(self.module)
        checkpoint.cut_curve(out, self.step)

    def _tensors(self) -> dict[str, Tensor]:
        weights = {f"weight.{n}": p for n, p in self.optimisation.parameters.items()}
        return {**weights, **self.optimisation.state, "tokens": torch.tensor(self.tokens)}

    @torch.no_grad()
    def _restore(self, tensors: dict[str, Tensor]) -> None:
        mine = self._tensors()
        if set(mine) != set(tensors) or any(mine[n].shape != tensors[n].shape for n in mine):
            raise TrainingError(f"the state in {self.out} is of another model; delete it to start again.")
        self.tokens = int(tensors.pop("tokens"))
        for name, tensor in tensors.items():
            mine[name].copy_(tensor)

    def one_step(self) -> dict[str, Any]:
        """One update from the problems of this step; loss, share of asked tokens that were right, tokens seen."""
        recipe, total = self.recipe, 0.0
        rng = rng_of(recipe.seed, self.step, 2)
        ratios = even_ratios(recipe.batch, rng, recipe.objective.t_min)
        right: dict[str, list[float]] = {}
        for number, (rows, kinds) in enumerate(self.chunks()):
            mine = ratios[number * len(rows) : (number + 1) * len(rows)]
            targets = self._targets(rows, mine, rng)
            loss, hits = self._loss(targets)
            (loss / recipe.batch).backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach()) / recipe.batch
            self.tokens += targets.ids.numel()
            for kind, hit in zip(kinds, hits.tolist(), strict=True):
                right.setdefault(kind, []).append(hit)
        if total != total:  # noqa: PLR0124 - NaN
            raise TrainingError(f"the loss is not a number at step {self.step}; lower the rate in the recipe.")
        norm = self.optimisation.step(self.step, recipe.steps)
        merge_all(self.module)
        self.step += 1
        return {"loss": total, "norm": norm, "right": right}

    def chunks(self) -> list[tuple[Rows, list[str]]]:
        """The rows of this step, cut into chunks of like length, with the kind of each row."""
        recipe = self.recipe
        drawn = draw_problems(recipe, self.step)  # type: ignore[arg-type]
        drawn.sort(key=lambda p: len(p.prompt) + 2 * len(p.answer))
        rng = rng_of(recipe.seed, self.step, 1)
        size = recipe.batch // recipe.chunks
        parts = [drawn[i * size : (i + 1) * size] for i in range(recipe.chunks)]
        return [(self._rows(part, int(rng.choice(recipe.data.canvas))), [p.kind for p in part]) for part in parts]

    def _rows(self, part: list[Problem], canvas: int) -> Rows:
        if self.recipe.causal:
            return rows_of(self.coder, part, None)
        block = self.recipe.objective.block
        longest = max(map(len, self.coder.answers([p.answer for p in part])))
        tight = -(-longest // block) * block
        return rows_of(self.coder, part, max(tight, -canvas) if canvas < 0 else tight + canvas)

    def _targets(self, rows: Rows, ratios: Any, rng: Any) -> Targets:
        if self.mask_id is None:
            return next_token(rows, self.recipe.objective)
        return masked(rows, ratios, self.recipe.objective, self.mask_id, rng)

    def _loss(self, targets: Targets) -> tuple[Tensor, Tensor]:
        """Weighted cross-entropy, summed, and each row's weighted share of right tokens; logits at i predict i + 1."""
        rows, positions = targets.weight.nonzero(as_tuple=True)
        words = {} if self.recipe.causal else {"is_causal": False}
        hidden = self.module.model(targets.ids, use_cache=False, **words).last_hidden_state
        logits = self.module.lm_head(hidden[rows, positions - 1])
        labels, weight = targets.labels[rows, positions], targets.weight[rows, positions]
        entropy = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
        hits = (logits.detach().argmax(-1) == labels).float() * weight
        shares = torch.zeros(len(targets.ids)).index_add_(0, rows, hits)
        return (entropy * weight).sum(), shares / torch.zeros(len(targets.ids)).index_add_(0, rows, weight)

    def to_the_end(self, say: Any = print) -> None:
        """Step until the recipe's last step; save, keep adapters and log on the way."""
        recipe = self.recipe
        loss, right, seen, started = 0.0, {}, 0, time.monotonic()
        while self.step < recipe.steps:
            before, tokens = time.process_time(), self.tokens
            found = self.one_step()
            self.seconds += time.process_time() - before
            loss, seen = loss + found["loss"], seen + self.tokens - tokens
            for kind, hits in found["right"].items():
                right.setdefault(kind, []).extend(hits)
            if self.step % recipe.log_every == 0 or self.step == recipe.steps:
                count = recipe.log_every
                values = {
                    "step": self.step, "loss": round(loss / count, 4), "norm": round(found["norm"], 3),
                    "seconds": round(self.seconds, 1), "tokens": self.tokens,
                    "rate": round(seen / (time.monotonic() - started), 1),
                    "right": {kind: round(sum(hits) / len(hits), 3) for kind, hits in sorted(right.items())},
                }  # fmt: skip
                checkpoint.append_curve(self.out, values)
                say(values, flush=True)
                loss, right, seen, started = 0.0, {}, 0, time.monotonic()
            if self.step in recipe.keep:
                self.keep()
            if self.step % recipe.save_every == 0:
                self.save()
        self.save()

    def save(self) -> None:
        """Write the state of this step."""
        checkpoint.save_state(self.out, self.step, self.seconds, self._tensors())

    def keep(self) -> None:
        """Put the adapter of this step aside."""
        from safetensors.torch import save_file

        folder = self.out / "kept"
        folder.mkdir(exist_ok=True)
        held = {name: value.detach().to(torch.bfloat16) for name, value in self.optimisation.mean_weights().items()}
        save_file(held, folder / f"step-{self.step:05d}.safetensors")


def _coder(tokenizer: Any) -> Coder:
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "sinkscope"}], tokenize=False, add_generation_prompt=True
    )
    before, _, after = str(text).partition("sinkscope")
    end, fill = tokenizer.convert_tokens_to_ids("<|im_end|>"), tokenizer.convert_tokens_to_ids("<|endoftext|>")
    return Coder(tokenizer, before, after, end, fill, True)


def main() -> None:
    import sys

    import yaml

    from sinkscope.training.recipe import _make

    values = yaml.safe_load(Path(sys.argv[1]).read_text())
    for key, kind in {"objective": Objective, "data": Data, "optimiser": Optimiser}.items():
        if key in values:
            part = dict(values[key])
            for name in ("betas", "canvas"):
                if isinstance(part.get(name), list):
                    part[name] = tuple(part[name])
            values[key] = _make(kind, part, key)
    values["keep"] = tuple(values.get("keep", ()))
    recipe = Adaptation(**values)
    out = Path(sys.argv[2])
    checkpoint.open_folder(out, recipe, True)  # type: ignore[arg-type]
    AdapterRun(recipe, out).to_the_end()


if __name__ == "__main__":
    main()
