"""`Decode`, the choices of a decoder: below models, so that a family can name its defaults without importing decoders."""

from sinkscope.settings.choices import SparseCache
from sinkscope.settings.decode import Decode

__all__ = ["Decode", "SparseCache"]
