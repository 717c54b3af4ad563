"""Build the Triton kernels for GPUs that are not here, and write down what each one takes.

    python benchmarks/triton_aot.py                 # what calls really launch: prints the tables
    python benchmarks/triton_aot.py --write         # … and writes lab/results/triton.md
    python benchmarks/triton_aot.py --every --write # all masks × orders × ways to drop keys: lab/results/triton-every.md

Triton and the ptxas inside its package need no GPU to make machine code. That shows that each variant builds, and what it asks
for: registers, spills to memory, shared memory, and the instructions of its loop. It does not show speed; the floor on the page
is counted from instructions. `sinkscope bench --device cuda` times calls where there is a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "lab" / "results" / "triton.md"
REGISTERS_MOST = 255  # per thread
ITEM_SIZES = {"fp32": 4, "fp16": 2, "bf16": 2}
MASKS = ("none", "bool", "additive", "keys")
ORDERS = ("sees all", "blocks")  # causal is blocks of one
DROPS = ("none", "drop", "keep_self")


@dataclass(frozen=True)
class Card:
    """A GPU of an architecture, by its data sheet."""

    name: str
    shared: int  # bytes of shared memory that a program may take
    products: int  # multiply-adds of bf16 per SM and clock, dense


CARDS = {
    80: Card("A100", 163 * 1024, 1024), 89: Card("L4, RTX 4090", 99 * 1024, 512),
    90: Card("H100", 227 * 1024, 2048), 100: Card("B200", 227 * 1024, 4096),
}  # fmt: skip


@dataclass(frozen=True)
class Variant:
    """One kernel as a call specialises it."""

    kernel: str  # "output" or "received"
    dtype: str  # Triton's name: fp32, fp16, bf16
    mask: str = "none"
    order: str = "sees all"
    drop: str = "none"
    dim: int = 128

    @property
    def lse(self) -> bool:
        """Whether torch's flash attention made the output."""
        return self.kernel == "received" and self.mask == self.drop == "none" and self.dtype != "fp32"

    @property
    def name(self) -> str:
        return f"{self.kernel}, {self.dtype}, dim {self.dim}, {self.order}, mask {self.mask}, drop {self.drop}"


@dataclass(frozen=True)
class Built:
    """What one cubin takes."""

    bytes: int
    registers: int  # per thread
    spills: int  # bytes stored and loaded per thread because registers ran out
    shared: int  # bytes per program
    rows: int
    keys: int
    warps: int
    loop: int  # instructions of one tile, per warp
    exponentials: int
    arithmetic: int  # float32 operations


def launched(dtypes: tuple[str, ...] = ("bf16",), dims: tuple[int, ...] = (128,)) -> Iterator[Variant]:
    """What plain, padded and masked calls of a diffusion model launch, and a causal one's."""
    for dtype, dim in itertools.product(dtypes, dims):
        yield Variant("received", dtype, dim=dim)
        yield Variant("received", dtype, order="blocks", dim=dim)
        for mask, drop in (("none", "drop"), ("keys", "none"), ("keys", "drop")):
            yield Variant("output", dtype, mask, drop=drop, dim=dim)
            yield Variant("received", dtype, mask, drop=drop, dim=dim)


def every(dtypes: tuple[str, ...], dims: tuple[int, ...]) -> Iterator[Variant]:
    for values in itertools.product(("output", "received"), dtypes, MASKS, ORDERS, DROPS, dims):
        yield Variant(*values)


def launch_of(variant: Variant, architecture: int) -> Any:
    from sinkscope.attention import triton as kernels

    choices = kernels.launches(
        variant.kernel,
        ITEM_SIZES[variant.dtype],
        kernels.fitting(variant.dim),
        variant.drop != "none",
        variant.mask in ("bool", "additive"),
    )
    return next((one for one in choices if one.shared <= CARDS[architecture].shared), choices[-1])


