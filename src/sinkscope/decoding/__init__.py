"""Canvas to text: one denoising loop for all families, left-to-right decoding beside it, and settings made to fit a model."""

from sinkscope.decoding import samplers  # noqa: F401 - so that Decode has them
from sinkscope.decoding.caches import CachePolicy
from sinkscope.decoding.caches.evicting import SparseCache
from sinkscope.decoding.canvas import Decoded, Step
from sinkscope.decoding.decoder import decode, prepare, refuse_unused, resolve_settings
from sinkscope.decoding.settings import SAMPLERS, Decode

__all__ = [
    "SAMPLERS",
    "CachePolicy",
    "Decode",
    "Decoded",
    "SparseCache",
    "Step",
    "decode",
    "prepare",
    "refuse_unused",
    "resolve_settings",
]
