"""Tables of README and pages, made from committed runs: docs/generate.py fills what stands between their markers."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from sinkscope.conditions import Condition
from sinkscope.results.claim_tests import definition_of
from sinkscope.results.findings import list_findings
from sinkscope.results.rows import Cell, Dynamics, Results, need_results

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
LAB = ROOT / "lab" / "results"
MARKER = re.compile(r"<!-- numbers: (?P<name>\w+) -->\n.*?<!-- /numbers -->", re.S)

# Conditions as study files have them.
Entry = Mapping[str, Any]
SINK: Entry = {"rule": "head_share", "epsilon": 0.3}
NONE: Entry = {"name": "none"}
STRONG: Entry = {"name": "mask_sinks", "k": 1, "above": SINK}
TOP: Entry = {"name": "mask_sinks", "k": 1}
RANDOM: Entry = {"name": "mask_random", "k": 1, "match": "mass"}
LAST_ROW: Entry = {"name": "mask_sinks", "k": 1, "rows": "last"}
OTHER: Entry = {
    "name": "mask_random", "k": 1, "kinds": "structural", "among": "prompt", "persist": True, "aligned": True, "above": SINK,
}  # fmt: skip
ALL_STRUCTURAL: Entry = {
    "name": "mask_others", "k": 1, "kinds": "structural", "among": "prompt", "scope": "all", "persist": True, "per": "model",
}  # fmt: skip
FIVE_RANDOM: Entry = {"name": "mask_random", "k": 5, "per": "model", "persist": True, "aligned": True, "avoid": 1}


def matched(of: str, *selectors: str) -> Entry:
    """The same amount removed row by row from the keys of `of`."""
    return {"name": "attenuate", "of": of, "matched": list(selectors), "above": SINK, "by": 1.0}


def weakened(by: float) -> Entry:
    """Strong sinks that lose this share of what they receive."""
    return {"name": "attenuate", "of": "sinks", "above": SINK, "by": by}


def random_mass(by: float) -> Entry:
    """Random keys of the strong sinks' mass, the same at every denoising step, that lose this share."""
    return {
        "name": "attenuate", "of": "random", "match": "mass", "above": SINK, "persist": True, "aligned": True, "by": by,
    }  # fmt: skip


def structural(of: str) -> Entry:
    """The most-attended key of a kind, or random keys of its mass."""
    return {"name": of, "k": 1, "kinds": "structural", **({"match": "mass"} if of == "mask_random" else {})}


# ---- cells of a run


@cache
def open_run(folder: Path) -> Results:
    """A committed run."""
    return need_results(folder)


# The most-attended key of the pair was masked in runs of the same models, problems and protocol, which cached as well.
SAME_PROTOCOL = {
    "matched-sums-arm": ("two-by-two-arm", "recompute=True"),
    "matched-sums-dlm": ("two-by-two-dlm", "cache=whole"),
}


def cell_of(run: Path, model: str, task: str, entry: Entry, setting: str = "") -> Cell | None:
    """The cell of this condition; setting: a word of the decode setting, such as `recompute=True`."""
    wanted = Condition.read(dict(entry))[0]
    if entry is TOP and run.name in SAME_PROTOCOL:
        name, setting = SAME_PROTOCOL[run.name]
        run = run.parent / name
    rows = [*open_run(run).cells, *open_run(run).pooled]
    for cell in rows:
        at = (cell.model, cell.task) == (model, task) and setting in cell.setting
        if at and Condition.from_dict(cell.condition) == wanted:
            return cell
    return None


def write_change(cell: Cell | None) -> str:
    """A change of accuracy in points, with its 95 % interval."""
    if cell is None:
        return "–"
    low, middle, high = (100 * one for one in (cell.difference_low, cell.difference, cell.difference_high))
    text = f"{middle:+.1f} [{low:+.1f}, {high:+.1f}]".replace("-", "−")
    return text.replace("+0.0 ", "0.0 ")


def write_removed(cell: Cell | None) -> str:
    """The share of all attention that was removed."""
    return "–" if cell is None or cell.mass_share is None else f"{100 * cell.mass_share:.1f} %"


