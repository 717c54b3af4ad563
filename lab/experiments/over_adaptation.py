"""Sinks while a language model is adapted: `python -m lab.experiments.over_adaptation RUN… --out FOLDER`.

Every adapter that a run kept is merged into the base and looked at on the same few unseen problems, in the same states.
A state is the prompt and the true answer up to one block after another, with masks behind it in a diffusion model. So what
changes from checkpoint to checkpoint is the model alone. A key's share is what it receives per row that sees it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lab.checkpoint import write_text
from lab.checks import read_yaml
from lab.errors import TrainingError
from sinkscope.errors import SinkscopeError
from sinkscope.models import adapters
from sinkscope.models.weights import set_direction

if TYPE_CHECKING:
    from sinkscope.models.model import Model

BLOCK, CANVAS = 8, 40
STRONG = 0.3  # share of a head's attention on one key from which a sink is called strong
UNMASKED = ", no masks"
FEWEST_ROWS = 4  # a key that fewer rows see has no share to speak of


@dataclass(frozen=True)
class Look:
    """One checkpoint: shares over all problems, states, layers and heads."""

    run: str
    step: int
    causal: bool
    first: float  # attention on position 0
    top_is_first: float  # share of (head, state) whose top key is position 0
    strong: float  # share of (head, state) whose top key draws more than STRONG
    strong_first: float  # of those, the share at position 0
    static: float  # share of (head, problem) whose top key is the same in all states
    structural: float  # share of (head, state) whose top key is a structural token that is no mask
    masks: float  # and where it is a mask
    top_tokens: list[tuple[str, float]]
    first_by_layer: list[float]  # attention on position 0, layer by layer


def look(model: Model, problems: Sequence[tuple[Tensor, int]], run: str, step: int, masked: bool = True) -> Look:
    """Measure one model on sequences (ids [1, position], tokens of the prompt); masked=False: without masks behind."""
    from sinkscope.sinks.kinds import STRUCTURAL, describe, kinds_in_context

    first: list[Tensor] = []
    tops: list[Tensor] = []
    strengths: list[Tensor] = []
    kinds: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    static, heads = 0, 0
    for whole, prompt in problems:
        same: list[Tensor] = []
        for ids in states(whole, prompt, model.mask_id if masked else None):
            share = shares(model, ids)  # [layer, head, key]
            strength, top = share.max(-1)
            first.append(share[..., 0])
            tops.append(top.flatten())
            strengths.append(strength.flatten())
            same.append(top)
            row = ids[0].tolist()
            known = describe(model.tokenizer, row, model.mask_id)
            in_context = kinds_in_context(row, known)
            kinds.update(in_context[place] for place in top.flatten().tolist())
            tokens.update(known[row[place]][0] for place in top.flatten().tolist())
        stacked = torch.stack(same)  # [state, layer, head]
        static += int((stacked == stacked[0]).all(0).sum())
        heads += stacked[0].numel()
    top, strength = torch.cat(tops), torch.cat(strengths)
    strong, count = strength > STRONG, len(top)
    plain = sum(kinds[kind] for kind in STRUCTURAL if kind != "mask")
    return Look(
        run, step, model.causal, round(float(torch.stack(first).mean()), 4), round(float((top == 0).float().mean()), 4),
        round(float(strong.float().mean()), 4),
        round(float((top[strong] == 0).float().mean()), 4) if bool(strong.any()) else 0.0,
        round(static / heads, 4), round(plain / count, 4), round(kinds["mask"] / count, 4),
        [(text, round(n / count, 4)) for text, n in tokens.most_common(5)],
        [round(value, 4) for value in torch.stack(first).mean((0, 2)).tolist()],
    )  # fmt: skip


def states(whole: Tensor, prompt: int, mask_id: int | None) -> Iterator[Tensor]:
    """The sequence as a decoder meets it before each block: what follows is masked, or not there yet in an ARM."""
    for known in range(prompt, prompt + CANVAS, BLOCK):
        if mask_id is None:
            yield whole[:, : known + 1]
        else:
            ids = whole.clone()
            ids[:, known:] = mask_id
            yield ids


@torch.inference_mode()
def shares(model: Model, ids: Tensor) -> Tensor:
    """Attention that each key receives, per row that sees it: [layer, head, key]; too few rows count as nothing."""
    from sinkscope.attention.observe import observe

    with observe(model.module) as seen:
        model.logits(ids)
    received = torch.stack([one.sum(2)[0] for one in seen.received])  # [layer, head, key]
    length = ids.shape[1]
    rows = length - torch.arange(length) if model.causal else torch.full((length,), length)
    return (received / rows).masked_fill(rows < FEWEST_ROWS, 0.0)


def sequences(model: Model, per_kind: int = 3, seed: int = 21) -> list[tuple[Tensor, int]]:
    """A few test problems with their answers, filled up with end-of-text to the canvas."""
    from lab.adapt import coder_of
    from lab.data import rows_of
    from sinkscope.tasks import problems

    coder = coder_of(model.require_tokenizer())
    asked = [p for kind in ("arithmetic", "programs") for p in problems(kind, n=per_kind, split="test", seed=seed)]
    found = [(rows_of(coder, [problem], CANVAS), problem) for problem in asked]
    return [(rows.ids[:, : int(rows.prompt[0]) + CANVAS], int(rows.prompt[0])) for rows, _ in found]


def over_run(run: Path, base: Model, known: Sequence[Look] = (), before: int = 0) -> Iterator[Look]:
    """The base as it is, the base in the run's direction, and every adapter that the run kept; none that is known already.

    before: steps of the runs that this one goes on from.
    """
    from lab.adapt import set_template
    from sinkscope.models.load import apply_adapter_notes

    recipe = _recipe(run)
    set_template(base.require_tokenizer())
    folders = {int(path.name.removeprefix("step-")): path for path in sorted((run / "kept").glob("step-*[0-9]"))}
    if (run / "model").is_dir():
        folders[int(recipe["steps"])] = run / "model"
    if not folders:
        raise TrainingError(f"{run} has kept no adapters; name the steps to keep in the recipe.")
    start = {name: tensor.clone() for name, tensor in base.module.state_dict().items()}
    asked = sequences(base)
    done = {(one.run, one.step) for one in known}
    if (recipe["base"], 0) not in done:
        yield look(base, asked, recipe["base"], 0)
    if recipe["family"] != "llama" and not before and (recipe["name"], 0) not in done:
        notes = adapters.read_adapter(next(iter(folders.values()))).notes
        bare = adapters.Adapter(run, {"base_model_name_or_path": recipe["base"]}, {}, notes)
        turned = apply_adapter_notes(replace(base), bare)
        yield look(turned, asked, recipe["name"], 0)
        # The same text in both directions: what the masks behind it do is left out.
        yield look(turned, asked, recipe["name"] + UNMASKED, 0, masked=False)
    for step, folder in sorted(folders.items()):
        if (recipe["name"], before + step) in done:
            continue
        base.module.load_state_dict(start)
        adapter = adapters.read_adapter(folder)
        merged = adapters.merge(replace(base), adapter, str(folder))
        yield look(apply_adapter_notes(merged, adapter), asked, recipe["name"], before + step)
    base.module.load_state_dict(start)
    set_direction(base.module, base.causal)


def markdown(found: Sequence[Look]) -> str:
    """One row per checkpoint."""
    lines = [
        "| model | step | attention on position 0 | top key is position 0 | top key draws > 0.3 | of those, position 0 | "
        "top key stays | top key is a mask | other structural | top keys most often |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for one in found:
        told = ", ".join(f"`{text}` {100 * share:.0f} %" for text, share in one.top_tokens[:3])
        values = (one.first, one.top_is_first, one.strong, one.strong_first, one.static, one.masks, one.structural)
        cells = " | ".join(f"{100 * value:.1f} %" for value in values)
        lines.append(f"| {one.run}{', causal' if one.causal else ''} | {one.step} | {cells} | {told} |")
    return "\n".join(lines) + "\n"


def figure(found: Sequence[Look], out: Path) -> None:
    """Four measures over the steps of each run; the base stands at the left edge."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    panels = (("first", "attention on position 0"), ("strong", "heads with a key above 0.3"),
              ("top_is_first", "top key is position 0"), ("static", "top key the same in all five states"),
              ("masks", "top key is a mask"))  # fmt: skip
    drawn, axes = plt.subplots(1, len(panels), figsize=(3.5 * len(panels), 3.3), layout="constrained")
    base = [one for one in found if one.step == 0 and one.causal]
    plain = {one.run for one in base}
    runs = dict.fromkeys(_whole(one.run) for one in found if one.run not in plain and UNMASKED not in one.run)
    for axis, (key, label) in zip(axes, panels, strict=True):
        for run in runs:
            points = [
                (max(one.step, 0.5), getattr(one, key))
                for one in found
                if _whole(one.run) == run and UNMASKED not in one.run
            ]
            axis.plot(*zip(*points, strict=True), marker="o", markersize=3, linewidth=1.2, label=run)
        if base and key != "masks":
            axis.axhline(
                getattr(base[0], key), color="grey", linestyle=":", linewidth=1, label=f"{base[0].run}, causal"
            )
        axis.set_xscale("log")
        axis.set_xlabel("step (0 drawn at 0.5)")
        axis.set_ylim(0, 1)
        axis.set_title(label, fontsize=10)
    axes[0].legend(fontsize=8)
    drawn.savefig(out, dpi=110)
    plt.close(drawn)


