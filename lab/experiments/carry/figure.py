"""The figure "what can be read at sinks, and when", from the files that `python -m lab.experiments.carry` wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sinkscope.errors import ReadingError
from sinkscope.files import replace_file

ORDER = ("tiny-llada", "tiny-dream", "tiny-mmada", "tiny-llama")
COLOURS = {"sinks": "#c2410c", "others": "#64748b"}
NAMES = {"sinks": "at sinks", "others": "at matched positions"}


def read_folder(folder: Path) -> dict[str, dict[str, Any]]:
    """Every model's file, in the family's order."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            found[str(values["model"])] = values
            _ = values["readings"], values["probes"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ReadingError(
                f"{path} is not a file of readings ({type(error).__name__}: {error}); remove it, or name another folder."
            ) from None
    if not found:
        raise ReadingError(
            f"Expected readings in {folder}, found none; run python -m lab.experiments.carry MODEL --out {folder}."
        )
    return dict(sorted(found.items(), key=lambda item: ORDER.index(item[0]) if item[0] in ORDER else len(ORDER)))


def draw(folder: Path) -> Path:
    """Three rows: the token that is committed there by layer, the same by quarter of the steps, and the probe's clock."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    models = {name: values for name, values in read_folder(folder).items() if not values["causal"]}
    if not models:
        raise ReadingError(f"Expected a diffusion model among the readings in {folder}, whose masks can be read.")
    drawn, panels = plt.subplots(3, len(models), figsize=(3.6 * len(models), 8.4), layout="constrained", squeeze=False)
    for column, (name, values) in enumerate(models.items()):
        _by_layer(panels[0, column], values)
        _by_quarter(panels[1, column], values)
        _clock(panels[2, column], values)
        panels[0, column].set_title(f"{name}, {values['problems']} problems")
    panels[0, 0].set_ylabel("probability of the token\ncommitted there in the end")
    panels[1, 0].set_ylabel("the same in the middle layer")
    panels[2, 0].set_ylabel("probe: masks left, r²")
    drawn.legend(
        *panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False, fontsize=8,
        title="Bands: 95 % intervals over problems, of the difference in the upper rows, of each r² in the lowest",
        title_fontsize=8,
    )  # fmt: skip
    out = folder / "carry.png"
    with replace_file(out) as partial:
        drawn.savefig(partial, dpi=140, format="png")
    plt.close(drawn)
    return out


def rows_of(values: dict[str, Any], subset: str, measure: str, quarter: int = -1) -> list[dict[str, Any]]:
    wanted = (subset, measure, quarter)
    return [row for row in values["readings"] if (row["subset"], row["measure"], row["quarter"]) == wanted]


def spoken(values: dict[str, Any]) -> str:
    """Whose token the row of a position is trained to say: its own, or in a shifted family its right neighbour's."""
    return "right" if values["shift"] else "own"


def _by_layer(panel: Any, values: dict[str, Any]) -> None:
    target = spoken(values)
    for subset, style in (("masked", "-"), ("masked alike", ":")):
        rows = rows_of(values, subset, f"probability {target}")
        for who, colour in COLOURS.items():
            label = NAMES[who] if subset == "masked" else f"{NAMES[who]}, committed alike"
            panel.plot([row["layer"] for row in rows], [row[who] for row in rows], style, color=colour, label=label)
        if subset == "masked":
            panel.fill_between(
                [row["layer"] for row in rows], [row["others"] + row["low"] for row in rows],
                [row["others"] + row["high"] for row in rows], color=COLOURS["sinks"], alpha=0.18, linewidth=0,
            )  # fmt: skip
    panel.set(xlabel="layer" + (" (its right neighbour's token)" if target == "right" else ""), ylim=(0, 1))


def _by_quarter(panel: Any, values: dict[str, Any]) -> None:
    measure = f"probability {spoken(values)}"
    layer = max(row["layer"] for row in values["readings"]) // 2
    points = [
        (quarter, row) for quarter in range(4) for row in rows_of(values, "masked", measure, quarter) if row["layer"] == layer
    ]  # fmt: skip
    for who, colour in COLOURS.items():
        panel.plot([quarter for quarter, _ in points], [row[who] for _, row in points], "o-", color=colour)
    panel.fill_between(
        [quarter for quarter, _ in points], [row["others"] + row["low"] for _, row in points],
        [row["others"] + row["high"] for _, row in points], color=COLOURS["sinks"], alpha=0.18, linewidth=0,
    )  # fmt: skip
    panel.set(
        xlabel=f"quarter of the denoising steps (layer {layer})",
        ylim=(0, 1),
        xticks=range(4),
        xticklabels=("1st", "2nd", "3rd", "4th"),
    )


def _clock(panel: Any, values: dict[str, Any]) -> None:
    rows = [row for row in values["probes"] if row["label"] == "left"]
    for who, colour in COLOURS.items():
        layers = [row["layer"] for row in rows]
        panel.plot(layers, [row[who] for row in rows], color=colour)
        panel.fill_between(
            layers, [row[f"{who}_low"] for row in rows], [row[f"{who}_high"] for row in rows], color=colour, alpha=0.18,
            linewidth=0,
        )  # fmt: skip
        panel.plot(layers, [row[f"{who}_by_place"] for row in rows], "--", color=colour, linewidth=0.8)
        panel.plot(layers, [row[f"{who}_shuffled"] for row in rows], ":", color=colour, linewidth=0.8)
    panel.set(xlabel="layer (dashed: place alone; dotted: shuffled)", ylim=(-0.1, 1))
