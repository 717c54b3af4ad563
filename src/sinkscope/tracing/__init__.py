"""What one generation left behind: recorded while it runs, kept in one file, asked for its sinks."""

from sinkscope.tracing.record import Trace
from sinkscope.tracing.tracer import trace

__all__ = ["Trace", "trace"]
