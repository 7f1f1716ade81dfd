"""Results in a notebook: HTML that is well formed, escaped and without scripts; the example
notebook is run.

Covers `notebook`.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from onnx import TensorProto, helper, save

import subgraph
from fixtures import ROOT
from fixtures.notebook import CELLS, document
from subgraph import notebook
from subgraph.documents import from_json, to_json
from subgraph.errors import UsageError
from subgraph.results.plan import (
    KeptPlace,
    PlanDocument,
    PlanFiles,
    PlanResult,
    PlanSetup,
    PlanTrials,
    TriedPlan,
)
from subgraph.search.oracle import Counts, Finding, FindingKind, Findings, Outcome
from tests.helpers import fake_candidate
from tests.helpers.chain_models import chain
from tests.helpers.facts import has_line
from tests.helpers.open_trials import spec_of

VOID = {"br", "meta"}
NOTEBOOK = ROOT / "docs/notebook.ipynb"


class Checked(HTMLParser):
    """Every tag is closed, nothing runs, nothing is loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "iframe", "object", "embed", "link", "img")
        assert not any(name.startswith("on") or name in ("src", "href") for name, _ in attrs)
        self.open += [tag] if tag not in VOID else []

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_data(self, data: str) -> None:
        self.text += data


def checked(item: Any) -> str:
    """The text of an item's HTML."""
    page = Checked()
    page.feed(item if isinstance(item, str) else notebook.render_html(item))
    assert not page.open
    return re.sub(r"\s+", " ", page.text)


@pytest.fixture
def odd(tmp_path: Path) -> subgraph.Graph:
    """A model whose names are HTML."""
    name = "<script>alert(1)</script>"
    nodes = [
        helper.make_node("Relu", ["x"], ["<b>&"], name),
        helper.make_node("Abs", ["<b>&"], ["y"], "a\x1b[31m"),
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 3]) for n in ("x", "y")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:])
    save(
        helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 17)]),
        tmp_path / "odd.onnx",
    )
    return subgraph.load(tmp_path / "odd.onnx")


def test_graph_cut_and_region_are_drawn(odd: subgraph.Graph) -> None:
    assert checked(odd).startswith("odd.onnx: ")
    piece = subgraph.cut(odd, end="<b>&")
    shown = checked(piece)
    assert "1 node" in shown and "<b>&" in shown
    assert "\x1b" not in notebook.render_html(odd) and checked(piece.region) in shown
    for item in (odd, piece):
        assert ElementTree.fromstring(notebook.draw_graph(item)).tag.endswith("svg")


def test_verdicts_say_their_words(odd: subgraph.Graph) -> None:
    verdict = subgraph.Verdict(
        subgraph.Status.FAIL, subgraph.Signature.REFUSED, "no operator <LSTM>"
    )
    assert checked(verdict).strip().endswith("<LSTM>")
    with pytest.raises(TypeError, match="int"):
        notebook.render_html(3)


def test_plan_shows_its_curve() -> None:
    tried = [TriedPlan(0, False, 0.5, ""), TriedPlan(1, True, 0.9, ""), TriedPlan(3, True, 1.0, "")]
    place = KeptPlace("<conv>", ["<conv>"], ["Conv"], ["x"], 0.25, "float32")
    plan = PlanDocument(
        exit_code=0,
        says="right with 1 of 3 places in float: <conv>",
        setup=PlanSetup(precision="int8", unit="node", criterion="top1", places=3),
        result=PlanResult(kept=[place], minimal=True, proven=1, score=None, weights=None),
        trials=PlanTrials(runs=3, seconds=1.0, tried=tried),
        files=PlanFiles(model=None),
    )
    shown = checked(plan)
    assert shown.startswith(plan.says)
    assert "<conv> Conv float32" in shown and notebook.render_html(plan).count("<svg") == 1
    assert "<svg" not in notebook.render_html(
        replace(
            plan, trials=replace(plan.trials, tried=tried[:1]), result=replace(plan.result, kept=[])
        )
    )
    again = from_json(PlanDocument, json.loads(json.dumps(to_json(plan))))
    assert notebook.render_html(again) == notebook.render_html(plan)


class Formatter(dict[tuple[str, str], Any]):
    """As IPython's: a function by the name of a type."""

    def for_type_by_name(self, module: str, name: str, function: Any) -> None:
        self[module, name] = function


def test_ipython_is_told_of_all_results(
    odd: subgraph.Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    formatters = {"text/html": Formatter(), "image/svg+xml": Formatter()}
    shell = SimpleNamespace(display_formatter=SimpleNamespace(formatters=formatters))
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: shell, raising=False)
    subgraph._show_in_notebook()
    for kind, shown in (
        ("text/html", notebook.render_html),
        ("image/svg+xml", notebook.draw_graph),
    ):
        known = {(t.__module__, t.__name__) for t in shown.registry if t is not object}
        assert set(formatters[kind]) == known
        assert formatters[kind]["subgraph.graph.graph", "Graph"](odd) == shown(odd)


