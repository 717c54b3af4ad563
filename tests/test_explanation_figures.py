"""Figures of the explanation pages and of the README: every cell of a table, and the sentences that conclude from them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import polars as pl
import pytest

from documented import RESULTS, ROOT, change, dynamics, numbers, read, row, rows_of, same, table
from sinkscope.statistics import change_interval

HERE = "docs/explanation"
TOP, STRONG = "mask sinks K=1 clean by all rows", "mask sinks K=1 clean by all rows above head_share,all,0.3"
RANDOM = TOP.replace("sinks", "random").replace("clean", "clean mass")
RANDOM_STRONG = STRONG.replace("sinks", "random").replace("clean", "clean mass")
FIRST, LATER = "mask positions 0", "mask positions 0 since the second forward"
NEMOTRON = "nemotron/both-modes.json"
MODES = ("tiny-nemotron (autoregressive)", "tiny-nemotron (diffusion)")


def curve(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (RESULTS / "training" / f"{name}.jsonl").read_text().splitlines()]


def step(name: str, number: int) -> dict[str, Any]:
    return next(one for one in curve(name) if one["step"] == number)


# One model in both modes.


def test_scores_of_both_modes() -> None:
    scores = read("training/tiny-nemotron.scores.json")
    for kind, *cells in table(f"{HERE}/both-modes.md", "kind")[1:]:
        for written, mode in zip(cells, ("autoregressive", "diffusion"), strict=True):
            found = next(one for one in scores if one["kind"] == kind and one["asked"].endswith(mode))
            assert found["n"] == 200
            same(written.replace("–", " "), [100 * found[name] for name in ("accuracy", "low", "high")], kind)


def test_sinks_of_both_modes() -> None:
    autoregressive, diffusion = (dynamics(NEMOTRON, model) for model in MODES)
    autoregressive = {
        **autoregressive,
        **{name: autoregressive["columns"][name] for name in ("static", "moving", "none")},
    }
    measured: dict[str, Callable[[dict[str, Any]], float]] = {
        "heads with a static sink": lambda one: one["static"],
        "heads with a moving sink": lambda one: one["moving"],
        "heads without a sink": lambda one: one["none"],
        "sinks at position 0": lambda one: one["places"]["first"],
        "sinks among the first four positions": lambda one: one["places"]["start"],
        "sinks in the prompt": lambda one: one["places"]["prompt"],
        "attention that key 0 draws": lambda one: one["intervals"]["key_0"]["value"],
        "keys above 0.3 of a head (strong sinks)": lambda one: one["rules"][1]["sink_share"],
    }
    rows = table(f"{HERE}/both-modes.md", "")[1:]
    assert [name for name, *_ in rows] == list(measured)
    for name, *cells in rows:
        for written, one in zip(cells, (autoregressive, diffusion), strict=True):
            same(written, [100 * measured[name](one)], name)


def test_what_each_mode_needs() -> None:
    last, random_last = TOP.replace("all rows", "last row"), RANDOM.replace("all rows", "last row")
    labels = [TOP, RANDOM, STRONG, RANDOM_STRONG, last, random_last, LATER]
    _, nothing, *rows = table(f"{HERE}/both-modes.md", "masked in every head")
    for written, model in zip(nothing[1:], MODES, strict=True):
        same(written, [100 * row(NEMOTRON, model, "none")["accuracy"]])
    for (name, *cells), label in zip(rows, labels, strict=True):
        for written, model in zip(cells, MODES, strict=True):
            if written == "–":
                assert not any(one["model"] == model and one["label"] == label for one in rows_of(NEMOTRON))
                continue
            found = row(NEMOTRON, model, label)
            same(written, [*change(found), 100 * found["mass_share"]], name)


# Controlling sinks, and what they carry.


def test_controlled_sinks() -> None:
    run = "control/control.json"
    labels = ["none", "soften 1.25", "soften 2", "penalise sinks K=1 by 1 clean by all rows", "off by one 8",
              "add sink token", "hold sinks K=1 by 2 clean by all rows"]  # fmt: skip
    head, *rows = table(f"{HERE}/controlling-sinks.md", "condition")
    for (name, *cells), label in zip(rows, labels, strict=True):
        for model, written in zip(head[1:], cells, strict=True):
            if written == "–":
                continue
            found, seen = row(run, model, label), dynamics(run, model, label)
            share = 100 * (seen["columns"] if found["causal"] else seen)["absorption"]
            answers = [100 * found["accuracy"]] if label == "none" else change(found)
            same(written, [*answers, share], f"{name}, {model}")


def test_moved_values() -> None:
    whole, masks = "control/patches.json", "control/patches-masks.json"
    sources = [(whole, "patch values K=1 clean from next by all rows"),
               (whole, "patch values K=1 clean random from next by all rows"),
               (whole, "patch values K=1 clean from first by all rows"),
               (masks, "patch values K=1 clean from next by all rows mask")]  # fmt: skip
    head, *rows = table(f"{HERE}/what-sinks-carry.md", "top key's value")
    for (name, *cells), (run, label) in zip(rows, sources, strict=True):
        for model, written in zip(head[1:], cells, strict=True):
            same(written, change(row(run, model, label)), f"{name}, {model}")


def test_what_can_be_read_at_sinks() -> None:
    for model, *cells in table(f"{HERE}/what-sinks-carry.md", "")[1:]:
        run = read(f"carry/{model}.json")
        wanted = ("masked", -1, "probability right" if run["shift"] else "probability own", 2)
        (found,) = (
            one for one in run["readings"]
            if (one["subset"], one["quarter"], one["measure"], one["layer"]) == wanted
        )  # fmt: skip
        same(" ".join(cells), [found[name] for name in ("sinks", "others", "low", "high")], model)


# Block-causal attention, caches, protocols, training.


def test_masking_under_block_causal_attention() -> None:
    whole, cached = "block_causal/whole.json", "block_causal/results.json"
    sources = [(whole, TOP), (whole, f"{TOP} per row that sees it"), (cached, TOP), (cached, f"{TOP} structural"),
               (cached, f"{TOP} content")]  # fmt: skip
    for (name, written, beyond), (run, label) in zip(
        table(f"{HERE}/block-causal.md", "masked")[1:], sources, strict=True
    ):
        found = row(run, "tiny-sdar", label)
        same(written, change(found), name)
        same(beyond, change(found["controls"]["mass"]), name)


def test_places_under_block_causal_attention() -> None:
    found = {name: cells for name, *cells in table("docs/results/block_causal/places.md", "rule")[1:]}
    rules = ("column sums", "0.3 per query", "0.2 per query")
    for (name, each, start, block), rule in zip(table(f"{HERE}/block-causal.md", "rule")[1:], rules, strict=True):
        same(each, [float(one) for one in numbers(found[rule][0])], name)
        same(start, [float(one) for one in numbers(found[rule][2])], name)
        wanted = [float(one) for one in numbers(found[rule][4])]
        same(block, wanted if "[" in block else wanted[:1], name)


def test_which_keys_a_cache_must_keep() -> None:
    ways = ["none", *(f"sparse cache by {by} keep=0.25" for by in ("received", "sinks", "recent"))]
    head, *rows = table(f"{HERE}/speed-from-sinks.md", "kept")
    for (name, *cells), label in zip(rows, ways, strict=True):
        for model, written in zip((one.partition(" ")[0] for one in head[1:]), cells, strict=True):
            run = "cache/cache-long.results.json" if model == "tiny-long" else "cache/results.json"
            same(written, [100 * row(run, model, label)["accuracy"]], f"{name}, {model}")


def test_what_a_cache_saves() -> None:
    """As docs/results/decode.md has it, which its benchmark wrote."""
    found = {(canvas, name): cells for canvas, name, *cells in table("docs/results/decode.md", "canvas")[1:]}
    for canvas, per_block, over_none, over_dual in table(f"{HERE}/speed-from-sinks.md", "positions")[1:]:
        each, shared = (found[canvas, name] for name in ("sparse, keep 1/4", "sparse, keep 1/4, a look for 4 blocks"))
        for written, measured in ((per_block, each[4]), (over_none, shared[3]), (over_dual, shared[4])):
            same(written, [float(measured.removesuffix(" ×"))], canvas)


def test_since_when() -> None:
    (arm,) = (one for one in read("protocols/protocols.json") if one["model"] == "smollm2-135m")
    found = {one["label"]: one["nats_change"] for one in arm["rows"]}
    _, first, later, random = table(f"{HERE}/since-when.md", "key 0 hidden")
    same(first[1], found["position 0, (a)"])
    same(later[1], found["position 0, (b)"])
    same(random[1].partition(",")[0], [found["random key, (a)"][0], found["random key, (b)"][0]])
    for name in ("random key, (a)", "random key, (b)"):
        assert found[name][1] < 0 < found[name][2]
    models = {one["model"]: {each["label"]: each for each in one["rows"]} for one in read("protocols/diffusion.json")}
    head, *rows = table(f"{HERE}/since-when.md", "")
    wanted = [("top key, recomputed", "change"), ("top key, prefix cache", "change"),
              ("top key, prefix cache", "beyond_recomputed")]  # fmt: skip
    for (name, *cells), (label, field) in zip(rows, wanted, strict=True):
        for model, written in zip(head[1:], cells, strict=True):
            same(written, [100 * one for one in models[model][label][field]], f"{name}, {model}")


def test_ways_to_control_sinks_in_training() -> None:
    names = {"nothing changed": "plain", "off-by-one softmax": "off-by-one", "sink token": "sink-token",
             "no begin token": "no-begin"}  # fmt: skip
    for name, loss, heads, slot in table(f"{HERE}/training-and-sinks.md", "run")[1:]:
        kind, _, way = name.partition(", ")
        run = f"ablation-{'llada' if kind == 'diffusion' else 'llama'}-{names[way]}"
        first, last = curve(run)[0], curve(run)[-1]
        same(loss, [last["loss"]], name)
        same(heads, [100 * last["sink_share"]], name)
        if slot != "–":
            same(slot, [100 * last["slot_mass"], 100 * first["slot_mass"]], name)


# Sentences that conclude.


def sums(run: str, model: str, label: str) -> dict[str, Any]:
    return row(run, model, label, "arithmetic")


def cost(found: dict[str, Any]) -> list[float]:
    """What it costs, and its interval, in points."""
    middle, low, high = change(found)
    return [-middle, -high, -low]


def errors(condition: str) -> tuple[int, int]:
    """(wrong sums of smol-dream, those of them with one step too many), one token per step."""
    found = pl.read_parquet(RESULTS / "pair" / "error-types.parquet").filter(
        (pl.col("run") == "pair/one-by-one.parquet") & (pl.col("condition") == condition)
    )
    counts = dict(found["error"].value_counts().iter_rows())
    return sum(counts.values()) - counts["right"], counts["one step too many"]


PAIR, ONE, OWN = "pair/pair.json", "pair/one-by-one.json", "pair/own-token-40.json"


def loss(run: str, model: str, label: str, task: str = "arithmetic") -> float:
    return cost(row(run, model, label, task))[0]


def spread(values: Sequence[float]) -> list[float]:
    return [min(values), max(values)]


def softer() -> list[float]:
    """How much less of the attention goes to sinks with scores divided by 1.25, in %, per model."""
    found = []
    for model in ("tiny-llada", "tiny-dream", "tiny-mmada", "tiny-llama"):
        pair = [dynamics("control/control.json", model, label) for label in ("none", "soften 1.25")]
        before, after = ((one["columns"] if model == "tiny-llama" else one)["absorption"] for one in pair)
        found.append(100 * (1 - after / before))
    return found


def held() -> list[list[float]]:
    """Heads with a moving sink in %, before and with the first top key held."""
    labels = ("none", "hold sinks K=1 by 2 clean by all rows")
    return [
        [100 * dynamics("control/control.json", model, label)["moving"] for model in ("tiny-llada", "tiny-dream", "tiny-mmada")]
        for label in labels
    ]  # fmt: skip


FIVE = "mask random K=5 clean count by all rows per model persistent aligned avoiding 1"


def twin(name: str) -> float:
    """Points of sums that a twin loses without its strong sinks."""
    return loss(f"pair/{name}.json", name, STRONG)


def against_random(name: str) -> list[float]:
    """Points that strong sinks cost more than five random keys, on the same sums, and the interval."""
    answers = pl.read_parquet(RESULTS / "pair" / f"{name}.parquet")
    sinks, keys = (answers.filter(pl.col("condition") == one).sort("problem")["correct"] for one in (STRONG, FIVE))
    lost, won = int((keys & ~sinks).sum()), int((sinks & ~keys).sum())
    low, high = change_interval(lost, won, len(sinks))
    return [100 * (lost - won) / len(sinks), -100 * high, -100 * low]


def test_twins_that_were_trained_again() -> None:
    page = "docs/results/pair/twins.md"
    head, *rows = table(page, "masked in every head")
    labels = dict(zip(("nothing", "strong", "the top", "five"), ("none", STRONG, TOP, FIVE), strict=True))
    runs = {"smol-llama": PAIR, "smol-dream": ONE}
    for first, *cells in rows:
        label = next(label for words, label in labels.items() if first.startswith(words))
        for model, written in zip(head[1:], cells, strict=True):
            if written == "not measured":
                continue
            found = sums(runs.get(model, f"pair/{model}.json"), model, label)
            share = 100 * found["correct"] / found["n"]
            same(written, [share] if label == "none" else [*change(found), 100 * found["mass_share"]], model)
    said = (ROOT / page).read_text("utf-8")
    for words, name in (
        ("−25 points [−36, −14]", "twin-llama-1"), ("+20 [12, 29]", "twin-dream-1"),
        ("+25 [16, 35]", "twin-dream-2"), ("+22 [13, 32]", "twin-dream-varied"),
    ):  # fmt: skip
        assert words in said
        middle, low, high = against_random(name)
        same(words, [-middle, -high, -low], name)


def test_direction_apart_from_objective() -> None:
    head, *rows = table("docs/results/pair/twins.md", "masked, or measured")
    labels = {"nothing": "none", "strong": STRONG, "the top": TOP, "five": FIVE}
    for first, *cells in rows:
        for name, written in zip((cell.split()[0] for cell in head[1:]), cells, strict=True):
            run = f"pair/{name}.json"
            traced = dynamics(run, name)
            if first.startswith("attention on position 0"):
                measured = [100 * sum(layer["first_key"] for layer in traced["layers"]) / len(traced["layers"])]
            elif first.startswith("sinks among"):
                measured = [100 * traced["places"]["start"]]
            else:
                label = next(label for words, label in labels.items() if first.startswith(words))
                found = sums(run, name, label)
                share = 100 * found["correct"] / found["n"]
                measured = [share] if label == "none" else [*change(found), 100 * found["mass_share"]]
            same(written, measured, f"{name}, {first}")


ARM, DLM = "pair/two-by-two-arm.json", "pair/two-by-two-dlm.json"


def two(run: str, setting: str, label: str) -> dict[str, Any]:
    """Sums of one model under one protocol."""
    wanted = (setting, label, "arithmetic")
    return next(one for one in read(run)["cells"] if (one["setting"], one["label"], one["task"]) == wanted)


PREFIX, MORE, TWINS = "pair/twin-prefix-llama.json", "pair/twin-prefix-llama-more.json", "docs/results/pair/twins.md"
WEAKENED = "attenuate K=1 by {} sinks above head_share,all,0.3"


def story(model: str, part: str | None = None) -> dict[str, Any]:
    """Stories without a part of the strong sinks' attention; None: hidden."""
    run = f"pair/doses-stories-{'arm' if model == 'smol-llama' else 'dlm'}.json"
    return row(run, model, STRONG if part is None else WEAKENED.format(part), "stories")


