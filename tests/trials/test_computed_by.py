"""Who computed what: onnxruntime's own record, a line of a finding. Covers `trials.computed_by`."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx.parser
import onnxruntime
import pytest

from subgraph.graph.graph import load
from subgraph.graph.region import prepare_graph
from subgraph.runtime.backends import _ort_providers, ort
from subgraph.runtime.candidate import Candidate, parse
from subgraph.trials import computed_by
from tests.helpers.facts import has_line


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Two nodes, the second without a name."""
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[4] x) => (float[4] z) { y = Relu(x) z = Neg(y) }"""  # noqa: E501
    path = tmp_path / "m.onnx"
    made = onnx.parser.parse_model(text)
    made.graph.node[0].name = "first"
    path.write_bytes(made.SerializeToString())
    return path


def trials_of(model: Path, candidate: Candidate) -> Any:
    runtime = SimpleNamespace(candidate=candidate, own_model=None, is_manual=False)
    graph = prepare_graph(load(model))
    judge = SimpleNamespace(model=SimpleNamespace(graph=graph), runtime=runtime)
    return SimpleNamespace(judge=judge, graph=graph, model=judge.model, runtime=runtime)


def test_onnxruntime_says_which_provider_computes_a_node_even_one_without_a_name(
    model: Path,
) -> None:
    settings = onnxruntime.SessionOptions()
    found = _ort_providers.find_assigned(
        model, {"providers": "CPUExecutionProvider"}, settings, ort.OPTIONS
    )
    assert sorted(found) == ["CPU y", "CPU z"]
    assert ort.computed_by(model, {}) == [], "there is one provider: nothing is built to ask"


def test_what_falls_back_is_counted_and_a_fault_of_the_processor_is_none_of_the_device(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = trials_of(model, parse("qnn-htp"))
    assert has_line(computed_by.share(trials.judge, {0: "QNN", 1: "CPU"}), "1 of 2", "CPU")
    assert computed_by.share(trials.judge, {0: "QNN", 1: "QNN"}) == ""
    region: Any = SimpleNamespace(nodes=(0, 1))
    for found, says in [
        ({0: "CPU", 1: "CPU"}, ("by CPU", "fault", "qnn-htp")),
        ({0: "QNN", 1: "QNN"}, ("computed by QNN",)),
        ({0: "QNN", 1: "CPU"}, ("computed", "QNN; #1 by CPU")),
        ({1: "CPU"}, ("computed: #1 by CPU",)),
        ({}, ()),
    ]:
        monkeypatch.setattr(computed_by, "find_region_providers", lambda *_, found=found: found)
        sentence = computed_by.name_provider(trials, region)
        assert bool(sentence) == bool(says)
        assert has_line(sentence, *says)


def test_one_who_cannot_say_is_not_asked(model: Path) -> None:
    assert computed_by.find_providers(trials_of(model, parse("opencv")).judge) == {}
