"""A comparison as a table of pandas, with a stand-in for pandas, which is not installed here."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import subgraph
from subgraph.errors import NotInstalled
from tests.helpers import text_models
from tests.helpers.refusals import raises


@pytest.fixture
def comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> subgraph.Comparison:
    monkeypatch.chdir(tmp_path)
    model = text_models.load(tmp_path, "g (float[4] x) => (float[4] y) { a = Neg(x) y = Abs(a) }")
    return subgraph.compare(model, "ort")


def test_rows_become_a_dataframe(
    comparison: subgraph.Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(json_normalize=list))
    rows = comparison.to_dataframe()
    assert [(row["tensor"], row["in_place"]["status"]) for row in rows] == [
        ("a", "agree"),
        ("y", "agree"),
    ]


def test_dataframe_needs_pandas(
    comparison: subgraph.Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with raises(NotInstalled, "package.not-installed"):
        comparison.to_dataframe()
