"""Build every variant of the Triton kernels for GPUs that are not here, and write down what each one takes.

    python benchmarks/triton_aot.py                 # prints the table
    python benchmarks/triton_aot.py --write         # … and writes docs/results/triton.md

Triton and the ptxas inside its package need no GPU to make machine code. That shows that each variant builds, and what it
asks for: registers, spills to memory, shared memory. It does not show speed, which the roofline on the page only bounds;
`sinkscope bench --device cuda` times whole generations where there is a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "triton.md"
ARCHITECTURES = (80, 90)  # A100, H100
SHARED_MOST = {80: 163 * 1024, 90: 227 * 1024}  # bytes of shared memory that a program may take
REGISTERS_MOST = 255  # per thread
ITEM_SIZES = {"fp32": 4, "fp16": 2, "bf16": 2}
MASKS = ("none", "bool", "additive")
BLOCKS = (0, 1, 32)  # sees all, causal, block-causal
DROPS = ("none", "drop", "keep_self", "clean")


@dataclass(frozen=True)
class Variant:
    """One kernel as a call would specialise it."""

    kernel: str  # "output" or "received"
    dtype: str  # Triton's name: fp32, fp16, bf16
    mask: str
    block: int
    drop: str
    dim: int = 128
    groups: int = 3

    @property
    def name(self) -> str:
        order = {0: "sees all", 1: "causal"}.get(self.block, f"blocks of {self.block}")
        return f"{self.kernel}, {self.dtype}, dim {self.dim}, {order}, mask {self.mask}, drop {self.drop}"


@dataclass(frozen=True)
class Built:
    """What one cubin takes."""

    bytes: int
    registers: int  # per thread
    spills: int  # bytes stored and loaded per thread because registers ran out
    shared: int  # bytes per program
    warps: int


def variants(dtypes: tuple[str, ...], dims: tuple[int, ...]) -> Iterator[Variant]:
    """All of them. The received kernel knows no clean sums: it runs once more, without the dropped keys."""
    for kernel, dtype, mask, block, drop, dim in itertools.product(
        ("output", "received"), dtypes, MASKS, BLOCKS, DROPS, dims
    ):
        if kernel == "output" or drop != "clean":
            yield Variant(kernel, dtype, mask, block, drop, dim)


def few(dtypes: tuple[str, ...], dims: tuple[int, ...]) -> Iterator[Variant]:
    """Some of them, in which each mask, order and way to drop keys occurs in each kernel."""
    for dtype, dim in itertools.product(dtypes, dims):
        for mask, block, drop in (("none", 0, "none"), ("bool", 1, "drop"), ("additive", 32, "keep_self")):
            yield Variant("output", dtype, mask, block, drop, dim)
            yield Variant("received", dtype, mask, block, drop, dim)
        yield Variant("output", dtype, "none", 32, "clean", dim)


def source(variant: Variant) -> Any:
    """The kernel with the types, constants and alignments that a launch on contiguous tensors gives it."""
    from triton.compiler import ASTSource

    from sinkscope.attention import triton as kernels

    kernel = kernels.output_kernel if variant.kernel == "output" else kernels.received_kernel
    side = kernels.fitting(variant.dim)
    launch = kernels.launch_options(ITEM_SIZES[variant.dtype], variant.dim)
    constants: dict[str, Any] = {
        "MASK": MASKS.index(variant.mask), "BLOCK": variant.block, "DROP": variant.drop != "none",
        "KEEP_SELF": variant.drop == "keep_self", "CLEAN": variant.drop == "clean", "ROWS": launch.rows,
        "KEYS": launch.keys, "DIM": side, "VALUE": side, "GROUPS": kernels.fitting(variant.groups), "WIDEN": False,
    }  # fmt: skip
    pointer = "*" + variant.dtype
    pointers = dict.fromkeys(("q", "k", "v", "out"), pointer)
    pointers |= dict.fromkeys(("peaks", "shares", "clean_peaks", "clean_shares", "received"), "*fp32")
    pointers |= {
        "labels": "*i32",
        "mask": {"none": pointer, "bool": "*u8", "additive": pointer}[variant.mask],
        "drop": pointer if variant.drop == "none" else "*u8",
    }
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
        elif name in ("scale", "masked_at"):
            signature[name] = "fp32"
        else:
            signature[name] = "i32"
            if re.match(r"(q|k|v|out)_(batch|head|row|key)$", name):
                aligned[index,] = [["tt.divisibility", 16]]
    return ASTSource(kernel, signature, given, aligned)


def build(variant: Variant, architecture: int) -> Built:
    """A cubin for this architecture; triton raises where it cannot be built."""
    import triton
    from triton.backends.compiler import GPUTarget

    from sinkscope.attention.triton import launch_options

    options = launch_options(ITEM_SIZES[variant.dtype], variant.dim).options
    said = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, triton.knobs.cache.scope(), triton.knobs.nvidia.scope():
        triton.knobs.cache.dir = folder  # so that ptxas runs, and says what it did
        triton.knobs.nvidia.dump_ptxas_log = True
        with contextlib.redirect_stdout(said):
            made = triton.compile(source(variant), target=GPUTarget("cuda", architecture, 32), options=options)
    log = said.getvalue()
    spills = [int(size) for size in re.findall(r"(\d+) bytes spill", log)]
    return Built(
        bytes=len(made.asm["cubin"]),
        registers=int(re.findall(r"Used (\d+) registers", log)[-1]),
        spills=sum(spills),
        shared=made.metadata.shared,
        warps=made.metadata.num_warps,
    )


# ---- the page ----


def summary(built: dict[tuple[Variant, int], Built]) -> list[str]:
    """A row for each kernel, dtype and architecture: the least and the most of its variants."""
    lines = [
        "| kernel | dtype | dim | sm | variants | registers per thread | spilled bytes per thread | shared memory, KB | warps |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    rows: dict[tuple[str, str, int, int], list[Built]] = {}
    for (variant, architecture), found in built.items():
        rows.setdefault((variant.kernel, variant.dtype, variant.dim, architecture), []).append(found)
    for key, found in sorted(rows.items()):
        registers, spills = sorted(one.registers for one in found), sorted(one.spills for one in found)
        shared = sorted(one.shared for one in found)
        lines.append(
            f"| {' | '.join(str(part) for part in key)} | {len(found)} | {registers[0]}–{registers[-1]} "
            f"| {spills[0]}–{spills[-1]} ({sum(size > 0 for size in spills)} spill) "
            f"| {shared[0] / 1024:.0f}–{shared[-1] / 1024:.0f} | {found[0].warps} |"
        )
    return lines


def roofline(length: int = 4096, heads: int = 32, dim: int = 128) -> list[str]:
    """Least times on an H100 SXM, from its data sheet: dense products 989 TFLOP/s in bf16, 67 in fp32; 3.35 TB/s."""
    product = 2 * heads * length * length * dim  # q·k once, in FLOP; p·v is as many
    exponentials = heads * length * length
    exponential_rate = 132 * 16 * 1.83e9  # 132 SMs × 16 per clock × 1.83 GHz
    lines = [
        "| one call, bf16, S = 4096, 32 heads, dim 128 | products, ms | exponentials, ms | memory, ms |", "|---|---|---|---|",
    ]  # fmt: skip
    tensors = heads * length * dim * 2
    for name, products, passes, moved in (
        ("plain flash attention", 2, 1, 4 * tensors),
        ("attend: output, then received", 3, 2, 6 * tensors + heads * length * (4 * 4)),
        ("eager, with the map in memory", 2, 1, 4 * tensors + 4 * heads * length * length * 2),
    ):
        lines.append(
            f"| {name} | {products * product / 989e12 * 1e3:.2f} | {passes * exponentials / exponential_rate * 1e3:.2f} "
            f"| {moved / 3.35e12 * 1e3:.2f} |"
        )
    return lines


def page(command: str, built: dict[tuple[Variant, int], Built]) -> str:
    import triton

    return "\n".join([
        "# The Triton kernels, built without a GPU", "",
        f"`{command}`, triton {triton.__version__} and the ptxas inside its package. No GPU was there: this page says that "
        "the kernels build and what they take, not how fast they are. Their numbers are checked against the reference in "
        "Triton's interpreter.", "",
        f"{len(built)} cubins, all built: {len({variant for variant, _ in built})} variants (of mask none, bool, additive "
        "× sees all, causal, blocks of 32 × no keys dropped, dropped, dropped but from themselves, with clean sums; all "
        "combinations unless the command says `--few`) for sm_80 and sm_90.", "",
        *summary(built), "",
        f"A program may use {REGISTERS_MOST} registers per thread and {SHARED_MOST[80] // 1024} KB (sm_80) or "
        f"{SHARED_MOST[90] // 1024} KB (sm_90) of shared memory.", "",
        "Building showed what the interpreter cannot: three float32 builds with tiles of 64 × 64 (8 warps, 2 stages) spilled "
        "18 to 37 KB per thread, so float32 takes 32 × 32 now. Warps and stages were chosen by these builds, not by timing.", "",
        "## A roofline on paper, H100 SXM", "",
        "Assumed: data-sheet peaks (989 TFLOP/s dense bf16, 3.35 TB/s), 16 exponentials per SM and clock at 1.83 GHz on 132 "
        "SMs, every tensor moved once per pass, nothing overlapped or lost. The longest column bounds a call from below.", "",
        *roofline(), "",
        "By this count the received pass costs one product and one round of exponentials more than plain attention: 1.5 × in "
        "products, 2 × in exponentials, and little memory. fp32 runs as IEEE products without tensor cores (67 TFLOP/s), as "
        "the sums must hold to 5e-5, and takes about 15 × as long.", "",
        "## The real table", "",
        "There is none yet: nobody has run this on a GPU. To make it, on a machine with one:", "", "```bash",
        "pip install 'sinkscope[triton]'", "sinkscope bench --device cuda --dtype bfloat16 --json > bench.json", "```", "",
        "That times attend against F.scaled_dot_product_attention in turns (32 heads of 128, 256 to 8192 positions, causal and "
        "not, three groups), and plain, traced and masked generation of tiny-llada; a few minutes, most of them compiling. "
        "bench.json names the GPU and the versions, and nothing else of the machine. Please open an issue with that file: its "
        "table goes here, with the name you want under it. A ratio above the roofline's 1.5 to 2 × is as welcome as one below.",
        "",
    ])  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtypes", nargs="+", default=["bf16", "fp16", "fp32"])
    parser.add_argument("--dims", nargs="+", type=int, default=[128])
    parser.add_argument("--few", action="store_true", help="only some of the variants: a minute in place of ten")
    parser.add_argument("--write", action="store_true", help=f"write docs/results/{RESULTS.name}")
    asked = parser.parse_args()
    built = {}
    for variant in (few if asked.few else variants)(tuple(asked.dtypes), tuple(asked.dims)):
        for architecture in ARCHITECTURES:
            built[variant, architecture] = found = build(variant, architecture)
            print(f"sm_{architecture} {variant.name}: {found}", flush=True)
    chosen = f"{'--few ' if asked.few else ''}--dtypes {' '.join(asked.dtypes)} --dims {' '.join(str(dim) for dim in asked.dims)}"
    text = page(f"python benchmarks/triton_aot.py {chosen} --write", built)
    print(text)
    if asked.write:
        RESULTS.write_text(text)


if __name__ == "__main__":
    main()
