"""The command line: parse, call, print; work happens elsewhere, and nothing here imports torch before a command runs."""

from sinkscope.cli.app import main

__all__ = ["main"]
