"""What a user of the laboratory can fix."""

from sinkscope.errors import SinkscopeError


class TrainingError(SinkscopeError):
    """A recipe is wrong, or a training folder cannot be used."""
