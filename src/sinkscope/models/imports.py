"""What every model needs of transformers, imported at the first load of a process."""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from sinkscope.errors import CheckpointError


@contextmanager
def no_warnings() -> Iterator[None]:
    """torchao, which transformers imports where it is installed, logs every kernel for other machines that it cannot load."""
    before = logging.root.manager.disable
    logging.disable(max(before, logging.WARNING))
    try:
        yield
    finally:
        logging.disable(before)


@cache
def import_transformers() -> None:
    """Import it with the garbage collector at rest.

    Nothing that is imported is garbage, and the collector goes over it again and again: a seventh of the first load.
    """
    if sys.flags.optimize > 1:
        raise CheckpointError(
            "transformers reads docstrings, and Python drops them under -OO or PYTHONOPTIMIZE=2; leave that out, or use -O."
        )
    running = gc.isenabled()
    gc.disable()
    try:
        with no_warnings():
            import transformers.modeling_utils
            import transformers.models.auto.modeling_auto
            import transformers.models.auto.tokenization_auto  # noqa: F401
    finally:
        if running:
            gc.enable()
