"""What one generation left behind: recorded while it runs, kept in one file, asked for its sinks."""

from sinkscope.tracing.record import trace
from sinkscope.tracing.trace import DEFINITIONS, Trace

__all__ = ["DEFINITIONS", "Trace", "trace"]
