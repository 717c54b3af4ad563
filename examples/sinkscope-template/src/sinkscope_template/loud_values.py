from torch import Tensor

from sinkscope.extend import CacheStep, Canvas, DecodeError, Evicting, by_kv_head, settings


@settings(DecodeError)
class LoudValues(Evicting):
    """What was attended to, weighed by how large its value is."""

    name = "loud_values"
    reads_received = True

    def score(self, keys: Tensor, values: Tensor, received: Tensor | None, canvas: Canvas, step: CacheStep) -> Tensor:
        loudness = values.float().norm(dim=-1)  # [batch, kv head, column]
        if received is None:  # everything is kept
            return loudness
        return loudness * by_kv_head(received, keys.shape[1])
