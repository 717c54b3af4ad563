"""Every cache policy of the package: what a decoder keeps between forwards; a new one is a file, and a line here."""

from sinkscope.decoding.caches import d2cache, evicting, keeping  # noqa: F401 - each makes itself known
from sinkscope.decoding.caches.policy import CACHE_POLICIES, CachePolicy, CacheStep, read_policy

__all__ = ["CACHE_POLICIES", "CachePolicy", "CacheStep", "read_policy"]
