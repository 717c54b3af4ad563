"""What a device can do, by its data sheet; and how much of that eager transformers code gets out of it, as assumed here."""

from __future__ import annotations

from dataclasses import dataclass

from sinkscope.errors import StudyError

COMPUTE, TRANSFER = 0.35, 0.6  # share of the peak that is reached; assumed, not measured here
LAUNCH = 0.4e-3  # seconds that starting the kernels of one layer takes on a GPU, whatever their size; assumed
CORE = 20e9  # floating point operations per second of one CPU core in float32; assumed, see --measure


@dataclass(frozen=True)
class Device:
    """Peak rates of one device. half, single: operations per second in bfloat16 (dense) and float32; bytes in all."""

    name: str
    half: float
    single: float
    bandwidth: float  # bytes per second
    memory: float  # bytes

    def seconds(self, flops: float, moved: float, layers: int, half: bool) -> float:
        """Of one forward that computes so much and reads so many bytes."""
        rate = (self.half if half else self.single) * COMPUTE
        return max(flops / rate, moved / (self.bandwidth * TRANSFER)) + layers * LAUNCH


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


def device_of(name: str) -> Device | None:
    """The GPU of that name, however it is spelt; None for a CPU."""
    plain = "".join(sign for sign in name.lower() if sign.isalnum())
    if plain in ("cpu", "thiscpu"):
        return None
    for device in GPUS.values():
        if plain.removeprefix("nvidia").removeprefix("geforce").startswith("".join(device.name.lower().split())):
            return device
    raise StudyError(f"Expected cpu or a GPU of the table ({', '.join(GPUS)}), got {name!r}.")
