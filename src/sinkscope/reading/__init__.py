"""What can be read at a position: the logit lens, linear probes, and the norms of what passes through it."""

from sinkscope.reading.activations import Activations, activations
from sinkscope.reading.lens import hidden_states, lens
from sinkscope.reading.probe import Probe, probe

__all__ = ["Activations", "Probe", "activations", "hidden_states", "lens", "probe"]
