"""Every sampler of the package: settings beside their commit rule; a new one is a file, and a line here."""

from sinkscope.decoding.samplers import (  # noqa: F401 - each makes itself known as Decode.NAME
    bd3lm,
    block_diffusion,
    causal,
    certainty,
    diffusion_gemma,
    dllm,
    dream,
    gidd,
    klass,
    llada,
    mdlm,
    nemotron,
    parallel,
    rnd1,
    wino,
)
