"""Every schema that is written is published and documented.

Covers `published`, `results.answer`, `results.commands` and `results.cut`.
"""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

import subgraph
from subgraph import published
from subgraph.cases.layout import EVIDENCE_SCHEMA

HOME = Path(subgraph.__file__).parent
PAGE = HOME.parent.joinpath("docs", "scripts.md").read_text(encoding="utf-8")
NAME = re.compile(r'"(subcut\.[a-z-]+/\d+)"')


def names_in_code() -> set[str]:
    """The names of schemas in the code, without those that only the list holds."""
    files = [path for path in HOME.rglob("*.py") if path.name != "published.py"]
    found = {name for path in files for name in NAME.findall(path.read_text(encoding="utf-8"))}
    edits = {f"subcut.{command}/1" for command in ("merge", "remove", "replace")}
    return found | edits | {f"{EVIDENCE_SCHEMA}1"}


def test_each_schema_that_is_written_is_published() -> None:
    assert names_in_code() == set(published.SCHEMAS)


@pytest.mark.parametrize("schema", published.SCHEMAS)
def test_each_schema_has_a_json_schema_and_a_line_in_the_docs(schema: str) -> None:
    rule = published.make_json_schema(schema)
    pytest.importorskip("jsonschema").Draft202012Validator.check_schema(rule)
    for kind in published.list_types(schema):
        assert "schema" in {field.name for field in fields(kind)}
    assert f"`{schema}`" in PAGE
