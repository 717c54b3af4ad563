"""`sinkscope bench MODEL`: what column sums, observing and masking cost on this machine, as ratios of one run.

With `--out` everything goes into one JSON file, to be sent with a report: speed, memory, and how far each backend is from the
formula.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sinkscope import io
from sinkscope.cli.groups import command
from sinkscope.cli.options import Device, Dtype, JsonFlag, ModelArgument, counts, writable_file
from sinkscope.cli.screen import output, print_json, waiting

if TYPE_CHECKING:
    import torch

    from sinkscope.attention.compare import Deviation, Timed


@command()
def bench(
    model: ModelArgument = "tiny-llada",
    length: Annotated[int, typer.Option(help="Tokens to generate.", min=1)] = 32,
    prompt: Annotated[int, typer.Option(help="Tokens of the prompt.", min=1)] = 32,
    repeats: Annotated[int, typer.Option(help="Rounds; each round runs every variant once.", min=1)] = 5,
    dtype: Dtype = None,
    device: Device = None,
    lengths: Annotated[str | None, typer.Option(help="Positions of the attention calls, with commas.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write all figures to this JSON file.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Time plain, traced and masked generation, and attend against torch's own attention, each interleaved."""
    import torch

    import sinkscope as sk
    from sinkscope.attention.compare import against_reference, against_sdpa, in_turns
    from sinkscope.decoding import resolve_settings
    from sinkscope.errors import TaskError

    writable_file(out, TaskError)
    asked = None if lengths is None else counts(lengths)
    with waiting("loading …"):
        loaded = sk.load(model, dtype=dtype, device=device)
    ids = torch.randint(0, min(loaded.vocabulary, 100), (1, prompt), generator=torch.Generator().manual_seed(0))
    settings = resolve_settings(loaded.defaults, loaded, prompt, {"length": length})

    def masked() -> None:
        with sk.intervene(loaded, sk.MaskSinks(k=5)):
            sk.decode(loaded, ids, settings, history=False)

    with waiting("measuring …"), torch.inference_mode():
        plain = partial(sk.decode, loaded, ids, settings, history=False)
        ways: dict[str, Callable[[], object]] = {
            "plain": plain,
            "traced": partial(sk.trace, loaded, ids, settings),
            "masked": masked,
        }
        seconds = dict(zip(ways, in_turns(list(ways.values()), repeats, loaded.device), strict=True))
        peaks = {name: _peak(loaded.device, way) for name, way in ways.items()}
        weights = next(loaded.module.parameters())
        calls = against_sdpa(weights.device, weights.dtype, repeats, asked)
        errors = against_reference(weights.device, weights.dtype)
    rows = {
        name: {"seconds": taken, "ratio": taken / seconds["plain"], "peak_bytes": peaks[name]}
        for name, taken in seconds.items()
    }
    attention = [{**asdict(call), "ratio": call.ratio} for call in calls]
    about = {"model": loaded.identity(), "machine": machine(), "threads": torch.get_num_threads()}
    compared = [{**asdict(one), "holds": one.holds} for one in errors]
    whole = {**about, "settings": settings.to_dict(), **rows, "attention": attention, "errors": compared}
    if out is not None:
        io.write(out, json.dumps(whole, indent=1, allow_nan=False) + "\n")
    if as_json:
        print_json(whole)
        return
    output().print(f"{loaded.name}: {prompt} + {length} tokens, {torch.get_num_threads()} threads, median of {repeats}")
    _print(rows, calls, errors)


def _print(rows: dict[str, dict[str, Any]], calls: Sequence[Timed], errors: Sequence[Deviation]) -> None:
    for name, row in rows.items():
        peak = "" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 2**20:9,.0f} MB"
        output().print(f"  {name:8}{row['seconds']:9.3f} s {row['ratio']:7.2f} ×{peak}")
    first = calls[0]
    output().print(
        f"attend ({first.backend}) against torch's own attention, {first.heads} heads of {first.dim}, {errors[0].dtype}:"
    )
    for call in calls:
        order = "causal" if call.causal else "sees all"
        output().print(
            f"  {call.length:6} {order:9}{1000 * call.sdpa:9.3f} ms {1000 * call.attend:9.3f} ms {call.ratio:6.2f} ×"
        )
    for backend in sorted({one.backend for one in errors}):
        own = [one for one in errors if one.backend == backend]
        off, wrong = max(max(one.out, one.received) for one in own), sum(not one.holds for one in own)
        output().print(f"{backend}: {len(own)} kinds of calls, at most {off:.2g} off the formula, {wrong} too far")


def _peak(device: torch.device, run: Callable[[], object]) -> int | None:
    """The most bytes that a GPU's tensors took while something ran; None elsewhere."""
    import torch

    if device.type != "cuda" or not torch.cuda.is_available():
        return None
    torch.cuda.reset_peak_memory_stats(device)
    run()
    return int(torch.cuda.max_memory_allocated(device))


def machine() -> dict[str, str | None]:
    """What a reader of the figures must know of where they were measured."""
    import torch

    try:
        triton: str | None = version("triton")
    except PackageNotFoundError:
        triton = None
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "system": platform.platform(), "python": platform.python_version(), "torch": torch.__version__,
        "triton": triton, "cuda": torch.version.cuda, "gpu": gpu,
    }  # fmt: skip
