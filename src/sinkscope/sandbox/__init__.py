"""Run programs that a model wrote, in isolation: own process, no network, an empty file tree, hard limits."""

from sinkscope.sandbox.execute import Limits, SandboxResult, check, check_many, require_sandbox, run_python

__all__ = ["Limits", "SandboxResult", "check", "check_many", "require_sandbox", "run_python"]
