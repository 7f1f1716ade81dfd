"""`subcut draw`: what is drawn and marked, and what is refused."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from fixtures.compared import COMPARED
from fixtures.runs import RUNS
from subgraph.commands import draw
from subgraph.drawing import layout
from subgraph.errors import InputError, NoRegion, OutputError, UnknownName, UsageError
from subgraph.results import parse
from tests.helpers import text_models
from tests.helpers.chain_models import chain
from tests.helpers.facts import has_line
from tests.helpers.run_command import in_process

NAMES = [f"stage{i // 6}/block{i // 2}/n{i}" for i in range(12)]


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return chain(Path("m.onnx"), NAMES)


def boxes(path: str) -> list[tuple[str, str]]:
    """Key and classes of each box of an SVG."""
    return [
        (g.get("data-key", ""), g.get("class", ""))
        for g in ET.parse(path).iter()
        if "data-key" in g.attrib
    ]


def test_without_a_file_the_svg_is_the_result(model: Path) -> None:
    assert ET.fromstring(in_process("draw", model).text).tag.endswith("svg")


def test_region_is_marked_and_its_boundary_listed(model: Path) -> None:
    result = in_process(
        "draw", model, "-s", NAMES[2], "-e", NAMES[4], "-o", "m.svg", "--depth", "9"
    )
    assert result.text.splitlines()[1:] == [
        "region  3 nodes · 1 input · 1 output",
        "  in   t1",
        "  out  t4",
        "m.svg",
    ]
    assert [key for key, classes in boxes("m.svg") if "region" in classes] == ["#2", "#3", "#4"]
    assert Path("m.svg").read_text(encoding="utf-8").count('class="line boundary"') >= 2
    assert result.document["region"] == {"inputs": ["t1"], "outputs": ["t4"]}


def test_group_that_holds_a_part_of_the_region_is_open(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "MAX_BOXES", 1)
    in_process("draw", model, "-s", NAMES[3], "-e", NAMES[5], "-o", "m.svg")
    in_process("draw", model, "-s", NAMES[3], "-e", NAMES[5], "-o", "one.svg", "--depth", "1")
    assert [key for key, kind in boxes("m.svg") if kind == "box open"] == [
        "stage0",
        "stage0/block1",
    ]
    assert has_line(dict(boxes("m.svg"))["stage0/block2"], "group", "region")
    assert [key for key, kind in boxes("one.svg") if kind == "box open"] == []


def test_drawing_that_is_slow_to_look_at_is_said(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(draw, "MIN_SLOW_BOXES", 8)
    in_process("draw", model, "--depth", "9", "-o", "m.svg")
    assert has_line(capsys.readouterr().err, "14 boxes", "`subcut view`")


def test_groups_open_by_depth_or_by_name(model: Path) -> None:
    in_process("draw", model, "--depth", "1", "-o", "m.svg")
    assert [key for key, kind in boxes("m.svg") if kind == "box group"] == ["stage0", "stage1"]
    in_process("draw", model, "--open", "stage1/block4", "-o", "m.svg")
    assert [key for key, kind in boxes("m.svg") if kind == "box open"] == [
        "stage1",
        "stage1/block4",
    ]
    with pytest.raises(UnknownName) as e:
        in_process("draw", model, "--open", "stage1/blok4")
    assert "stage1/block4" in e.value.hint


def test_the_surroundings_of_a_node(model: Path) -> None:
    result = in_process("draw", model, "--around", NAMES[5], "--hops", "1", "-o", "m.svg")
    assert result.document["nodes"] == 3
    titles = {t.text for t in ET.parse("m.svg").iter() if t.tag.endswith("title")}
    assert {*NAMES[4:7]} <= titles and NAMES[3] not in titles


def test_body_is_drawn_and_a_region_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    branches = """then_branch = yes () => (float[3] p) { [add] q = Add(x, x) [neg] p = Neg(q) },
                  else_branch = no () => (float[3] r) { [same] r = Identity(x) }"""
    text_models.load(
        tmp_path, f"g (float[3] x, bool c) => (float[3] y) {{ [if] y = If(c) <{branches}> }}"
    )
    assert (
        in_process("draw", "model.onnx", "--around", "if/then_branch", "-o", "m.svg").document[
            "nodes"
        ]
        == 2
    )
    ends = ("--start", "if/then_branch/neg", "--end", "if/then_branch/neg")
    region = in_process("draw", "model.onnx", *ends, "-o", "m.svg").document["region"]
    assert region == {"inputs": ["q"], "outputs": ["p"]}
    for words in ((), ("--open", "if"), ("--open", "#0")):
        in_process("draw", "model.onnx", *words, "-o", "m.svg")
        drawn = dict(boxes("m.svg"))
        assert (
            "open" in drawn["#0"] and "box body" in drawn["if/then_branch"] and len(drawn) == 13
        ), words
    in_process("draw", "model.onnx", "--depth", "1", "--start", "if", "-o", "m.svg")
    assert "region" in dict(boxes("m.svg"))["#0"], "closed, and wholly in the region"


def row(tensor: str) -> dict[str, Any]:
    return {"index": 0, "node": tensor, "op": "Relu", "tensor": tensor}


def test_errors_of_a_comparison_are_numbers_and_bars(model: Path) -> None:
    judged = {"name": "t3", "status": "fail", "errors": {"max_rel": 0.25}}
    rows = [
        row("t3") | {"in_place": judged, "alone": None},
        row("t4") | {"in_place": None, "alone": None},
    ]
    Path("c.json").write_text(json.dumps(COMPARED["compared"]() | {"rows": rows}), encoding="utf-8")
    result = in_process("draw", model, "--values", "c.json", "--depth", "9", "-o", "m.svg")
    assert has_line(result.text, "1 tensor, 1 wrong")
    assert [key for key, kind in boxes("m.svg") if "failed" in kind] == ["#3"]
    text = Path("m.svg").read_text(encoding="utf-8")
    assert ">✗ 0.25</text>" in text and text.count('class="empty"') == 1


def test_bisections_finding_is_the_region(model: Path) -> None:
    run = RUNS["culprit"]()
    run["profile"], run["findings"][0]["indices"] = (
        [row("t3") | {"error": "nan", "status": "fail"}],
        [3, 4],
    )
    Path("run.json").write_text(json.dumps(run), encoding="utf-8")
    assert "  in   t2" in in_process("draw", model, "--values", ".", "-o", "m.svg").text


@pytest.mark.parametrize(
    ("kind", "marked"), [("culprit", "found"), ("interval", "suspect"), ("unresolved", "suspect")]
)
def test_only_what_is_proven_is_marked_as_found(model: Path, kind: str, marked: str) -> None:
    """A recording's suspects, and a region in doubt, are dashed, with a question mark."""
    run = COMPARED["interval"]() if kind == "interval" else RUNS["culprit"]()
    run["findings"] = [run["findings"][0] | {"indices": [3], "kind": kind, "reason": ""}]
    Path("run.json").write_text(json.dumps(run), encoding="utf-8")
    with mock.patch("subgraph.results.read", return_value=parse(run)):
        in_process("draw", model, "--values", ".", "--depth", "9", "-o", "m.svg")
    assert [key for key, classes in boxes("m.svg") if marked in classes] == ["#3"]
    assert f">{'✗' if marked == 'found' else '?'}</text>" in Path("m.svg").read_text(
        encoding="utf-8"
    )


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("-o", "m.gif"), UsageError),
        (("--hops", "2"), UsageError),
        (("--width", "0"), UsageError),
        (("--start", "stage0/block0/n00"), UnknownName),
        (("-s", NAMES[5], "-e", NAMES[2]), NoRegion),
        (("--around", "stage0/blok0/n0"), UnknownName),
        (("--values", "missing.json"), InputError),
        (("--values", "empty.json"), UsageError),
        (("--values", "other.json"), InputError),
        (("-o", "m.onnx/m.svg"), OutputError),
    ],
)
def test_undrawable_file_is_refused(
    model: Path, words: tuple[str, ...], error: type[Exception]
) -> None:
    Path("empty.json").write_text(
        json.dumps(COMPARED["compared"]() | {"rows": []}), encoding="utf-8"
    )
    Path("other.json").write_text('{"schema": "x", "rows": [{"tensor": 3}]}', encoding="utf-8")
    with pytest.raises(error):
        in_process("draw", model, *words)
