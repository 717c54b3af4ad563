"""Weights of a loaded model packed into 8 or 4 bits by torchao; activations stay as they are."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

import torch
from torch import nn

from sinkscope.errors import CheckpointError
from sinkscope.fields import shown
from sinkscope.models.base import Model
from sinkscope.models.weights import no_warnings

SCHEMES = ("int8", "int4")  # a scale per row; a scale and a zero point per GROUP inputs of a row
GROUP = 32


def checked_scheme(asked: Any) -> None:
    """Refuse what is neither one of our schemes nor a quantization_config of transformers."""
    if asked is None or (isinstance(asked, str) and asked in SCHEMES):
        return
    from transformers.utils.quantization_config import QuantizationConfigMixin

    if not isinstance(asked, QuantizationConfigMixin):
        raise CheckpointError(
            f"Expected quantization as {' or '.join(SCHEMES)}, or a config of transformers such as BitsAndBytesConfig(…), "
            f"got {shown(asked, 60)}."
        )


def packed_by(scheme: Any) -> str | None:
    """A short name for a quantization_config, given as an object or as config.json has it."""
    if not scheme or isinstance(scheme, str):
        return scheme or None
    if not isinstance(scheme, dict) and not hasattr(scheme, "to_dict"):
        return shown(scheme, 60)
    values = scheme if isinstance(scheme, dict) else scheme.to_dict()
    bits = next(
        (f" {bits} bit" for bits in (8, 4) if values.get(f"load_in_{bits}bit") or values.get("bits") == bits), ""
    )
    return f"{getattr(values.get('quant_method'), 'value', values.get('quant_method')) or 'unknown'}{bits}"


def digest(fingerprint: str, scheme: Any) -> str:
    """Of weights and how they were packed: two packings of one checkpoint are two models."""
    values = scheme if isinstance(scheme, str) else scheme.to_dict()
    return hashlib.sha256(f"{fingerprint}{json.dumps(values, sort_keys=True, default=str)}".encode()).hexdigest()


def quantize(model: Model, scheme: str) -> Model:
    """Pack every linear layer but the output head, in place; embeddings, norms and experts in one tensor stay plain."""
    try:
        with no_warnings():
            from torchao.quantization import Int8WeightOnlyConfig, IntxWeightOnlyConfig, MappingType, quantize_
            from torchao.quantization.granularity import PerGroup
    except ImportError:
        raise CheckpointError(
            f"{scheme} weights need the package torchao; install it: pip install -e '.[quant]'"
        ) from None
    ends: Any = model.module
    head = ends.get_output_embeddings()
    layers = [part for part in model.module.modules() if isinstance(part, nn.Linear) and part is not head]
    group = PerGroup(math.gcd(GROUP, *(part.in_features for part in layers)))
    how = (
        Int8WeightOnlyConfig(set_inductor_config=False)
        if scheme == "int8"
        else IntxWeightOnlyConfig(torch.int4, group, MappingType.ASYMMETRIC)  # type: ignore[attr-defined]
    )
    quantize_(model.module, how, filter_fn=lambda part, name: isinstance(part, nn.Linear) and part is not head)
    model.quantization, model.fingerprint = scheme, digest(model.fingerprint, scheme)
    return model
