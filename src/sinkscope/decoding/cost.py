"""The one model of cost: which forwards decoding makes, and seconds, operations and bytes of each, from a model's sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sinkscope.errors import StudyError

if TYPE_CHECKING:
    from sinkscope.decoding.settings import Decode
    from sinkscope.models.model import Model

QUERY_GROUPS = 3  # that received attention is kept for
TILE = 128  # queries that attention works on at once
LOGIT, ROOM = 8, 1 << 30  # bytes of a logit while a token is chosen, and of all that are looked at together
# The next two, and the rate of CORE in bfloat16, are fitted to five timed studies and to tiny-sdar.
ENDS = 0.6  # of its length, at which a text that may end early is taken to end
TOGETHER = 1.5  # tokens that a threshold is taken to commit at once
MAPS = 10  # bytes per layer, head and key: what it received in two forwards, whether it is hidden and whether it counts


@dataclass(frozen=True)
class Workload:
    """So many forwards of one shape: rows of a batch, positions computed again, keys seen, positions that need logits."""

    forwards: int
    rows: int
    positions: int
    keys: int
    logits: int


def forwards_of(settings: Decode, rows: int, prompt: int) -> list[Workload]:
    """The forwards that one call of `decode` is expected to make.

    An autoregressive decoder reads, then computes a position each, or all of them again (`recompute`). A text that may end
    early is taken to end at ENDS of its length, and a threshold to commit TOGETHER tokens at once: fitted on short answers.
    """
    ends = ENDS if settings.stop != "never" else 1.0
    if settings.left_to_right:
        length = max(1, round(settings.length * ends))
        if getattr(settings, "recompute", False):
            middle = prompt + length // 2
            return [Workload(length, rows, middle, middle, 1)]
        return [Workload(1, rows, prompt, prompt, 1), Workload(length - 1, rows, 1, prompt + length // 2, 1)]
    together = TOGETHER if getattr(settings, "threshold", None) is not None else 1.0
    steps = max(1, round(settings.most_steps * ends / together))
    canvas, block = prompt + settings.length, settings.block or settings.length
    if settings.guidance and settings.layout == "left":
        steps *= 2
    elif settings.guidance:
        rows *= 2  # both copies in one forward
    if settings.cache == "exact":  # a step computes its block alone; every block before it is stored by a forward
        stored = Workload(settings.blocks, rows, prompt // settings.blocks + block, canvas, 0)
        return [stored, Workload(steps, rows, block, canvas, max(block // 2, 1))]
    return [Workload(steps, rows, canvas, canvas, max(block // 2, 1))]


@dataclass(frozen=True)
class Size:
    """Numbers of a model. active: parameters that a token meets in the layers; head: those of the output."""

    parameters: int
    active: int
    layers: int
    heads: int
    head: int = 0
    width: int = 0
    inner: int = 0
    vocabulary: int = 0
    dim: int = 0
    kv_heads: int = 0
    rotary: int = 0  # bytes of a number of a rotated query or key
    cached: bool = False  # keys and values of what was read are kept

    @classmethod
    def of(cls, model: Model) -> Size:
        """From the shapes of a model that may have no weights; of experts, only those that a token goes to are active."""
        config = model.config
        total = sum(parameter.numel() for parameter in model.module.parameters())
        head = model.vocabulary * int(config.hidden_size)
        outside = head * (1 if getattr(config, "tie_word_embeddings", False) else 2)
        experts = sum(part.numel() for name, part in model.module.named_parameters() if ".experts." in name)
        count = getattr(config, "n_routed_experts", None) or getattr(config, "num_experts", None) or 1
        used = min(int(getattr(config, "num_experts_per_tok", None) or count), int(count)) / int(count)
        heads = int(config.num_attention_heads)
        return cls(
            total, round(total - outside - experts * (1 - used)), int(config.num_hidden_layers), heads, head,
            int(config.hidden_size), int(config.intermediate_size or 0), model.vocabulary,
            int(getattr(config, "head_dim", None) or int(config.hidden_size) // heads),
            int(getattr(config, "num_key_value_heads", None) or heads),
            4 if model.family.float32_rotary else model.dtype.itemsize, model.causal or model.block is not None,
        )  # fmt: skip

    def flops(self, work: Workload) -> float:
        """Multiplications and additions of one forward: two for every active weight and token, and the attention."""
        tokens = work.rows * work.positions
        attention = 4 * self.layers * tokens * work.keys * self.heads * self.dim
        return 2.0 * self.active * tokens + attention + 2.0 * self.head * work.rows * work.logits

    def received_flops(self, work: Workload) -> float:
        """Of the second pass over the scores, which sums what every key received: a trace or a ranking needs it."""
        return 2.0 * self.layers * work.rows * work.positions * work.keys * self.heads * self.dim

    def trace_bytes(self, steps: int, canvas: int) -> int:
        """Of one saved trace: what every key received, in float32, for each step, layer, head and group of queries."""
        return steps * self.layers * self.heads * QUERY_GROUPS * canvas * 4

    def activation_bytes(self, work: Workload, itemsize: int, tiled: bool = False) -> int:
        """The most that is alive at once beside the weights, with a trace and a mask.

        tiled: attention is computed tile by tile, as on a CPU. Checked against tensors that are alive on a pretend GPU.
        """
        tokens, keys = work.rows * work.positions, self.layers * work.rows * work.keys
        attention = tokens * (4 * self.heads * self.dim * self.rotary + 5 * self.width * itemsize + 8 * self.dim)
        if tiled:
            attention += work.rows * self.heads * min(work.positions, TILE) * work.keys * 4 * 3
        feed_forward = tokens * (4 * self.width + 3 * self.inner) * itemsize
        logits = min(
            work.rows * 2 * work.logits * self.vocabulary * LOGIT, ROOM
        )  # half of the masks are left, on the average
        cache = 2 * keys * self.kv_heads * self.dim * itemsize if self.cached else tokens * self.width * itemsize
        return max(attention, feed_forward, logits) + cache + keys * self.heads * (MAPS + 2 * QUERY_GROUPS)


# Kernels of a layer, counted on a pretend GPU: lab/results/gpu-counts.md has those of a step.
KERNELS = {"plain": 42, "traced": 44, "masked": 47}


@dataclass(frozen=True)
class Device:
    """Peak rates of one device. half, single: operations per second in bfloat16 (dense) and float32; bytes in all."""

    name: str
    half: float
    single: float
    bandwidth: float  # bytes per second
    memory: float  # bytes
    compute: float = 0.35  # share of the peak that eager transformers code reaches; assumed, not measured here
    transfer: float = 0.6
    launch: float = 9e-6  # seconds until the host has launched a kernel of eager code; assumed
    runtime: float = 800e6  # bytes that a worker takes beside its model: CUDA and its kernels

    def seconds(self, size: Size, work: Workload, itemsize: int = 4, mode: str = "masked") -> float:
        """Of one forward: it computes or reads its weights, whichever takes longer, and its kernels are launched."""
        rate = (self.half if itemsize < 4 else self.single) * self.compute
        moved = (size.active + size.head) * itemsize / (self.bandwidth * self.transfer)
        flops = size.flops(work) + (size.received_flops(work) if mode != "plain" else 0.0)
        return max(flops / rate, moved) + size.layers * KERNELS[mode] * self.launch


# One core of a processor of today, fitted to the CPU seconds in lab/results/scheduling-units.json; in bfloat16 to the pair's.
# Python, torch and transformers take 450 MB.
CORE = Device(
    "this CPU, one core per worker", 160e9, 48e9, 8e9, 0, compute=1.0, transfer=1.0, launch=0.8e-3 / 46, runtime=450e6
)  # fmt: skip
# NVIDIA's data sheets: dense bfloat16 (V100, T4: float16), float32, bandwidth, memory.
GPUS = {
    device.name: device
    for device in (
        Device("T4", 65e12, 8.1e12, 0.32e12, 16e9),
        Device("V100", 125e12, 15.7e12, 0.9e12, 32e9),
        Device("RTX 4090", 165e12, 82.6e12, 1.01e12, 24e9),
        Device("L40S", 362e12, 91.6e12, 0.864e12, 48e9),
        Device("A100", 312e12, 19.5e12, 2.0e12, 80e9),
        Device("H100", 989e12, 67e12, 3.35e12, 80e9),
        Device("H200", 989e12, 67e12, 4.8e12, 141e9),
        Device("B200", 2250e12, 75e12, 8.0e12, 180e9),
    )
}


def device_of(name: str) -> Device:
    """The device of that name, however it is spelt."""
    plain = "".join(sign for sign in name.lower() if sign.isalnum())
    if plain in ("cpu", "thiscpu"):
        return CORE
    for device in GPUS.values():
        if plain.removeprefix("nvidia").removeprefix("geforce").startswith("".join(device.name.lower().split())):
            return device
    raise StudyError(f"Expected cpu or a GPU of the table ({', '.join(GPUS)}), got {name!r}.")


def total_seconds(work: Iterable[Workload], one: Callable[[Workload], float]) -> float:
    """one: seconds of one forward of that shape."""
    return sum(part.forwards * one(part) for part in work)
