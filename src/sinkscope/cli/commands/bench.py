"""`sinkscope bench MODEL`: what column sums, observing and masking cost on this machine, as ratios of one run."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from statistics import median
from typing import Annotated

import typer

from sinkscope.cli.options import Device, Dtype, JsonFlag, ModelArgument
from sinkscope.cli.screen import output, print_json, waiting


def register(app: typer.Typer) -> None:
    @app.command()
    def bench(
        model: ModelArgument = "tiny-llada",
        length: Annotated[int, typer.Option(help="Tokens to generate.", min=1)] = 32,
        prompt: Annotated[int, typer.Option(help="Tokens of the prompt.", min=1)] = 32,
        repeats: Annotated[int, typer.Option(help="Rounds; the ways take turns in each.", min=1)] = 5,
        dtype: Dtype = None,
        device: Device = None,
        as_json: JsonFlag = False,
    ) -> None:
        """Time plain, traced and masked generation, and attend against torch's own attention, each interleaved."""
        import torch

        import sinkscope as sk
        from sinkscope.attention.timing import against_sdpa
        from sinkscope.decoding import resolve_settings

        with waiting("loading …"):
            loaded = sk.load(model, dtype=dtype, device=device)
        ids = torch.randint(0, min(loaded.vocabulary, 100), (1, prompt), generator=torch.Generator().manual_seed(0))
        settings = resolve_settings(loaded.defaults, loaded, prompt, {"length": length})

        def wait() -> None:
            if torch.cuda.is_available():
                torch.cuda.synchronize()

        def plain() -> None:
            sk.decode(loaded, ids, settings, history=False)
            wait()

        def traced() -> None:
            sk.trace(loaded, ids, settings)
            wait()

        def masked() -> None:
            with sk.intervene(loaded, sk.MaskSinks(k=5)):
                sk.decode(loaded, ids, settings, history=False)
            wait()

        with waiting("measuring …"), torch.inference_mode():
            seconds = _interleaved({"plain": plain, "traced": traced, "masked": masked}, repeats)
            weights = next(loaded.module.parameters())
            calls = against_sdpa(weights.device, weights.dtype, repeats)
        rows = {name: {"seconds": taken, "ratio": taken / seconds["plain"]} for name, taken in seconds.items()}
        if as_json:
            attention = [{**asdict(call), "ratio": call.ratio} for call in calls]
            about = {"model": loaded.identity(), "machine": _machine(), "threads": torch.get_num_threads()}
            print_json({**about, "settings": settings.to_dict(), **rows, "attention": attention})
            return
        output().print(
            f"{loaded.name}: {prompt} + {length} tokens, {torch.get_num_threads()} threads, median of {repeats}"
        )
        for name, row in rows.items():
            output().print(f"  {name:8}{row['seconds']:9.3f} s {row['ratio']:7.2f} ×")
        dtype_name = str(weights.dtype).removeprefix("torch.")
        output().print(
            f"attend ({calls[0].backend}) against torch's own attention, {calls[0].heads} heads of {calls[0].dim}, {dtype_name}:"
        )
        for call in calls:
            order = "causal" if call.causal else "sees all"
            output().print(
                f"  {call.length:6} {order:9}{1000 * call.sdpa:9.3f} ms {1000 * call.attend:9.3f} ms {call.ratio:6.2f} ×"
            )


def _machine() -> dict[str, str | None]:
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


def _interleaved(ways: dict[str, Callable[[], None]], repeats: int) -> dict[str, float]:
    """Median seconds of each way; they take turns, so that a busy moment hits all of them."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(repeats + 1):
        for name, way in ways.items():
            started = time.perf_counter()
            way()
            if turn:  # the first round warms up
                taken[name].append(time.perf_counter() - started)
    return {name: median(times) for name, times in taken.items()}
