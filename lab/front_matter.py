"""The first lines of a model card: licence, library, tags and base, as the Hub reads them."""

from __future__ import annotations

BASES = {"smollm2-135m": "HuggingFaceTB/SmolLM2-135M-Instruct"}  # Apache-2.0, like everything here


def front_matter(*tags: str, base: str | None = None) -> list[str]:
    """Lines of YAML between two rules; base: the zoo name of the model that an adapter changes."""
    of = [] if base is None else [f"base_model: {BASES[base]}", "base_model_relation: adapter"]
    return [
        "---",
        "license: apache-2.0",
        "language: en",
        "library_name: sinkscope",
        "pipeline_tag: text-generation",
        *of,
        f"tags: [{', '.join(('attention-sinks', *tags))}]",
        "---",
        "",
    ]