def write_keys(cell: Cell | None) -> str:
    """The share of all (head, key) pairs that were changed."""
    return "–" if cell is None or cell.key_share is None else f"{100 * cell.key_share:.1f} %"


def write_table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = "|" + "---|" * len(head)
    return "\n".join([f"| {' | '.join(head)} |", rule, *(f"| {' | '.join(line)} |" for line in lines)])


def effect_lines(
    rows: Mapping[str, Entry], runs: Sequence[tuple[Path, str, str]], task: str, keys: bool = False
) -> list[list[str]]:
    """A line per condition: of each (run, model, setting) the change and the attention removed; without what no run has."""
    lines = []
    for name, entry in rows.items():
        cells = [cell_of(run, model, task, entry, setting) for run, model, setting in runs]
        if not any(cells):
            continue
        line = [name]
        for cell in cells:
            line += [write_change(cell), write_removed(cell), *([write_keys(cell)] if keys else [])]
        lines.append(line)
    return lines


def plain_line(runs: Sequence[tuple[Path, str, str]], task: str, width: int = 2) -> list[str]:
    """What each model answers with nothing masked."""
    line = ["nothing (accuracy)"]
    for run, model, setting in runs:
        cell = cell_of(run, model, task, NONE, setting)
        line += ["–" if cell is None else f"{100 * cell.accuracy:.1f} % of {cell.n}", *["–"] * (width - 1)]
    return line


# ---- the pair

PAIR = RESULTS / "pair"
MATCHED_ROWS: dict[str, Entry] = {
    "strong sinks masked (keys with a mean attention above 0.3)": STRONG,
    "the most-attended key masked, sink or not": TOP,
    "one other special token masked in the same heads": OTHER,
    "strong sinks attenuated: each query takes the smaller of what it gives to the sink and to all others": matched(
        "sinks", "sinks", "others"
    ),
    "the other keys attenuated by that same amount": matched("others", "sinks", "others"),
    "main sink kept, all other special tokens of the prompt masked": ALL_STRUCTURAL,
}
FURTHER_ROWS: dict[str, Entry] = {
    "one other prompt token of any kind masked in the same heads": {
        "name": "mask_random", "k": 1, "among": "prompt", "persist": True, "aligned": True, "above": SINK,
    },
    "sinks attenuated, at most what special or content tokens receive": matched("sinks", "sinks", "structural", "content"),
    "special tokens attenuated by the same amount": matched("structural", "sinks", "structural", "content"),
    "content tokens attenuated by the same amount": matched("content", "sinks", "structural", "content"),
    "random tokens of the sinks' mass attenuated by 66 %": random_mass(0.66),
    "the same tokens, at most what the sink receives": {**random_mass(1.0), "matched": ["sinks", "random"]},
}  # fmt: skip


def matched_runs(more: str = "") -> list[tuple[Path, str, str]]:
    """The row-matched runs of both models; more: "-more" for their further conditions."""
    models = {"arm": "smol-llama", "dlm": "smol-dream"}
    runs = [(PAIR / f"matched-sums-{kind}{more}", model, "") for kind, model in models.items()]
    return [one for one in runs if (one[0] / "results.json").is_file()]


def head_of(runs: Sequence[tuple[Path, str, str]], keys: bool = False) -> list[str]:
    kinds = {"smol-llama": "autoregressive", "smol-dream": "diffusion"}
    more = ["key–head pairs changed"] if keys else []
    columns = [[f"{kinds[model]}: accuracy", "attention removed", *more] for _, model, _ in runs]
    return ["changed in every head", *(word for words in columns for word in words)]


def matched_table() -> str:
    """The rows of the README: both models of the pair, every denoising step recomputed."""
    runs = matched_runs()
    return write_table(head_of(runs), [plain_line(runs, "arithmetic"), *effect_lines(MATCHED_ROWS, runs, "arithmetic")])


