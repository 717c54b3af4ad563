"""`sinkscope bench MODEL`: what observing and masking cost on this machine, as ratios of one run."""

from __future__ import annotations

import time
from collections.abc import Callable
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
        """Time plain, traced and masked generation, interleaved, and give the ratios."""
        import torch

        import sinkscope as sk
        from sinkscope.decoding import fitted

        with waiting("loading …"):
            loaded = sk.load(model, dtype=dtype, device=device)
        ids = torch.randint(0, min(loaded.vocabulary, 100), (1, prompt), generator=torch.Generator().manual_seed(0))
        settings = fitted(loaded.defaults, loaded, prompt, {"length": length})

        def plain() -> None:
            sk.decode(loaded, ids, settings, history=False)

        def traced() -> None:
            sk.trace(loaded, ids, settings)

        def masked() -> None:
            with sk.intervene(loaded, sk.MaskSinks(k=5)):
                sk.decode(loaded, ids, settings, history=False)

        with waiting("measuring …"):
            seconds = _interleaved({"plain": plain, "traced": traced, "masked": masked}, repeats)
        rows = {name: {"seconds": taken, "ratio": taken / seconds["plain"]} for name, taken in seconds.items()}
        if as_json:
            print_json(
                {"model": loaded.identity(), "threads": torch.get_num_threads(), "settings": settings.to_dict(), **rows}
            )
            return
        output().print(
            f"{loaded.name}: {prompt} + {length} tokens, {torch.get_num_threads()} threads, median of {repeats}"
        )
        for name, row in rows.items():
            output().print(f"  {name:8}{row['seconds']:9.3f} s {row['ratio']:7.2f} ×")


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
