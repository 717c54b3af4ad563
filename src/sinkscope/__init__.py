"""Trace, mask and measure attention sinks in diffusion language models."""

import logging

import lazy_loader

__version__ = "0.1.0"

# What the library has to say is logged under its name; a program that sets up no logging hears nothing.
logging.getLogger(__name__).addHandler(logging.NullHandler())

# The public names stand in __init__.pyi alone. Each is imported on first use: `sinkscope --help` need not wait for torch.
__getattr__, _, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__ += ["__version__"]


def __dir__() -> list[str]:
    return sorted(__all__)