def matched_more() -> str:
    """Every condition of the same runs, with the share of key–head pairs that it changed."""
    return matched_keys(MATCHED_ROWS, "")


def matched_further() -> str:
    """Further conditions of the same kind, with fewer problems."""
    return matched_keys(FURTHER_ROWS, "-more")


def matched_keys(rows: Mapping[str, Entry], more: str) -> str:
    runs = matched_runs(more)
    lines = [plain_line(runs, "arithmetic", 3), *effect_lines(rows, runs, "arithmetic", keys=True)]
    return write_table(head_of(runs, keys=True), lines)


def two_by_two() -> str:
    """Strong sinks masked with and without a cache, in arithmetic problems and programs."""
    runs = [
        (PAIR / "two-by-two-arm", "smol-llama", "recompute=False"),
        (PAIR / "two-by-two-arm", "smol-llama", "recompute=True"),
        (PAIR / "two-by-two-dlm", "smol-dream", "cache=prefix"),
        (PAIR / "two-by-two-dlm", "smol-dream", "cache=whole"),
    ]
    names = ["smol-llama, cached", "smol-llama, recomputed", "smol-dream, cached", "smol-dream, recomputed"]
    lines = []
    for task in ("arithmetic", "programs"):
        for what, entry in (("strong sinks", STRONG), ("most-attended key", TOP)):
            cells = [cell_of(run, model, task, entry, setting) for run, model, setting in runs]
            lines.append([f"{what}: {task}", *(f"{write_change(one)}; {write_removed(one)}" for one in cells)])
    return write_table(["masked in every head", *names], lines)


TRAININGS = {
    "smol-llama": ("two-by-two-arm", "causal, next token", "recompute=True"),
    "twin-llama-1": ("twin-llama-1", "causal, next token", ""),
    "twin-prefix-llama": ("twin-prefix-llama", "prompt in both directions, next token", ""),
    "twin-causal-dream": ("twin-causal-dream", "causal, masked tokens", ""),
    "smol-dream": ("two-by-two-dlm", "both directions, masked tokens", "cache=whole"),
    "twin-dream-varied": ("twin-dream-varied", "both directions, masked tokens", ""),
    "twin-dream-1": ("twin-dream-1", "both directions, masked tokens", ""),
    "twin-dream-2": ("twin-dream-2", "both directions, masked tokens", ""),
}


def trainings() -> str:
    """Strong sinks masked in every model of this recipe that was trained."""
    lines = []
    for model, (run, kind, setting) in TRAININGS.items():
        plain, cell, other = (
            cell_of(PAIR / run, model, "arithmetic", one, setting) for one in (NONE, STRONG, FIVE_RANDOM)
        )
        assert plain is not None and cell is not None
        right = f"{100 * plain.accuracy:.0f} % of {plain.n}"
        effects = [write_change(cell), write_removed(cell), write_change(other), write_removed(other)]
        lines.append([model, kind, right, *effects])
    head = [
        "model", "attention and objective", "accuracy", "strong sinks masked", "attention removed", "five random keys masked",
        "attention removed",
    ]  # fmt: skip
    return write_table(head, lines)


def dose_response() -> str:
    """Strong sinks attenuated step by step, beside random keys; n differs by column."""
    llama = [(PAIR / name, "smol-llama", "") for name in ("doses-40", "doses-high")]
    dream = [(PAIR / name, "smol-dream", "") for name in ("doses-40", "doses-high", "doses-dream-20")]
    rows: dict[str, Entry] = {
        **{f"strong sinks attenuated by {100 * by:g} %": weakened(by) for by in (0.22, 0.33, 0.66, 0.85, 0.95)},
        "strong sinks masked": STRONG,
        **{f"random keys of that mass attenuated by {100 * by:g} %": random_mass(by) for by in (0.22, 0.66, 1.0)},
    }
    lines = []
    for name, entry in rows.items():
        line = [name]
        for runs in (llama, dream):
            found = [cell_of(run, model, "arithmetic", entry, setting) for run, model, setting in runs]
            cell = next((one for one in found if one is not None), None)
            line += [write_change(cell), "–" if cell is None else f"{write_removed(cell)}, n = {cell.n}"]
        lines.append(line)
    head = ["condition", "smol-llama: accuracy", "attention removed", "smol-dream: accuracy", "attention removed"]
    return write_table(head, lines)


