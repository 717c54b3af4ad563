"""What the column sums cost: `attend` against torch's own attention, in time and memory; traced generation.

    python benchmarks/attention.py             # prints the tables
    python benchmarks/attention.py --write     # … and writes lab/results/attention.md
    python benchmarks/attention.py --against ../old     # this tree against another one, in turns

Ratios are of medians, the sides taking turns within one process. On one thread time is processor time, so that other
work on the machine does not count; on two it is the clock. Memory is the highest resident size above the resident size
before the call, each in a process of its own (Linux only). Nothing here has been timed on a GPU.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

RESULTS = Path(__file__).parents[1] / "lab" / "results" / "attention.md"
HEADS, DIM = 32, 128
LENGTHS = {256: 32, 512: 32, 1024: 32, 2048: 16, 4096: 8}  # heads at each length: they are independent, fewer will do
BLOCK, BLOCK_LENGTHS = 32, (1024, 4096)
# Small calls: 64 positions of a large model, and what the tiny family makes: one canvas, and a batch of them.
SMALL = {"[1, 32, 64, 128]": (1, 32, 64, 128), "[1, 4, 53, 32]": (1, 4, 53, 32), "[32, 4, 53, 32]": (32, 4, 53, 32)}
MEMORY_LENGTHS = (2048, 8192)
STEPS = 8  # of a generation
MASK = 15999


# ---- measuring ----


def resident(field: str) -> int:
    """VmRSS (now) or VmHWM (highest so far) in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise SystemExit("memory can be measured on Linux only")


def extra_memory(run: Callable[[], object]) -> int:
    """Highest resident size while `run` runs, above what there was before, in bytes."""
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = resident("VmRSS")
    run()
    return resident("VmHWM") - before


def in_turns(sides: dict[str, Callable[[], object]], repeats: int, threads: int) -> dict[str, float]:
    """Median seconds of each side; they take turns, so that a busy moment meets all of them."""
    clock = time.process_time if threads == 1 else time.perf_counter
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(repeats + 1):
        for name, run in sides.items():
            started = clock()
            run()
            if turn:  # the first is for warming up
                seconds[name].append(clock() - started)
    return {name: statistics.median(values) for name, values in seconds.items()}


def in_process(*arguments: str, threads: int, tree: Path | None = None) -> Any:
    """Run one part of this file in a process of its own, with the package of another `tree` if one is named."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    if tree is not None:
        environment["PYTHONPATH"] = str(tree / "src")
    done = subprocess.run(
        [sys.executable, __file__, *arguments, "--threads", str(threads)],
        env=environment, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])


# ---- one call ----


def tensors(length: int, heads: int = HEADS) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (torch.randn(1, heads, length, DIM) for _ in range(3))
    return q, k, v


def eager(q: Tensor, k: Tensor, v: Tensor, one_hot: Tensor) -> tuple[Tensor, Tensor]:
    """What everybody writes: the whole map, its output, its column sums a group."""
    probabilities = (q @ k.mT * DIM**-0.5).softmax(-1)
    return probabilities @ v, one_hot @ probabilities


def part_call(length: int, threads: int, repeats: int) -> dict[str, float]:
    from sinkscope.attention.attend import attend

    q, k, v = tensors(length, LENGTHS[length])
    labels = torch.randint(0, 3, (length,))
    one_hot = torch.nn.functional.one_hot(labels, 3).T.float()
    dropped = torch.zeros(1, 1, length, dtype=torch.bool)
    dropped[..., [0, length // 2]] = True
    sides: dict[str, Callable[[], object]] = {"eager": lambda: eager(q, k, v, one_hot)} if length <= 1024 else {}
    for causal in (False, True):
        name = " causal" if causal else ""
        sides |= {
            "sdpa" + name: lambda c=causal: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=c),
            "groups" + name: lambda c=causal: attend(q, k, v, groups=labels, causal=c, backend="tiled"),
            "plain" + name: lambda c=causal: attend(q, k, v, causal=c, backend="tiled"),
            "dropped" + name: lambda c=causal: attend(
                q, k, v, groups=labels, causal=c, drop_keys=dropped, backend="tiled"
            ),
        }
    return in_turns(sides, repeats, threads)


def part_block(length: int, threads: int, repeats: int) -> dict[str, float]:
    """Block-causal attention against SDPA with the same mask as a bool map."""
    from sinkscope.attention.attend import attend

    q, k, v = tensors(length, LENGTHS[length])
    labels, blocks = torch.randint(0, 3, (length,)), torch.arange(length) // BLOCK
    mask = (blocks[None, :] <= blocks[:, None])[None, None]
    sides: dict[str, Callable[[], object]] = {
        "sdpa": lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask),
        "attend": lambda: attend(q, k, v, groups=labels, block=BLOCK, backend="tiled"),
    }
    return in_turns(sides, repeats, threads)


def part_small(name: str, threads: int, repeats: int) -> dict[str, float]:
    from sinkscope.attention.attend import attend

    q, k, v = (torch.randn(SMALL[name]) for _ in range(3))
    labels = torch.randint(0, 3, (q.shape[2],))
    sides: dict[str, Callable[[], object]] = {
        "sdpa": lambda: [torch.nn.functional.scaled_dot_product_attention(q, k, v) for _ in range(20)],
        "attend": lambda: [attend(q, k, v, groups=labels, group_count=3, backend="tiled") for _ in range(20)],
    }
    return {side: seconds / 20 for side, seconds in in_turns(sides, 4 * repeats, threads).items()}


def part_memory(length: int) -> int:
    from sinkscope.attention.attend import attend

    labels = torch.randint(0, 3, (length,))
    attend(*tensors(64), groups=labels[:64])
    q, k, v = tensors(length)
    return extra_memory(lambda: attend(q, k, v, groups=labels))


# ---- a whole model ----


def random_module() -> Any:
    """A Llama of 98 M parameters."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=MASK + 1, hidden_size=768, intermediate_size=2048, num_hidden_layers=12, num_attention_heads=12,
        max_position_embeddings=4096, tie_word_embeddings=True,
    )  # fmt: skip
    config.is_causal = False
    return LlamaForCausalLM(config).eval()


