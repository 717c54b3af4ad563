"""One exception class per cause, all under SinkscopeError: what was expected, what came, what to do."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

LONGEST = 1100  # characters of a message


def printable(text: str) -> str:
    """Text of a model or a file, with nothing in it that could steer the terminal."""
    return "".join(sign if sign.isprintable() or sign in "\n\t" else "�" for sign in text)


class SinkscopeError(Exception):
    """Base class of all errors that a user can fix; the text is one sentence that says how."""

    def __str__(self) -> str:
        """What came stands in the sentence, and may come from elsewhere: one line, not too long, that steers no terminal."""
        text = printable(super().__str__())
        text = " ".join(text.split()) if "\n" in text else text
        return text if len(text) <= LONGEST else f"{text[: LONGEST - 300]} … {text[-290:]}"


class CheckpointError(SinkscopeError):
    """A checkpoint is not there, not whole, or not what its config says."""


class UnknownFamilyError(SinkscopeError):
    """No registered family knows this config.json."""


class TokenizerError(SinkscopeError):
    """Text was given or wanted, but the model has no tokenizer (or no mask token)."""


class PromptError(SinkscopeError):
    """A prompt is empty, malformed, or does not fit the context."""


class DecodeError(SinkscopeError):
    """Error about decode settings that contradict each other or do not fit the model."""


class CaptureError(SinkscopeError):
    """Attention could not be seen or changed in this module."""


class AttentionError(SinkscopeError):
    """An attention call was given tensors that do not fit together, or a backend that is not there."""


class InterventionError(SinkscopeError):
    """Error about an intervention's settings, alone or for this model."""


class BudgetError(SinkscopeError):
    """What was asked for needs more memory than the stated budget."""


class TraceError(SinkscopeError):
    """A trace, or its file, cannot be used."""


class PluginError(SinkscopeError):
    """A package that adds something to sinkscope cannot be imported."""


class RuleError(SinkscopeError):
    """Error about a sink rule's settings."""


class TaskError(SinkscopeError):
    """Error about an unknown task, or about a request that a task cannot fulfil."""


class SandboxError(SinkscopeError):
    """Generated code cannot be run safely on this machine."""


class StudyError(SinkscopeError):
    """Error about a study file or a run folder that cannot be used."""


class ReportError(SinkscopeError):
    """A report cannot be made from this run."""


class ReadingError(SinkscopeError):
    """A state cannot be read as was asked."""


def error_envelope(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What the work gives, or why it gave nothing: an error of the user's, or a bug of ours.

    A worker answers with it.
    lacking: the model could not be loaded on this machine.
    """
    try:
        return work()
    except CheckpointError as error:
        return {"error": str(error), "lacking": True}
    except SinkscopeError as error:
        return {"error": str(error)}
    except Exception:
        return {"bug": traceback.format_exc()}
