"""The lens of a trace as the page holds it: top tokens per position, layer and step, as codes into a list of words."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from sinkscope.report.coding import Blob
from sinkscope.tracing import Trace

LENS_BYTES = 4 << 20  # raw size up to which the lens goes into the page
LONGEST = 100  # characters of a token


def add_lens(trace: Trace, blob: Blob) -> dict[str, Any] | None:
    """Pack the lens into the blob; what the header says of it, or None where the trace has none or too much of it."""
    tokens, sure = trace.lens_tokens, trace.lens_probability
    if tokens is None or sure is None or 3 * tokens.numel() > LENS_BYTES:
        return None
    # Probabilities as 0 … 255; a token that was not looked up has 0.
    codes = (sure.float().clamp(0, 1) * 255).round().to(torch.uint8)
    ids, places = np.unique(tokens.numpy(), return_inverse=True)
    if len(ids) > 2**16:
        return None
    order = (3, 1, 0, 2)  # [position, layer, step, choice]: one position is one piece
    blob.add("lensTokens", places.reshape(tokens.shape).astype(np.uint16).transpose(order).copy(), "planes")
    blob.add("lensSure", codes.permute(order).contiguous().numpy(), "planes")
    words = [trace.vocabulary.get(int(token), (f"#{token}", "unknown"))[0][:LONGEST] for token in ids]
    return {"words": words, "top": int(tokens.shape[2])}