def among(found: dict[str, Any]) -> list[float]:
    """What it costs, of how many points, and the interval of the cost."""
    middle, *interval = cost(found)
    return [middle, 100 * (found["accuracy"] - found["difference"]), *interval]


DOSES = {
    "strong sinks, by a third": WEAKENED.format("33%"),
    "strong sinks, by two thirds": WEAKENED.format("66%"),
    "strong sinks, by 85 %": WEAKENED.format("85%"),
    "strong sinks, hidden": STRONG,
    "random keys of their mass, by two thirds": "attenuate K=1 by 66% random mass persistent aligned above head_share,all,0.3",
    "the top content key": "attenuate K=1 by 100% sinks content",
    "another template token in the same heads": "mask instead K=1 clean 1 by all rows above head_share,all,0.3",
    "strong sinks: only their values set to zero": "zero values K=1 clean sinks by all rows above head_share,all,0.3",
}


def dosed(model: str, label: str) -> dict[str, Any]:
    runs = ("pair/doses-40.json", "pair/doses-high.json", "pair/doses-dream-20.json")
    return next(one for run in runs for one in rows_of(run) if (one["model"], one["label"]) == (model, label))


def test_doses_of_the_pair() -> None:
    head, *rows = table(f"{HERE}/the-pair.md", "what is weakened or hidden")
    assert [row[0] for row in rows] == list(DOSES)
    for first, *cells in rows:
        for model, written in zip(head[1:], cells, strict=True):
            if written != "not measured":
                found = dosed(model, DOSES[first])
                same(written, [*change(found), 100 * found["mass_share"]], f"{model}, {first}")


