"""Results to look at: one offline page, figures for print, a loopback server, a frame in a notebook."""

from sinkscope.report.writing import write, write_traces

__all__ = ["write", "write_traces"]