def source(variant: Variant, launch: Any) -> Any:
    """The kernel with the types, constants and alignments that a launch on contiguous tensors gives it."""
    from triton.compiler import ASTSource

    from sinkscope.attention import triton as kernels

    kernel = kernels.output_kernel if variant.kernel == "output" else kernels.received_kernel
    side = kernels.fitting(variant.dim)
    constants: dict[str, Any] = {
        "MASK": MASKS.index(variant.mask), "ORDER": variant.order == "blocks", "DROP": variant.drop != "none",
        "KEEP_SELF": variant.drop == "keep_self", "ROWS": launch.rows, "KEYS": launch.keys, "DIM": side, "VALUE": side,
        "LSE": variant.lse, "WIDEN": False, "WHOLE": side == variant.dim,
    }  # fmt: skip
    pointer = "*" + variant.dtype
    pointers = dict.fromkeys(("q", "k", "v", "out"), pointer)
    pointers |= dict.fromkeys(("peaks", "shares", "clean_peaks", "clean_shares", "received", "clean"), "*fp32")
    pointers |= {
        "order": "*i32", "mask": pointer if variant.mask in ("none", "additive") else "*u8",
        "drop": pointer if variant.drop == "none" else "*u8",
    }  # fmt: skip
    unit_strides = ["q_dim", "k_dim", "v_dim", "out_dim"]  # a stride of 1 is a constant to Triton
    unit_strides += ["mask_key"] if variant.mask != "none" else []
    unit_strides += ["drop_key"] if variant.drop != "none" else []
    given = {name: value for name, value in constants.items() if name in kernel.arg_names}
    given |= {name: 1 for name in unit_strides if name in kernel.arg_names}
    signature, aligned = {}, {}
    for index, name in enumerate(kernel.arg_names):
        if name in given:
            signature[name] = "constexpr"
        elif name in pointers:
            signature[name] = pointers[name]
            aligned[index,] = [["tt.divisibility", 16]]
        elif name in ("scale2", "masked_at"):
            signature[name] = "fp32"
        else:
            signature[name] = "i32"
            if re.match(r"(q|k|v|out)_(batch|head|row|key)$|(dim|value)_count$", name):
                aligned[index,] = [["tt.divisibility", 16]]
    return ASTSource(kernel, signature, given, aligned)


def build(variant: Variant, architecture: int, launch: Any = None) -> Built:
    """A cubin for this architecture; triton raises where it cannot be built."""
    import triton
    from triton.backends.compiler import GPUTarget

    launch = launch or launch_of(variant, architecture)
    said, options = io.StringIO(), {"num_warps": launch.warps, "num_stages": launch.stages}
    with tempfile.TemporaryDirectory() as folder, triton.knobs.cache.scope(), triton.knobs.nvidia.scope():
        triton.knobs.cache.dir = folder  # so that ptxas runs, and says what it did
        triton.knobs.nvidia.dump_ptxas_log = True
        with contextlib.redirect_stdout(said):
            made = triton.compile(source(variant, launch), target=GPUTarget("cuda", architecture, 32), options=options)
        cubin = Path(folder, "kernel.cubin")
        cubin.write_bytes(made.asm["cubin"])
        loop = loop_of(disassembled(cubin), second=variant.kernel == "output" and variant.drop != "none")
    log = said.getvalue()
    kinds = [re.sub(r"^@!?U?P\w+\s+", "", one).split()[0].split(".")[0] for one in loop]
    # A loop may have been unrolled: every score has one exponential.
    warps = made.metadata.num_warps
    tiles = max(1, round(kinds.count("MUFU") * 32 * warps / (launch.rows * launch.keys)))
    return Built(
        bytes=len(made.asm["cubin"]),
        registers=int(re.findall(r"Used (\d+) registers", log)[-1]),
        spills=sum(int(size) for size in re.findall(r"(\d+) bytes spill", log)),
        shared=made.metadata.shared,
        rows=launch.rows,
        keys=launch.keys,
        warps=warps,
        loop=len(kinds) // tiles,
        exponentials=kinds.count("MUFU") // tiles,
        arithmetic=sum(kind in ("FFMA", "FADD", "FMUL") for kind in kinds) // tiles,
    )


def disassembled(cubin: Path) -> str:
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
    return subprocess.run([str(tool), str(cubin)], capture_output=True, text=True, check=True).stdout