def relocating(model: str, rule: str) -> float:
    """Percent of (head, trace) whose main sink changes place in long answers."""
    heads = pl.read_parquet(RESULTS / "pair/relocation.parquet").filter(model=model, rule=rule)["relocating"]
    return 100 * int(heads.sum()) / len(heads)


SHARE, SUMS = "0.1 of the head", "column sum above 3"
TINY = ("tiny-llada", "tiny-dream", "tiny-mmada")
SENTENCES: list[tuple[str, str, Callable[[], Sequence[float]]]] = [
    ("README.md", "costs the diffusion model of our pair 14 points of its sums, and the autoregressive model 70.",
     lambda: [loss(ONE, "smol-dream", STRONG), loss(PAIR, "smol-llama", STRONG)]),
    ("docs/index.md", "costs the diffusion model of our pair 14 points of its sums, and the autoregressive model 70 (",
     lambda: [loss(ONE, "smol-dream", STRONG), loss(PAIR, "smol-llama", STRONG)]),
    ("README.md", "88 % of smol-dream's heads with a sink keep it in place",
     lambda: [100 * dynamics(PAIR, "smol-dream")["intervals"]["static"]["value"]]),
    ("README.md", "Without strong sinks smol-dream still solves all 100, and smol-llama 67",
     lambda: [row(ONE, "smol-dream", STRONG, "programs")["correct"], row(PAIR, "smol-llama", STRONG, "programs")["correct"]]),
    ("README.md", "lose 70 and 86 points without their strong sinks, four diffusion models 14, 6, 1 and −1.",
     lambda: [loss(PAIR, "smol-llama", STRONG), twin("twin-llama-1"), loss(ONE, "smol-dream", STRONG), twin("twin-dream-varied"),
              twin("twin-dream-1"), twin("twin-dream-2")]),
    ("README.md", "changes place in 9.2 % of its heads, and in 8.6 % of its autoregressive twin's.",
     lambda: [relocating("smol-dream", SHARE), relocating("smol-llama", SHARE)]),
    ("README.md", "The paper's rule would give 11.0 % and 0.1 %:",
     lambda: [relocating("smol-dream", SUMS), relocating("smol-llama", SUMS)]),
    ("README.md", "weakened by 15 % of all attention cost smol-llama nothing [−9, +9];",
     lambda: [100 * (one := dosed("smol-llama", DOSES["strong sinks, by a third"]))["mass_share"], *change(one)[1:]]),
    ("README.md", "random keys weakened by 16 % cost it 75 points [60, 86].",
     lambda: [100 * (one := dosed("smol-llama", DOSES["random keys of their mass, by two thirds"]))["mass_share"], *cost(one)]),
    ("README.md", "44 % of all attention, smol-llama loses 45 points [31, 60] and smol-dream 14 [7, 22]",
     lambda: [100 * (one := dosed("smol-llama", DOSES["strong sinks, by 85 %"]))["mass_share"], *cost(one),
              *cost(sums(ONE, "smol-dream", STRONG))]),
    ("README.md", "loses 3 points without its strong ones [−1, 8]", lambda: cost(sums(PREFIX, "twin-prefix-llama", STRONG))),
    (TWINS, "loses 3 points [−1, 8] without its strong sinks, which draw 36 % of the attention",
     lambda: [*cost(sums(PREFIX, "twin-prefix-llama", STRONG)), 100 * sums(PREFIX, "twin-prefix-llama", STRONG)["mass_share"]]),
    (TWINS, "loses 18 [7, 32] where 33 % are taken",
     lambda: [*cost(dosed("smol-llama", WEAKENED.format("66%"))), 100 * dosed("smol-llama", WEAKENED.format("66%"))["mass_share"]]),
    (TWINS, "Two top keys per head take 43 % and cost it 32 points of sums [21, 46]; three take 49 % and cost 60 [46, 72]",
     lambda: [value for k in (2, 3) for found in [sums(MORE, "twin-prefix-llama", TOP.replace("K=1", f"K={k}"))]
              for value in (100 * found["mass_share"], *cost(found))]),
    (TWINS, "smol-llama pays 45 at 44 %, and 65 at 51 %",
     lambda: [value for part in ("85%", "95%") for found in [dosed("smol-llama", WEAKENED.format(part))]
              for value in (100 * found["difference"], 100 * found["mass_share"])]),
    (TWINS, "34 % of the attention, it loses 20 points of 50 programs [11, 33]",
     lambda: [100 * row(MORE, "twin-prefix-llama", TOP, "programs")["mass_share"],
              cost(row(MORE, "twin-prefix-llama", TOP, "programs"))[0], 50,
              *cost(row(MORE, "twin-prefix-llama", TOP, "programs"))[1:]]),
    ("README.md", "still loses 61 points of its sums [54, 67] without its strong sinks, and 73 [66, 78] with a cache",
     lambda: [value for setting in ("recompute=True", "recompute=False") for value in cost(two(ARM, setting, STRONG))]),
    ("README.md", "loses 15 [10, 20] and, with a prefix cache, 28 [22, 34]",
     lambda: [value for setting in ("cache=whole", "cache=prefix") for value in cost(two(DLM, setting, STRONG))]),
    (f"{HERE}/what-agrees.md", "still loses 58 of the 75 points",
     lambda: [100 * two(ARM, setting, TOP)["difference"] for setting in ("recompute=True", "recompute=False")]),
    ("README.md", "it is 58 [44, 71] and 24 [11, 38]", lambda: [*cost(story("smol-llama", "85%")), *cost(story("smol-dream"))]),
    (f"{HERE}/the-pair.md", "44 % of the attention costs smol-llama 58 of its 76 points [44, 71], and smol-dream 24 of 70 [11, 38]",
     lambda: [44, *among(story("smol-llama", "85%")), *among(story("smol-dream"))]),
    ("docs/results/pair/doses.md", "smol-llama loses 58 points [44, 71] at 44 % and smol-dream 24 [11, 38]",
     lambda: [*cost(story("smol-llama", "85%")), 100 * story("smol-llama", "85%")["mass_share"], *cost(story("smol-dream"))]),
    ("docs/results/pair/doses.md", "At 33 and 26 % they lose 32 [21, 46] and 8 [−2, 20]",
     lambda: [*[100 * story(one, "66%")["mass_share"] for one in ("smol-llama", "smol-dream")],
              *[value for one in ("smol-llama", "smol-dream") for value in cost(story(one, "66%"))]]),
    ("README.md", "loses 25 points more [14, 36]", lambda: against_random("twin-llama-1")),
    (f"{HERE}/the-pair.md", "the autoregressive model loses 70 points of its sums, and the diffusion model loses 14.",
     lambda: [loss(PAIR, "smol-llama", STRONG), loss(ONE, "smol-dream", STRONG)]),
    (f"{HERE}/the-pair.md", "the autoregressive model loses 33 points",
     lambda: [loss(PAIR, "smol-llama", STRONG, "programs")]),
    (f"{HERE}/the-pair.md", "costs the diffusion model 41 points of its sums", lambda: [loss(ONE, "smol-dream", TOP)]),
    (f"{HERE}/the-pair.md", "28 of the 47 wrong sums", lambda: errors(TOP)[::-1]),
    (f"{HERE}/the-pair.md", "81 of 100 sums are right without strong sinks and 81 without top keys",
     lambda: [100 - errors(STRONG)[0] + errors(STRONG)[1], 100, 100 - errors(TOP)[0] + errors(TOP)[1]]),
    (f"{HERE}/the-pair.md", "Strong sinks then cost 6 points of sums [−0.2, 13.4]",
     lambda: cost(sums(PAIR, "smol-dream", STRONG))),
    (f"{HERE}/the-pair.md", "it loses 35 points [22, 50] where the token is hidden, and 38 [24, 53] where it is deleted",
     lambda: [*cost(sums(OWN, "smol-dream", "mask positions 2")), *cost(sums(OWN, "smol-dream", "delete positions 2"))]),
    (f"{HERE}/the-pair.md", "would have drawn 41 % of the attention",
     lambda: [100 * sums(OWN, "smol-dream", "mask positions 2")["mass_share"]]),
    (f"{HERE}/the-pair.md", "none of its 39 right answers", lambda: [sums(OWN, "smol-llama", FIRST)["correct"]]),
    (f"{HERE}/the-pair.md", "91 % of smol-llama's heads with a sink keep it in place, and 88 % of smol-dream's do",
     lambda: [100 * dynamics(PAIR, one)["intervals"]["static"]["value"] for one in ("smol-llama", "smol-dream")]),
    (f"{HERE}/what-agrees.md", "hold at most 0.8 % of the attention",
     lambda: [max(100 * row("paper/strong.json", one, STRONG, task)["mass_share"]
                  for one in TINY for task in ("arithmetic", "programs"))]),
    (f"{HERE}/what-agrees.md", "52 to 88 % of the heads that have a sink keep it in place",
     lambda: spread([100 * dynamics(run, one)["intervals"]["static"]["value"] for run, one in
                     [*(("paper/places.json", one) for one in TINY), (PAIR, "smol-dream")]])),
    (f"{HERE}/what-agrees.md", "smol-llama loses 73 points of its sums", lambda: [loss(PAIR, "smol-llama", LATER)]),
    (f"{HERE}/what-agrees.md", "the diffusion model loses none of its programs, and the autoregressive model loses 33",
     lambda: [loss(PAIR, "smol-llama", STRONG, "programs")]),
    (f"{HERE}/both-modes.md", "costs the diffusion mode 84 points of right answers",
     lambda: [loss(NEMOTRON, MODES[1], TOP, "all")]),
    (f"{HERE}/both-modes.md", "Random keys of the same mass cost it 32", lambda: [loss(NEMOTRON, MODES[1], RANDOM, "all")]),
    (f"{HERE}/both-modes.md", "loses 40 points with its own top key",
     lambda: [loss(NEMOTRON, MODES[0], TOP.replace("all rows", "last row"), "all")]),
    (f"{HERE}/both-modes.md", "costs the diffusion mode 52.0 points more [48.6, 55.2] and strong sinks 35.8 more [32.5, 39.1]",
     lambda: [one for label in (TOP, STRONG) for one in cost(row(NEMOTRON, MODES[1], label)["controls"]["mass"])]),
    (f"{HERE}/since-when.md", "costs an autoregressive model 1.42 nats per token. Hidden from the first row on, it costs 0.02",
     lambda: [one["nats_change"][0] for name in ("position 0, (b)", "position 0, (a)")
              for model in read("protocols/protocols.json") if model["model"] == "smollm2-135m"
              for one in model["rows"] if one["label"] == name]),
    (f"{HERE}/since-when.md", "smol-llama loses 53.5 points [46.6, 60.3] after a clean prefill and 0.0 [−1.9, +1.9] from",
     lambda: [*cost(row(PAIR, "smol-llama", LATER)), *cost(row(PAIR, "smol-llama", FIRST))]),
    (f"{HERE}/what-sinks-carry.md", "top key costs 62.5 to 65.5 points",
     lambda: spread([loss("control/patches.json", one, "patch values K=1 clean from next by all rows", "all") for one in TINY])),
    (f"{HERE}/what-sinks-carry.md", "top mask costs 0.5 points",
     lambda: [max(loss("control/patches-masks.json", one, "patch values K=1 clean from next by all rows mask", "all")
                  for one in TINY)]),
    (f"{HERE}/block-causal.md", "16.5 points by sums and 37.0 per query",
     lambda: [loss("block_causal/whole.json", "tiny-sdar", label, "all") for label in (TOP, f"{TOP} per row that sees it")]),
    (f"{HERE}/block-causal.md", "Position 0 alone costs 0.0 [−1.9, +1.9]",
     lambda: [0, *cost(row("block_causal/results.json", "tiny-sdar", LATER))]),
    (f"{HERE}/controlling-sinks.md", "is what costs: 54 to 62 points",
     lambda: spread([loss("paper/fair.json", one, TOP, "all") for one in TINY])),
    (f"{HERE}/controlling-sinks.md", "takes 21 to 31 % of the attention on sinks", lambda: spread(softer())),
    (f"{HERE}/controlling-sinks.md", "fall from 24–34 % to 3–5 %", lambda: [*spread(held()[0]), *spread(held()[1])]),
    (f"{HERE}/speed-from-sinks.md", "Half at random leave 28 to 45 % right",
     lambda: spread([100 * row("cache/results.json", one, "sparse cache by random keep=0.5")["accuracy"] for one in TINY])),
    (f"{HERE}/speed-from-sinks.md", "tiny-long answers 1.0 % right; without a random sixteenth, 89.0 %",
     lambda: [100 * row("cache/cache-long.results.json", "tiny-long", f"sparse cache by {by} keep=0.9375")["accuracy"]
              for by in ("no_sinks", "random")]),
    (f"{HERE}/training-and-sinks.md", "in 24 % of its heads at step 600, and in 73 % after 10,500 steps",
     lambda: [100 * step("tiny-llada-first", 600)["sink_share"], 600, 100 * curve("tiny-llada")[-1]["sink_share"],
              sum(curve(one)[-1]["step"] for one in ("tiny-llada-first", "tiny-llada-second", "tiny-llada"))]),
    (f"{HERE}/training-and-sinks.md", "has a sink in 37 % of its heads before its first update, and in 69 % after 200 steps",
     lambda: [100 * curve("tiny-dream-first")[0]["sink_share"], 100 * step("tiny-dream-first", 200)["sink_share"], 200]),
    (f"{HERE}/training-and-sinks.md", "98 % of tiny-llama's heads", lambda: [100 * curve("tiny-llama")[0]["sink_share"]]),
    (f"{HERE}/training-and-sinks.md", "Training lowers that to 26 %", lambda: [100 * curve("tiny-llama")[-1]["sinks_at_begin"]]),
    (f"{HERE}/training-and-sinks.md", "gave a sink in 93 % of the heads",
     lambda: [100 * step("trial-llada-rate-0.02", 600)["sink_share"]]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("page", "sentence", "measured"), SENTENCES, ids=[f"{page}: {text[:40]}" for page, text, _ in SENTENCES]
)
def test_sentences_say_what_was_measured(page: str, sentence: str, measured: Callable[[], Sequence[float]]) -> None:
    text = " ".join((ROOT / page).read_text(encoding="utf-8").replace("*", "").split())
    assert sentence in text, f"{page} no longer says this: change the sentence here too"
    same(sentence, measured(), sentence)


# Heads inside the models.


def test_heads_and_their_sinks() -> None:
    from lab.experiments.heads import correlations

    for model, count, *cells in table(f"{HERE}/sink-heads.md", "model")[1:]:
        found = read(f"inside/heads/{model}.json")
        sizes = correlations([{**one, "loss": abs(one["loss"])} for one in found["heads"]])
        assert int(count) == len(found["heads"]) and found["problems"] == 32
        measured = [
            [one[name], *one[interval]]
            for one in (found, sizes)
            for name, interval in (("correlation", "interval"), ("within layers", "within layers interval"))
        ]
        for cell, values in zip(cells, measured, strict=True):
            same(cell, values, model)


def test_answers_without_heads() -> None:
    for model, untouched, *cells in table(f"{HERE}/sink-heads.md", "silenced in")[1:]:
        base, _, *others = read(f"inside/answers/heads-{model}.json")["cells"]
        assert base["n"] == 100
        same(untouched, [100 * base["accuracy"]], model)
        for cell, one in zip(cells, others, strict=True):
            same(cell, change(one), one["label"])
