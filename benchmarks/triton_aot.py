"""Build the Triton kernels for GPUs that are not here, and write down what each one takes.

    python benchmarks/triton_aot.py                 # what calls really launch: prints the tables
    python benchmarks/triton_aot.py --every         # all masks × orders × ways to drop keys: an hour
    python benchmarks/triton_aot.py --write         # … and writes docs/results/triton.md

Triton and the ptxas inside its package need no GPU to make machine code. That shows that each variant builds, and what it asks
for: registers, spills to memory, shared memory, and the instructions of its loop. It does not show speed; the floor on the page
is counted from instructions. `sinkscope bench --device cuda` times calls where there is a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "triton.md"
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
        variant.kernel, ITEM_SIZES[variant.dtype], kernels.fitting(variant.dim), variant.drop != "none"
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
        loop = loop_of(disassembled(cubin))
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


def loop_of(text: str) -> list[str]:
    """The instructions of the loops with matrix products: what one tile takes where it has no dropped key."""
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
    loops = [ends for ends in loops if any("MMA" in one for one in instructions[ends[0] : ends[1]])]
    # The output kernel has a second loop for dropped keys, over the same tiles: both are counted. An outer one is none of them.
    loops = [
        one for one in loops if not any(one != other and one[0] <= other[0] <= other[1] <= one[1] for other in loops)
    ]
    rare: set[int] = set()  # a branch of a condition jumps over what only tiles with dropped keys need
    for index, target in branches:
        inside = any(start <= index < target <= end for start, end in loops)
        if inside and instructions[index].startswith("@") and index not in rare:
            rare |= set(range(index + 1, target))
    counted = sorted({index for start, end in loops for index in range(start, end + 1)} - rare)
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


def floors(built: dict[tuple[Variant, int], Built], dtype: str = "bf16") -> list[str]:
    """Traced and masked calls against two matrix products, FlashAttention's least; per 64 × 64 scores."""
    lines = [
        "| GPU | flash attention, clocks | traced | masked, with clean sums | masked and padded |", "|---|---|---|---|---|",
    ]  # fmt: skip

    def clocks(variant: Variant, architecture: int, products: int) -> float:
        found = built[variant, architecture]
        return floor_of(found, architecture, products).clocks * 4096 / (found.rows * found.keys)

    for architecture, card in CARDS.items():
        flash = max(2 * 4096 * 128 / card.products, 4096 / 16)
        try:
            traced = flash + clocks(Variant("received", dtype), architecture, 1)
            masked, padded = (
                clocks(Variant("output", dtype, mask, drop="drop"), architecture, 2)
                + clocks(Variant("received", dtype, mask, drop="drop"), architecture, 1)
                for mask in ("none", "keys")
            )
        except KeyError:
            continue
        row = " | ".join(f"{one:.0f} ({one / flash:.2f} ×)" for one in (traced, masked, padded))
        lines.append(f"| {card.name} (sm_{architecture}) | {flash:.0f} | {row} |")
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
        "data sheet's dense rate, its exponentials at 16 per clock, and its instructions at four warps' per clock. Flash "
        "attention is two products. Memory, latency and what does not overlap come on top, on both sides.", "",
        *floors(built), "",
        "## Builds", "", f"{len(built)} cubins.", "", *table(built), "",
        f"A program may use {REGISTERS_MOST} registers per thread and, of shared memory, "
        + ", ".join(f"{card.shared // 1024} KB (sm_{number})" for number, card in CARDS.items()) + ". Larger head sizes take "
        "smaller tiles where a GPU has less (`launches` in attention/triton.py).", "",
        "## The real table", "",
        "There is none yet: nobody has run this on a GPU. To make it, on a machine with one:", "", "```bash",
        "pip install -e '.[triton]'", "sinkscope bench --device cuda --dtype bfloat16 --out bench.json", "```", "",
        "That times attend against F.scaled_dot_product_attention in turns (32 heads of 128, 256 to 8192 positions, causal and "
        "not, three groups), and plain, traced and masked generation of tiny-llada. It takes a few minutes, mostly compiling. "
        "`bench.json` names the GPU and the versions, and nothing else of the machine. Please open an issue with that file: its "
        "table goes here, with the name you want under it.",
        "",
    ])  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtypes", nargs="+", default=["bf16"])
    parser.add_argument("--dims", nargs="+", type=int, default=[128])
    parser.add_argument("--architectures", nargs="+", type=int, default=list(CARDS))
    parser.add_argument("--every", action="store_true", help="all combinations of masks, orders and dropped keys")
    parser.add_argument("--write", action="store_true", help=f"write docs/results/{RESULTS.name}")
    asked = parser.parse_args()
    built = {}
    for variant in (every if asked.every else launched)(tuple(asked.dtypes), tuple(asked.dims)):
        for architecture in asked.architectures:
            built[variant, architecture] = found = build(variant, architecture)
            print(f"sm_{architecture} {variant.name}: {found}", flush=True)
    dims = " ".join(str(dim) for dim in asked.dims)
    chosen = f"{'--every ' if asked.every else ''}--dtypes {' '.join(asked.dtypes)} --dims {dims}"
    text = page(f"python benchmarks/triton_aot.py {chosen} --write", built)
    print(text)
    if asked.write:
        RESULTS.write_text(text)


if __name__ == "__main__":
    main()
