"""How logits become a candidate and its confidence. Every file here is imported automatically."""

from importlib import import_module
from pkgutil import iter_modules

from sinkscope.decoding.choose.chooser import CHOICES, Chooser, choice_of, register

for _found in iter_modules(__path__):
    import_module(f"{__name__}.{_found.name}")

__all__ = ["CHOICES", "Chooser", "choice_of", "register"]
