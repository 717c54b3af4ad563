"""The reference in docs/ is what the code says now."""

from __future__ import annotations

import runpy
from pathlib import Path


def test_the_reference_is_up_to_date() -> None:
    generator = runpy.run_path(str(Path(__file__).parents[1] / "docs" / "generate.py"))
    for path, text in generator["pages"]().items():
        assert path.is_file(), f"{path.name} is missing: run make docs"
        assert path.read_text() == text, f"{path.name} is out of date: run make docs"


def test_the_page_on_studies_has_every_study_and_every_field() -> None:
    import dataclasses

    from sinkscope.study.schema import Study, shipped

    page = (Path(__file__).parents[1] / "docs" / "reference" / "studies.md").read_text()
    fields = [field.name for field in dataclasses.fields(Study)]
    assert [name for name in [*shipped(), *fields] if f"`{name}`" not in page] == []