def loop_of(text: str, second: bool = False) -> list[str]:
    """The instructions of the loop with most matrix products: what one tile takes where it has no dropped key.

    second: and of the shortest loop with products that lies elsewhere, which looks for tiles with a dropped key.
    """
    instructions: list[str] = []
    labels: dict[str, int] = {}
    for line in text.splitlines():
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            labels[label[1]] = len(instructions)
        elif found := re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(.*?);", line):
            instructions.append(found[1])
    branches = []  # (where, where to), in the order of the code
    for index, instruction in enumerate(instructions):
        if (found := re.search(r"\bBRA(?!\.DIV)\b.*?(\.L_x_\d+)", instruction)) and found[1] in labels:
            branches.append((index, labels[found[1]]))
    loops = [(start, end) for end, start in branches if start < end]
    if not loops:
        return []

    def products(ends: tuple[int, int]) -> int:
        return sum("MMA" in one for one in instructions[ends[0] : ends[1]])

    main = max(loops, key=lambda ends: (products(ends), ends[0] - ends[1]))
    others = [one for one in loops if products(one) and (one[1] < main[0] or main[1] < one[0])]
    chosen = [main, *([min(others, key=lambda ends: ends[1] - ends[0])] if second and others else [])]
    rare: set[int] = set()  # a branch of a condition jumps over what only tiles with dropped keys need
    for index, target in branches:
        inside = any(start <= index < target <= end for start, end in chosen)
        if inside and instructions[index].startswith("@") and index not in rare:
            rare |= set(range(index + 1, target))
    counted = sorted({index for start, end in chosen for index in range(start, end + 1)} - rare)
    return [instructions[index] for index in counted]


# ---- the page ----


@dataclass(frozen=True)
class Floor:
    """Least time of one tile on one SM, in clocks: the longest of what cannot be helped."""

    products: float
    exponentials: float
    issue: float  # four warps' instructions per clock

    @property
    def clocks(self) -> float:
        return max(self.products, self.exponentials, self.issue)


def floor_of(built: Built, architecture: int, products: int, dim: int = 128) -> Floor:
    """products: matrix products per tile, 2 in the output kernel and 1 in the received one."""
    scores = built.rows * built.keys
    return Floor(products * scores * dim / CARDS[architecture].products, scores / 16, built.loop * built.warps / 4)


# Traced and masked in the table of commit 09c1d32, whose received kernel added up three groups per program.
BEFORE = {80: (1.50, 1.99), 89: (1.50, 1.50), 90: (1.69, 2.81), 100: (2.15, 6.00)}


def floors(built: dict[tuple[Variant, int], Built], dtype: str = "bf16") -> list[str]:
    """Traced and masked calls against plain flash attention, by its products alone and as it is built; per 64 × 64 scores."""
    lines = [
        "| GPU | plain: products | plain: as built | traced | before | masked, with clean sums | before | masked and padded "
        "| traced, as built | masked, as built |",
        "|---" * 10 + "|",
    ]  # fmt: skip

    def clocks(variant: Variant, architecture: int, products: int) -> float:
        found = built[variant, architecture]
        return floor_of(found, architecture, products).clocks * 4096 / (found.rows * found.keys)

    for architecture, card in CARDS.items():
        flash = max(2 * 4096 * 128 / card.products, 4096 / 16)
        try:
            plain = clocks(Variant("output", dtype), architecture, 2)
            received = clocks(Variant("received", dtype), architecture, 1)
            traced = flash + received
            masked, padded = (
                clocks(Variant("output", dtype, mask, drop="drop"), architecture, 2)
                + clocks(Variant("received", dtype, mask, drop="drop"), architecture, 1)
                for mask in ("none", "keys")
            )
        except KeyError:
            continue
        cells = [f"{one:.0f} ({one / flash:.2f} ×)" for one in (traced, masked, padded)]
        before = [f"{one:.2f} ×" for one in BEFORE[architecture]]
        row = f"{cells[0]} | {before[0]} | {cells[1]} | {before[1]} | {cells[2]}"
        built_so = f"{(plain + received) / plain:.2f} × | {masked / plain:.2f} ×"
        lines.append(f"| {card.name} (sm_{architecture}) | {flash:.0f} | {plain:.0f} | {row} | {built_so} |")
    return lines