# ---- other models


def changes_by_model(rows: Mapping[str, tuple[str, Entry]], models: Sequence[str], task: str, folder: str) -> str:
    """A line per condition and a column per model: change; attention removed. rows: name → (run, condition)."""
    lines = []
    for name, (run, entry) in rows.items():
        cells = [cell_of(RESULTS / folder / run, model, task, entry) for model in models]
        lines.append([name, *(f"{write_change(one)}; {write_removed(one)}" if one else "–" for one in cells)])
    return write_table(["changed in every head", *models], lines)


TINY = ("tiny-llada", "tiny-dream", "tiny-mmada")


def tiny_masking() -> str:
    """One key per head masked in the tiny diffusion models, arithmetic problems."""
    rows = {
        "strong sinks": ("strong", STRONG),
        "most-attended key": ("fair", TOP),
        "random keys up to its mass": ("fair", RANDOM),
        "most-attended special token": ("fair", structural("mask_sinks")),
        "random special tokens up to its mass": ("fair", structural("mask_random")),
    }
    return changes_by_model(rows, TINY, "arithmetic", "paper")


def both_modes() -> str:
    """tiny-nemotron in its two modes, all tasks together."""
    rows = {
        "strong sinks": ("both-modes", STRONG),
        "random keys up to their mass": ("both-modes", {"name": "mask_random", "k": 1, "match": "mass", "above": SINK}),
        "most-attended key, ranked by all queries": ("both-modes", TOP),
        "random keys up to its mass": ("both-modes", RANDOM),
        "most-attended key, ranked by the last query": ("both-modes", LAST_ROW),
        "position 0": ("both-modes", {"name": "mask_positions", "positions": [0], "since": "second"}),
        **{name: ("matched", entry) for name, entry in MATCHED_ROWS.items() if entry is not STRONG},
    }
    return changes_by_model(
        rows, [f"tiny-nemotron ({mode})" for mode in ("autoregressive", "diffusion")], "all", "nemotron"
    )


def block_causal() -> str:
    """tiny-sdar with and without its cache, arithmetic problems and programs together."""
    rows: dict[str, tuple[str, Entry]] = {
        "strong sinks, no cache": ("matched", STRONG),
        **{f"{name}, no cache": ("matched", entry) for name, entry in MATCHED_ROWS.items() if entry is not STRONG},
        "most-attended key by column sum, no cache": ("whole", TOP),
        "random keys up to its mass, no cache": ("whole", RANDOM),
        "most-attended key per query that sees it, no cache": ("whole", {**TOP, "score": "per_row"}),
        "random keys up to its mass per query, no cache": ("whole", {**RANDOM, "score": "per_row"}),
        "most-attended key, exact cache": ("cached", TOP),
        "most-attended special token, exact cache": ("cached", structural("mask_sinks")),
        "most-attended content token, exact cache": ("cached", {"name": "mask_sinks", "k": 1, "kinds": "content"}),
    }  # fmt: skip
    return changes_by_model(rows, ["tiny-sdar"], "all", "block_causal")


def weaker_sinks() -> str:
    """Ways to weaken or hold sinks: change of accuracy over both tasks, and the share of attention on sinks."""
    rows: dict[str, Entry] = {
        "scores divided by 1.25": {"name": "soften", "temperature": 1.25},
        "scores divided by 2": {"name": "soften", "temperature": 2.0},
        "most-attended key 1 nat lower": {"name": "penalise_sinks", "k": 1, "penalty": 1.0},
        "8 added to the softmax denominator": {"name": "off_by_one", "weight": 8.0},
        "one extra key": {"name": "add_sink_token"},
        "first most-attended key held, 2 nats higher": {"name": "hold_sinks", "k": 1, "bonus": 2.0},
    }
    run, models = RESULTS / "control" / "control", TINY
    lines = [
        ["nothing", *(f"{100 * _accuracy(run, model):.1f} %; {_absorption(run, model, 'none')}" for model in models)]
    ]
    for name, entry in rows.items():
        label = Condition.read(dict(entry))[0].label
        line = [name]
        for model in models:
            cell = cell_of(run, model, "all", entry)
            line.append("–" if cell is None else f"{write_change(cell)}; {_absorption(run, model, label)}")
        lines.append(line)
    return write_table(["condition", *models], lines)


