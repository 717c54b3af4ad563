"""Every sampler of the package: settings beside their commit rule; a new one is a file, and a line here."""

from sinkscope.decoding.samplers import (  # noqa: F401 - each makes itself known as Decode.NAME
    block_diffusion,
    causal,
    certainty,
    diffusion_gemma,
    dllm,
    dream,
    klass,
    llada,
    nemotron,
    parallel,
    rnd1,
    sparse_dllm,
    wino,
)