def table(built: dict[tuple[Variant, int], Built]) -> list[str]:
    lines = [
        "| kernel | sm | tile | warps | registers | spilled bytes | shared, KB | instructions per tile and warp | per score "
        "| exponentials | float32 operations |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for (variant, architecture), one in built.items():
        per_score = one.loop * one.warps * 32 / (one.rows * one.keys)
        lines.append(
            f"| {variant.name} | {architecture} | {one.rows} × {one.keys} | {one.warps} | {one.registers} | {one.spills} "
            f"| {one.shared / 1024:.0f} | {one.loop} | {per_score:.1f} | {one.exponentials} | {one.arithmetic} |"
        )
    return lines


def errors() -> list[str]:
    """Asked of a process in which Triton interprets: it must be told before it is imported."""
    done = subprocess.run(
        [sys.executable, __file__, "--errors"],
        env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.strip().splitlines()


def print_errors() -> None:
    import torch

    from sinkscope.attention.attend import attend

    print("| | output | received | largest received sum |\n|---|---|---|---|")
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        generator = torch.Generator().manual_seed(0)
        q, k, v = (torch.randn(2, 4, 160, 64, generator=generator).to(dtype) for _ in range(3))
        drop, keys = torch.zeros(2, 4, 160, dtype=torch.bool), torch.ones(2, 1, 1, 160, dtype=torch.bool)
        drop[..., [0, 77]], keys[0, ..., :9] = True, False
        for name, words in {
            "traced": {}, "masked": {"drop_keys": drop, "clean": True},
            "masked and padded": {"drop_keys": drop, "clean": True, "mask": keys},
        }.items():  # fmt: skip
            shared = {"groups": torch.arange(160) // 7 % 3, **words}
            exact = attend(*(one.double() for one in (q, k, v)), backend="reference", **shared)
            found = attend(q, k, v, backend="triton", **shared)
            off = [float((one.double() - other).abs().max()) for one, other in zip(found, exact, strict=True)]
            print(f"| {str(dtype)[6:]}, {name} | {off[0]:.1e} | {max(off[1:]):.1e} | {float(exact[1].max()):.1f} |")


def page(command: str, built: dict[tuple[Variant, int], Built]) -> str:
    import triton

    return "\n".join([
        "# The Triton kernels, built without a GPU", "",
        f"`{command}`, triton {triton.__version__} and the ptxas and nvdisasm inside its package. No GPU was there: this page "
        "says that the kernels build and what they take, not how fast they are. Their numbers are checked against the reference "
        "in Triton's interpreter.", "",
        "Where nothing is masked, torch's own flash attention makes the output and its log-sum-exp, and only the received "
        "kernel is ours. A traced call then has the bits of a plain one. A call that drops keys launches both kernels once, and "
        "gets the sums with and without the dropped keys from the same exponentials.", "",
        "## Estimated floors", "",
        "Clocks of one SM per 64 × 64 scores of bf16, head size 128. Each pass takes the longest of its matrix products at the "
        "data sheet's dense rate, its exponentials at 16 per clock, and its instructions at four warps' per clock. "
        "Memory, latency and what does not overlap come on top, on both sides.", "",
        "Plain flash attention is counted twice. *Products* is what no kernel can beat: two products, or the exponentials. *As "
        "built* is our output kernel with nothing masked, which is FlashAttention-2's algorithm, from the same compiler and "
        "counted by the same rule.", "",
        *floors(built), "",
        "The aim is 1.5 × traced and 2 × masked of FlashAttention-2's floor at [16, 32, 1280, 128]. Counted as built, all four "
        "GPUs meet it. Counted by products alone, A100, L4 and H100 meet it and B200 cannot. There a second pass over the "
        "exponentials takes as long as two products, so that tracing costs at least 2 ×.", "",
        "Products at the rate of wgmma and tcgen05 are stricter than FlashAttention-2, which has neither. Others measured it at "
        "35 % of an H100's peak ([FlashAttention-3](https://arxiv.org/abs/2407.08608)). On a B200 they measured 300 to 380 "
        "TFLOP/s, a sixth of the peak ([head size 64](https://github.com/Dao-AILab/flash-attention/issues/1589)).", "",
        "## Errors", "",
        "Largest difference from float64, [2, 4, 160, 64], three groups, in Triton's interpreter; there bf16 is widened to "
        "float32. The output is rounded to its dtype.", "", *errors(), "",
        "## Builds", "", f"{len(built)} cubins.", "", *table(built), "",
        f"A program may use {REGISTERS_MOST} registers per thread and, of shared memory, "
        + ", ".join(f"{card.shared // 1024} KB (sm_{number})" for number, card in CARDS.items()) + ". Larger head sizes take "
        "smaller tiles where a GPU has less (`launches` in attention/triton.py).", "",
        "## The real table", "",
        "There is none yet: nobody has run this on a GPU. To make it, on a machine with one:", "", "```bash",
        "pip install -e '.[triton]'", "sinkscope bench --device cuda --dtype bfloat16 --json > bench.json", "```", "",
        "That times attend against F.scaled_dot_product_attention in turns (32 heads of 128, 256 to 8192 positions, causal and "
        "not, three groups), and plain, traced and masked generation of tiny-llada. It takes a few minutes, mostly compiling. "
        "`bench.json` names the GPU and the versions, and nothing else of the machine. Please open an issue with that file: its "
        "table goes here, with the name you want under it.",
        "",
    ])  # fmt: skip


def every_page(command: str, built: dict[tuple[Variant, int], Built]) -> str:
    """One line per variant: enough to see that it builds, fits and does not spill much."""
    import triton

    numbers = sorted({architecture for _, architecture in built})
    lines = [
        "# Every variant of the Triton kernels, built", "",
        f"`{command}`, triton {triton.__version__}: {len(built)} cubins, of which "
        f"{sum(one.spills > 0 for one in built.values())} spill, {max(one.spills for one in built.values())} bytes at most. "
        "A cell has registers per thread, spilled bytes, and KB of shared memory. What calls launch most is on "
        "[another page](triton.md).", "",
        "| kernel | " + " | ".join(f"sm_{number}" for number in numbers) + " |", "|---" * (len(numbers) + 1) + "|",
    ]  # fmt: skip
    for variant in dict.fromkeys(variant for variant, _ in built):
        cells = [built[variant, number] for number in numbers]
        taken = " | ".join(f"{one.registers}, {one.spills}, {one.shared / 1024:.0f}" for one in cells)
        lines.append(f"| {variant.name} | {taken} |")
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtypes", nargs="+", default=["bf16"])
    parser.add_argument("--dims", nargs="+", type=int, default=[128])
    parser.add_argument("--architectures", nargs="+", type=int, default=list(CARDS))
    parser.add_argument("--every", action="store_true", help="all combinations of masks, orders and dropped keys")
    parser.add_argument("--errors", action="store_true", help="only the table of errors, where TRITON_INTERPRET=1")
    parser.add_argument("--write", action="store_true", help=f"write lab/results/{RESULTS.name}")
    asked = parser.parse_args()
    if asked.errors:
        print_errors()
        return
    built = {}
    chosen = list((every if asked.every else launched)(tuple(asked.dtypes), tuple(asked.dims)))
    plain = [] if asked.every else [Variant("output", dtype) for dtype in asked.dtypes]  # the floor, never launched
    for variant in chosen + plain:
        for architecture in asked.architectures:
            built[variant, architecture] = found = build(variant, architecture)
            print(f"sm_{architecture} {variant.name}: {found}", flush=True)
    dims = " ".join(str(dim) for dim in asked.dims)
    words = f"{'--every ' if asked.every else ''}--dtypes {' '.join(asked.dtypes)} --dims {dims}"
    text = (every_page if asked.every else page)(f"python benchmarks/triton_aot.py {words} --write", built)
    print(text)
    if asked.write:
        (RESULTS.with_name("triton-every.md") if asked.every else RESULTS).write_text(text)


if __name__ == "__main__":
    main()