@pytest.mark.slow
def test_the_example_is_what_its_cells_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sources as they stand in the file; outputs of the same kind, which name the same culprit."""
    stored = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    # python -m fixtures.notebook
    assert tuple("".join(cell["source"]) for cell in stored["cells"]) == CELLS
    made = document(tmp_path)
    for old, new in zip(stored["cells"], made["cells"], strict=True):
        if old["cell_type"] == "code":
            before = old["outputs"][0]["data"]
            after = new["outputs"][0]["data"]
            assert before.keys() == after.keys()
            checked("".join(after.get("text/html", [])))
    text = [
        "".join(cell["outputs"][0]["data"].get("text/html", []))
        for cell in made["cells"]
        if "outputs" in cell
    ]
    assert has_line(text[3], "first bad tensor") and "stem/pool:0" in text[3]
    assert has_line(text[5], "wrong", "stem/pad, stem/pool", "2 of 28") and "<svg" in text[5]
    assert made["cells"][-1]["outputs"][0]["data"]["text/plain"] == ["['stem/pad', 'stem/pool']"]


@pytest.mark.parametrize("function", ["bisect", "cut", "compare", "capture"])
def test_another_thing_in_place_of_a_model_is_refused(odd: subgraph.Graph, function: str) -> None:
    for other, code in ((12, "api.wrong-type"), ("net.prototxt", "api.not-onnx")):
        with pytest.raises(UsageError) as error:
            getattr(subgraph, function)(other, "x")
        assert error.value.code == code
        assert error.value.hint.startswith(f"subgraph.{function}(")


@pytest.mark.slow
def test_a_path_stands_for_a_model_and_results_are_shown_on_one_line(tmp_path: Path) -> None:
    model = chain(tmp_path / "m.onnx", ["a", "b", "c"])
    wrong = spec_of(fake_candidate.HERE, add="b:9")
    output = tmp_path / "out"
    search = subgraph.bisect(model, wrong, output=output)
    assert repr(search) == "Bisection('0 steps')"
    assert search.result.findings[0].nodes == ["b"], "it runs to its end"
    assert search.result.says in repr(search)
    assert repr(search.result) == f"BisectDocument({search.result.says!r})"
    comparison = subgraph.compare(model, wrong, at=["b"], output=output)
    assert not comparison.agree
    assert comparison.next == comparison.result.next
    piece = subgraph.cut(model, "b", "c")
    for shown in (search, search.steps[0], comparison, piece):
        assert "\n" not in repr(shown)
        assert len(repr(shown)) < 200


def test_findings_are_called_by_the_nodes_names() -> None:
    finding = Finding(FindingKind.CULPRIT, (0, 1), None, certified=True)
    findings = Findings(Outcome.DISAGREE, Counts(), findings=(finding,))
    assert has_line(checked(findings), "culprit", "#0, #1")
    named = replace(findings, names=(("conv1",), ("<pad>", "pool")))
    assert has_line(checked(named), "conv1, <pad>, pool")


def test_progress_is_one_line_that_is_updated(
    odd: subgraph.Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []
    module = ModuleType("IPython")
    inner = ModuleType("IPython.display")
    vars(module)["get_ipython"] = lambda: object()
    vars(inner)["HTML"] = str

    def display(text: str, *, display_id: bool) -> SimpleNamespace:
        shown.append(text)
        return SimpleNamespace(update=shown.append)

    vars(inner)["display"] = display
    monkeypatch.setitem(sys.modules, "IPython", module)
    monkeypatch.setitem(sys.modules, "IPython.display", inner)
    running = subgraph.bisect(odd, shapes={}, output=odd.path.parent / "out")
    assert "not begun" in checked(running)
    begun = subgraph.bisect(odd, shapes={}, output=odd.path.parent / "begun")
    assert next(iter(begun)).number == 1
    with pytest.raises(UsageError):
        _ = begun.result
    assert subgraph.watch(running).result.agree and "right" in checked(running)
    assert (
        len(shown) == len(running.steps) + 2
        and "not begun" in shown[0]
        and "has ended" in shown[-1]
    )
    assert has_line(checked(running.steps[0]), "agree")
    assert checked(running.findings).startswith("agree")
    assert (
        has_line(shown[1], '<progress max="2"')
        and has_line(shown[1], "2 nodes")
        and "more run" in shown[1]
    )
    assert np.all([line.startswith("<p>") for line in shown])
