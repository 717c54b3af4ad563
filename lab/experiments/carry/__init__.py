"""What can be read at sinks: the logit lens, linear probes, and the norms of what passes through a position."""
