"""`Decode`, the choices of a decoder: below models, so that a family can name its defaults without importing decoders."""

from sinkscope.settings.decode import Decode
from sinkscope.settings.sparse import SparseCache

__all__ = ["Decode", "SparseCache"]
