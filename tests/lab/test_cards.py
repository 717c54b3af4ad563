"""Every model in the zoo has a card with a licence; adapters name their base."""

from __future__ import annotations

import pytest
import yaml

from lab import planted
from lab.export import ZOO

NAMES = sorted(folder.name for folder in ZOO.iterdir() if folder.is_dir() and not folder.name.startswith("_"))


@pytest.mark.parametrize("name", NAMES)
def test_a_card_has_front_matter(name: str) -> None:
    text = (ZOO / name / "README.md").read_text(encoding="utf-8")
    opened, head, body = text.split("---\n", 2)
    found = yaml.safe_load(head)
    assert opened == "" and body.lstrip().startswith(f"# {name}\n")
    assert (found["license"], found["library_name"]) == ("apache-2.0", "sinkscope")
    adapter = (ZOO / name / "adapter_config.json").is_file()
    assert found.get("base_model") == ("HuggingFaceTB/SmolLM2-135M-Instruct" if adapter else None)


@pytest.mark.parametrize("kind", planted.KINDS)
def test_planted_cards_are_what_the_maker_writes(kind: str) -> None:
    assert (ZOO / f"planted-{kind}" / "README.md").read_text(encoding="utf-8") == planted.card(kind)
