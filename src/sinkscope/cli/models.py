"""`sinkscope models`, `check MODEL` and `bench MODEL`: what can be loaded, whether it is sound, and what it costs here."""

from __future__ import annotations

import platform
from collections.abc import Callable
from functools import partial
from typing import Annotated

from typer import Exit, Option

from sinkscope.cli.app import PREPARE, command
from sinkscope.cli.options import Device, Dtype, JsonFlag, LoadOptions, ModelArgument, counts
from sinkscope.cli.screen import output, print_json, say_error, table_of, waiting


@command(PREPARE, "sinkscope models")
def models(as_json: JsonFlag = False) -> None:
    """List the models that come with sinkscope, and the families that it can load."""
    from sinkscope.models import hub
    from sinkscope.models.family import FAMILIES

    rows = hub.list_zoo()
    families = list(FAMILIES)
    if as_json:
        print_json({"models": rows, "families": families})
        return
    console = output()
    console.print(table_of([{**row, "here": "yes" if row["here"] else "no"} for row in rows]))
    console.print(f"\nAlso: a folder with config.json and safetensors, a GGUF file, or a Hub id.\n"
                  f"Families: {', '.join(families)}.")  # fmt: skip


@command(PREPARE, "sinkscope check tiny-llada")
def check(
    model: ModelArgument,
    everything: Annotated[bool, Option("--all", help="Also backends, caches, several GPUs and memory.")] = False,
    as_json: JsonFlag = False,
    *,
    options: LoadOptions,
) -> None:
    """Check that a model loads whole, attends as its family does, decodes, and obeys an intervention.

    With --quantization also how far logits and received attention drift from the plain weights.
    """
    from rich.text import Text

    from sinkscope.checkup import checkup

    with waiting(f"checking {model} …"):
        checks = list(checkup(model, everything=everything, **options.load_words()))
    failed = [one for one in checks if one.status == "failed"]
    if as_json:
        shown = [one.to_dict() for one in checks]
        print_json({"model": model, "ok": not failed, "checks": shown, "machine": machine()})
    else:
        colours = {"ok": "green", "failed": "red", "skipped": "dim"}
        rows = [
            {"check": one.name, "": Text(one.status, colours[one.status]), "what was found": one.detail}
            for one in checks
        ]
        output().print(table_of(rows))
    if failed:
        say_error(f"{model}: {len(failed)} of {len(checks)} checks failed; {failed[0].name}: {failed[0].detail}")
        raise Exit(1)


@command(PREPARE, "sinkscope bench tiny-llada")
def bench(
    model: ModelArgument = "tiny-llada",
    length: Annotated[int, Option(help="Tokens to generate.", min=1)] = 32,
    prompt: Annotated[int, Option(help="Tokens of the prompt.", min=1)] = 32,
    repeats: Annotated[int, Option(help="Rounds; each round runs every variant once.", min=1)] = 5,
    dtype: Dtype = None,
    device: Device = None,
    lengths: Annotated[str | None, Option(help="Positions of the attention calls, with commas.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Time plain, traced and masked generation, and attend against torch's own attention, each interleaved."""
    import torch

    import sinkscope as sk
    from sinkscope.attention.selfcheck import against_reference, against_sdpa, in_turns
    from sinkscope.checkup import peak
    from sinkscope.decoding import resolve_settings

    asked = None if lengths is None else counts(lengths)
    with waiting("loading …"):
        loaded = sk.load(model, dtype=dtype, device=device)
    ids = torch.randint(0, min(loaded.vocabulary, 100), (1, prompt), generator=torch.Generator().manual_seed(0))
    settings = resolve_settings(loaded.defaults, loaded, prompt, {"length": length})
    plain = partial(sk.decode, loaded, ids, settings, history=False)

    def masked() -> None:
        with sk.intervene(loaded, sk.MaskSinks(k=5)):
            plain()

    traced = partial(sk.trace, loaded, ids, settings)
    ways: dict[str, Callable[[], object]] = {"plain": plain, "traced": traced, "masked": masked}
    with waiting("measuring …"), torch.inference_mode():
        seconds = dict(zip(ways, in_turns(list(ways.values()), repeats, loaded.device), strict=True))
        peaks = {name: peak(loaded.device, way) for name, way in ways.items()}
        weights = next(loaded.module.parameters())
        attention = against_sdpa(weights.device, weights.dtype, repeats, asked)
        errors = against_reference(weights.device, weights.dtype)
    rows = {
        name: {"seconds": taken, "ratio": taken / seconds["plain"], "peak_bytes": peaks[name]}
        for name, taken in seconds.items()
    }
    threads = torch.get_num_threads()
    if as_json:
        print_json(
            {"model": loaded.identity(), "machine": machine(), "threads": threads, "settings": settings.to_dict(), **rows,
             "attention": attention, "errors": errors}
        )  # fmt: skip
        return
    console = output()
    console.print(f"{loaded.name}: {prompt} + {length} tokens, {threads} threads, median of {repeats}")
    console.print(table_of([{"": name, **row} for name, row in rows.items()]))
    console.print(f"\nattend against torch's own, {weights.dtype}, seconds:")
    console.print(table_of(attention))
    for backend in sorted({one["backend"] for one in errors}):
        own = [one for one in errors if one["backend"] == backend]
        off = max(max(one["out"], one["received"]) for one in own)
        wrong = sum(not one["holds"] for one in own)
        console.print(f"{backend}: {len(own)} kinds of calls, at most {off:.2g} off the formula, {wrong} too far")


def machine() -> dict[str, str | None]:
    """What a reader of the figures must know of where they were measured."""
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "system": platform.platform(), "python": platform.python_version(), "torch": torch.__version__,
        "cuda": torch.version.cuda, "gpu": gpu,
    }  # fmt: skip