def _whole(run: str) -> str:
    """Parts of one training have one name."""
    return run.removesuffix("-first").removesuffix("-second")


def _recipe(run: Path) -> dict[str, Any]:
    try:
        read = read_yaml(run / "recipe.yaml")
        return {"start": read.get("start"), **{key: read[key] for key in ("name", "family", "base", "steps")}}
    except (AttributeError, KeyError, TypeError) as error:
        raise TrainingError(f"{run} is not the folder of an adapter's run ({error}); name one.") from None


def main(arguments: Sequence[str] | None = None) -> int:
    """The command: adaptation.json, adaptation.md and adaptation.png from the adapters that runs kept."""
    parser = argparse.ArgumentParser(prog="python -m lab.experiments.over_adaptation", description=__doc__)
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="folders of python -m lab.train smol-dream, …"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for adaptation.json, .md and .png")
    given = parser.parse_args(arguments)
    try:
        from sinkscope.models.load import load

        base = load(_recipe(given.runs[0])["base"])
        given.out.mkdir(parents=True, exist_ok=True)
        kept = given.out / "adaptation.json"
        found = [Look(**row) for row in json.loads(kept.read_text(encoding="utf-8"))] if kept.is_file() else []
        ends: dict[str | None, int] = {}  # run → steps at its end, those of the runs before it included
        for run in given.runs:
            recipe = _recipe(run)
            before = ends.get(recipe["start"], 0)
            ends[recipe["name"]] = before + int(recipe["steps"])
            for one in over_run(run, base, found, before):
                print(markdown([one]).splitlines()[-1], flush=True)
                found.append(one)
                write_text(kept, json.dumps([asdict(one) for one in found], indent=1) + "\n")  # a look takes a while
        write_text(given.out / "adaptation.md", markdown(found))
        figure(found, given.out / "adaptation.png")
    except SinkscopeError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