def _accuracy(run: Path, model: str) -> float:
    cell = cell_of(run, model, "all", NONE)
    assert cell is not None
    return cell.accuracy


def _absorption(run: Path, model: str, condition: str) -> str:
    """The share of all attention that goes to sinks."""
    rows: list[Dynamics] = [row for row in open_run(run).dynamics if (row.model, row.condition) == (model, condition)]
    value = rows[0].to_dict().get("absorption") if rows else None
    return "–" if value is None else f"{100 * value:.1f} %"


def patched_values() -> str:
    """Values of the most-attended key replaced, arithmetic problems and programs together."""
    patch: Entry = {"name": "patch_values", "k": 1, "source": "next"}
    rows: dict[str, tuple[str, Entry]] = {
        "value of the next problem": ("patches", patch),
        "the same for one random key": ("patches", {**patch, "of": "random"}),
        "its own value of the first denoising step": ("patches", {**patch, "source": "first"}),
        "value of the next problem, at mask tokens only": ("patches-masks", {**patch, "kinds": ["mask"]}),
    }
    return changes_by_model(rows, TINY, "all", "control")


def silenced_heads() -> str:
    """The most and least important heads silenced, 100 arithmetic problems."""
    lines = []
    for model in ("tiny-llama", *TINY, "smol-llama", "smol-dream"):
        run = LAB / "inside" / "answers" / f"heads-{model}"
        cells = open_run(run).cells
        changed = [cell for cell in cells if cell.condition["name"] not in ("none", "noop")]
        plain = next(cell for cell in cells if cell.condition["name"] == "none")
        lines.append([model, f"{100 * plain.accuracy:.0f} %", *map(write_change, changed)])
    others = "as many others of their layers"
    return write_table(["model", "accuracy", "most important heads", others, "least important heads", others], lines)


def kept_keys() -> str:
    """A sparse cache that keeps a quarter of the keys, arithmetic and recall together; tiny-long: needle and errands."""
    rows: dict[str, Entry] = {
        "all keys, refreshed once per block": {"name": "sparse_cache", "by": "received", "keep": 1.0},
        "the most-attended quarter": {"name": "sparse_cache", "by": "received", "keep": 0.25},
        "sinks by the paper's rule, then the nearest": {"name": "sparse_cache", "by": "sinks", "keep": 0.25},
        "the nearest": {"name": "sparse_cache", "by": "recent", "keep": 0.25},
        "a random quarter": {"name": "sparse_cache", "by": "random", "keep": 0.25},
    }
    runs = [*((RESULTS / "cache" / "cache", model) for model in TINY), (RESULTS / "cache" / "cache-long", "tiny-long")]
    lines = [["no cache (accuracy)", *(f"{100 * _accuracy(run, model):.1f} %" for run, model in runs)]]
    for name, entry in rows.items():
        lines.append([name, *(write_change(cell_of(run, model, "all", entry)) for run, model in runs)])
    return write_table(["keys kept", *(model for _, model in runs)], lines)


def movement() -> str:
    """Heads whose sink stays in place while the answer is written, by every definition of the study `paper`."""
    models = ("smol-llama", "smol-dream")
    rows = [
        row for row in open_run(RESULTS / "paper" / "paper").dynamics if row.part == "answer" and row.model in models
    ]
    found: dict[str, dict[str, str]] = {}
    for row in rows:
        share = (row.intervals or {}).get("static")
        if share is not None:
            text = f"{100 * share.value:.0f} [{100 * share.low:.0f}, {100 * share.high:.0f}]"
            found.setdefault(definition_of(row), {})[row.model] = text
    lines = [[name, *(values.get(model, "–") for model in models)] for name, values in found.items()]
    return write_table(["definition", *models], lines)