def part_generation(threads: int, repeats: int, canvas: int, steps: int) -> dict[str, float]:
    import sinkscope as sk
    from sinkscope.models.families.llada import LLaDA

    model = sk.Model(
        module=random_module(), tokenizer=None, family=LLaDA(), name="random", mask_id=MASK, shift=False, causal=False,
        context=4096, eos_ids=(1,), pad_id=1, eot_id=None,
    )  # fmt: skip
    settings = sk.Decode.llada(length=canvas // 2, block=canvas // 4, steps=steps)
    prompt = torch.randint(2, MASK, (1, canvas // 2))
    plain, traced = sk.decode(model, prompt, settings).tokens, sk.trace(model, prompt, settings)
    if not torch.equal(plain[0], traced.canvas[-1]):  # type: ignore[union-attr]
        raise SystemExit("the traced generation gave other tokens")
    sides: dict[str, Callable[[], object]] = {
        "untraced": lambda: sk.decode(model, prompt, settings),
        "traced": lambda: sk.trace(model, prompt, settings),
    }
    return in_turns(sides, repeats, threads)


# ---- two trees ----


def attends(old: Path) -> dict[str, Any]:
    """`attend` of another tree and of this one, in one process: each keeps the modules that it was imported with."""
    found = {}
    for name, tree in (("before", old), ("after", Path(__file__).parents[1])):
        for loaded in [one for one in sys.modules if one.partition(".")[0] == "sinkscope"]:
            del sys.modules[loaded]
        sys.path.insert(0, str(tree / "src"))
        found[name] = importlib.import_module("sinkscope.attention.attend").attend
        if not str(sys.modules["sinkscope"].__file__).startswith(str(tree)):
            raise SystemExit(f"{tree} was not imported")
    return found


def part_trees(old: Path, length: int, threads: int, repeats: int) -> dict[str, float]:
    """Every kind of call by both trees, in turns."""
    small = length < min(LENGTHS)
    q, k, v = (torch.randn(1, 4, length, 32) for _ in range(3)) if small else tensors(length, LENGTHS[length])
    labels = torch.randint(0, 3, (length,))
    dropped = torch.zeros(1, 1, length, dtype=torch.bool)
    dropped[..., [0, length // 2]] = True
    kinds: dict[str, dict[str, Any]] = {
        "3 groups": {"groups": labels}, "one group": {}, "3 groups, two keys dropped": {"groups": labels, "drop_keys": dropped},
        "causal, 3 groups": {"groups": labels, "causal": True}, "block-causal": {"groups": labels, "block": BLOCK},
    }  # fmt: skip
    calls = 200 if small else 1
    sides: dict[str, Callable[[], object]] = {
        f"{kind}: {name}": lambda attend=attend, words=words: [
            attend(q, k, v, backend="tiled", **words) for _ in range(calls)
        ]
        for kind, words in kinds.items()
        for name, attend in attends(old).items()
    }
    return {side: seconds / calls for side, seconds in in_turns(sides, repeats, threads).items()}


def against(old: Path, repeats: int, rounds: int) -> list[str]:
    """Processor time of this tree over that of `old`, one thread.

    Calls of both take turns in one process, several processes a row. A generation is traced over untraced, and the
    processes take turns. The range is over processes.
    """
    lines = ["| what | before | after / before | processes from, to |", "|---|---|---|---|"]

    def row(what: str, before: Sequence[float], ratios: Sequence[float], unit: str) -> None:
        each = sorted(ratios)
        middle = f"{statistics.median(before):.3g}{unit} | {statistics.median(each):.3f} ×"
        lines.append(f"| {what} | {middle} | {each[0]:.3f}, {each[-1]:.3f} |")
        print(lines[-1], flush=True)

    for length in (53, *LENGTHS):
        where = ("--length", str(length), "--against", str(old))
        took = [in_process("--part", "trees", *where, "--repeats", str(repeats), threads=1) for _ in range(rounds)]
        for kind in [side.removesuffix(": before") for side in took[0] if side.endswith(": before")]:
            before, after = ([one[f"{kind}: {when}"] for one in took] for when in ("before", "after"))
            ratios = [new / past for past, new in zip(before, after, strict=True)]
            row(f"S = {length}, {kind}", [1000 * one for one in before], ratios, " ms")
    found: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(rounds):
        for new in (False, True) if turn % 2 == 0 else (True, False):  # neither is always the first
            tree = Path(__file__).parents[1] if new else old
            took_one = in_process("--part", "generation", "--repeats", str(min(repeats, 3)), threads=1, tree=tree)
            found[new].append(took_one["traced"] / took_one["untraced"])
    ratios = [new / past for past, new in zip(found[False], found[True], strict=True)]
    row("traced over untraced generation", found[False], ratios, " ×")
    return lines


# ---- the page ----

TRIED = [
    "- Output and log-sum-exp from torch's fused kernel (`_scaled_dot_product_flash_attention_for_cpu`), and the column sums "
    "from a second pass over exp(qk − lse): 1.74 ×, 1.74 × and 1.75 × SDPA at S = 256, 512 and 1024 on one thread, where one "
    "pass over tiles took 1.32 ×, 1.23 × and 1.24 × in the same run (busy machine). The second product over q and k costs more "
    "than everything that the fused kernel saves, at every length: there is one way for large calls, not two.",
    "- exp and sums in place of softmax: exp_ alone takes 0.46 ms on a tile of 512 × 1024, the whole softmax 0.33 ms.",
    "- Tiles of 128 or 256 rows in place of 512: 1.30 × and 1.26 × in place of 1.24 × at S = 1024; heads together in one batched "
    "product: 1.25 to 1.31 ×.",
    "- Small calls: rows padded to whole vector registers, no gain. A call that is one tile is no longer cut into views: 4.8 × "
    "became about 3 × for one canvas of the tiny family, where SDPA takes 50 µs and Python most of the rest.",
]


def machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":")[1].strip() for line in lines if "model name" in line]
    return (
        f"{names[0] if names else platform.processor()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"torch {torch.__version__}, {datetime.now(UTC):%Y-%m-%d}, load {os.getloadavg()[0]:.1f} at the start"
    )


def call_table(threads: int, repeats: int) -> list[str]:
    unit = "processor time" if threads == 1 else "clock"
    lines = [
        f"| S, {threads} thread{'s'[: threads - 1]} ({unit}) | SDPA, ms | 3 groups | one | 3, two keys dropped | eager "
        "| causal: SDPA, ms | 3 groups | one | 3, two keys dropped |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for length in LENGTHS:
        took = in_process("--part", "call", "--length", str(length), "--repeats", str(repeats), threads=threads)
        cells = []
        for order in ("", " causal"):
            whole = took["sdpa" + order]
            cells.append(f"{whole * 1000:.0f}")
            cells += [f"{took[side + order] / whole:.2f} ×" for side in ("groups", "plain", "dropped")]
            if not order:
                cells.append(f"{took['eager'] / whole:.2f} ×" if "eager" in took else "not run")
        lines.append(f"| {length} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    return lines


def pair_table(part: str, column: str, cases: list[str], repeats: int) -> list[str]:
    """SDPA and attend side by side, on one thread and on two."""
    lines = [f"| {column} | threads | SDPA, ms | attend |", "|---|---|---|---|"]
    for case in cases:
        for threads in (1, 2):
            took = in_process("--part", part, "--case", case, "--repeats", str(repeats), threads=threads)
            lines.append(f"| {case} | {threads} | {took['sdpa'] * 1000:.3g} | {took['attend'] / took['sdpa']:.2f} × |")
            print(lines[-1], flush=True)
    return lines


def memory_table() -> list[str]:
    lines = [
        "| S | attend, MB | of that the output itself | eager, one layer's map (computed, not run) |",
        "|---|---|---|---|",
    ]
    for length in MEMORY_LENGTHS:
        found = in_process("--part", "memory", "--length", str(length), threads=1)
        out, held = HEADS * length * DIM * 4, HEADS * length * length * 4
        lines.append(f"| {length} | {found / 1e6:.0f} | {out / 1e6:.0f} | {held / 1e6:,.0f} |")
        print(lines[-1], flush=True)
    return lines


def generation_lines(repeats: int) -> list[str]:
    lines = ["| threads | untraced, s | traced, s | ratio |", "|---|---|---|---|"]
    for threads in (1, 2):
        took = in_process("--part", "generation", "--repeats", str(repeats), threads=threads)
        plain, traced = took["untraced"], took["traced"]
        lines.append(f"| {threads} | {plain:.2f} | {traced:.2f} | {traced / plain:.3f} × |")
        print(lines[-1], flush=True)
    return lines


def page(repeats: int) -> str:
    where = machine()
    return "\n".join([
        "# What the column sums cost", "",
        f"`python benchmarks/attention.py --repeats {repeats} --write` on {where}.", "",
        "Ratios are of medians; the sides take turns in one process. Processor time on one thread, the clock on two.",
        "Where the machine was busy (see the load), the clock columns hold what the other work did, and it need not meet "
        "both sides alike.",
        "The `triton` backend is checked in Triton's interpreter and built ahead of time (triton.md); it has not been timed",
        "on a GPU.", "",
        f"## One call: [1, heads, S, {DIM}], float32, against F.scaled_dot_product_attention without a mask", "",
        "Heads: " + ", ".join(f"{heads} at S = {length}" for length, heads in LENGTHS.items()) + ".", "",
        *call_table(1, repeats), "", *call_table(2, repeats), "",
        f"## Block-causal, blocks of {BLOCK}, 3 groups, against SDPA with the same mask as a bool map", "",
        *pair_table("block", "S", [str(length) for length in BLOCK_LENGTHS], repeats), "",
        "## Small calls, 3 groups", "", *pair_table("small", "q", list(SMALL), repeats), "",
        f"## Extra memory of one call, {HEADS} heads", "", *memory_table(), "",
        "## Traced against untraced generation", "",
        f"A random LLaDA-like model of 98 M parameters (12 layers × 12 heads), canvas 512, {STEPS} steps, same tokens.", "",
        *generation_lines(2), "",
        "## What was tried", "", *TRIED, "",
    ])  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--write", action="store_true", help=f"write lab/results/{RESULTS.name}")
    parser.add_argument("--against", type=Path, help="another checkout: compare this tree with it, and nothing else")
    parser.add_argument("--rounds", type=int, default=4, help="processes of each tree, with --against")
    parser.add_argument(
        "--part", choices=["call", "block", "small", "memory", "generation", "trees"], help=argparse.SUPPRESS
    )
    parser.add_argument("--length", type=int, default=1024, help=argparse.SUPPRESS)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, default=1, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.against is not None and asked.part is None:
        against(asked.against.resolve(), asked.repeats, asked.rounds)
        return
    if asked.part is None:
        text = page(asked.repeats)
        print(text)
        if asked.write:
            RESULTS.write_text(text)
        return
    torch.set_num_threads(asked.threads)
    if asked.part == "trees":
        print(json.dumps(part_trees(asked.against, asked.length, asked.threads, asked.repeats)))
    elif asked.part == "call":
        print(json.dumps(part_call(asked.length, asked.threads, asked.repeats)))
    elif asked.part == "block":
        print(json.dumps(part_block(int(asked.case), asked.threads, asked.repeats)))
    elif asked.part == "small":
        print(json.dumps(part_small(asked.case, asked.threads, asked.repeats)))
    elif asked.part == "memory":
        print(json.dumps(part_memory(asked.length)))
    else:
        print(json.dumps(part_generation(asked.threads, asked.repeats, canvas=512, steps=STEPS)))


if __name__ == "__main__":
    main()