def simulation() -> str:
    """How often the verdict on masked strong sinks is right where the truth is known, from the simulation's own table."""
    names = {
        "true: 0 points": "masking changes accuracy by 0 points", "true: 1 point": "by −1 point",
        "false: 15 points": "by −15 points", "false: 40 points": "by −40 points",
    }  # fmt: skip
    found: dict[str, dict[str, str]] = {}
    for line in (LAB / "verdicts" / "simulation.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] == "strong_sink" and cells[1] in names:
            found.setdefault(cells[1], {})[cells[2]] = cells[4].replace("**", "")
    sizes = list(next(iter(found.values())))
    lines = [[names[truth], *(values[n] for n in sizes)] for truth, values in found.items()]
    return write_table(["truth", *(f"n = {n}" for n in sizes)], lines)


def findings() -> str:
    """The three findings of the study `paper`, as terminal and page say them."""
    found = list_findings(open_run(RESULTS / "paper" / "paper"))
    return "\n".join(f"{number}. {one.sentence}" for number, one in enumerate(found, 1))


def movement_parts() -> str:
    """Heads that keep their sink in place while the answer is written and behind its end, by definition of a sink."""
    found: dict[str, dict[tuple[str, str], str]] = {}
    for line in (LAB / "pair" / "relocation.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0].startswith("smol-"):
            model, part, rule, *_, static, _intermittent, relocating = cells
            found.setdefault(rule, {})[model, part] = f"{static}; {relocating}"
    columns = [(model, part) for model in ("smol-llama", "smol-dream") for part in ("answer", "rest")]
    names = {"answer": "while the answer is written", "rest": "behind its end"}
    head = ["definition of a sink", *(f"{model}, {names[part]}" for model, part in columns)]
    return write_table(head, [[rule, *(cells[column] for column in columns)] for rule, cells in found.items()])


def rival_code(way: str) -> str:
    """A function of the rivals' benchmark as a code block: what a user of that library writes for the same task."""
    text = (ROOT / "benchmarks" / "rivals.py").read_text(encoding="utf-8")
    parts = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef) and node.name == way]
    return f"```py\n{ast.get_source_segment(text, parts[0])}\n```"


def rivals() -> str:
    """The table of the rivals' benchmark."""
    lines = (LAB / "rivals.md").read_text(encoding="utf-8").splitlines()
    return "\n".join(line for line in lines if line.startswith("|"))


BLOCKS: dict[str, Callable[[], str]] = {
    "matched": matched_table,
    "matched_more": matched_more,
    "matched_further": matched_further,
    "findings": findings,
    "movement": movement,
    "movement_parts": movement_parts,
    "simulation": simulation,
    "two_by_two": two_by_two,
    "trainings": trainings,
    "dose_response": dose_response,
    "tiny_masking": tiny_masking,
    "both_modes": both_modes,
    "block_causal": block_causal,
    "weaker_sinks": weaker_sinks,
    "patched_values": patched_values,
    "silenced_heads": silenced_heads,
    "kept_keys": kept_keys,
    "rivals": rivals,
    "rival_sinkscope": partial(rival_code, "with_sinkscope"),
    "rival_transformerlens": partial(rival_code, "with_transformerlens"),
    "rival_nnsight": partial(rival_code, "with_nnsight"),
}


def fill(text: str) -> str:
    """A page with every block of numbers made anew."""

    def block(found: re.Match[str]) -> str:
        return f"<!-- numbers: {found['name']} -->\n{BLOCKS[found['name']]()}\n<!-- /numbers -->"

    return MARKER.sub(block, text)


def pages() -> dict[Path, str]:
    """Every page with numbers, as it should be."""
    paths = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    texts = {path: path.read_text(encoding="utf-8") for path in paths}
    return {path: fill(text) for path, text in texts.items() if MARKER.search(text)}
