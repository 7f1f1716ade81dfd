"""`make producers`: each script's head says what it needs; a row is right only where healthy and
faulty both are.

Covers `benchmarks.producers`.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from benchmarks.producers import __main__ as producers

ROWS = [{"runs": [{}]}, {"runs": [None]}]


def _compared(code: int, wrong: int) -> dict[str, object]:
    return {"exit_code": code, "rows": ROWS, "recordings": [{"wrong": wrong, "compared": 1}]}


def test_each_script_says_what_it_needs_with_versions() -> None:
    assert {s.name for s in producers.scripts()} == {
        *"aimet litert mnn msprobe ncnn onnxruntime openvino polygraphy rknn torch".split()
    }
    for script in producers.scripts():
        named = [*script.head["dependencies"], *script.own.get("alone", ())]
        versions = {v for line in named for v in re.findall(r"==([\d.]+\d)", line)}
        assert any(v in script.own["says"] for v in versions), script.name


@pytest.mark.parametrize(
    ("healthy", "nodes", "good"),
    [
        (0, [["a"]], True),
        (1, [["a"]], False),
        (5, [["a"]], False),
        (0, [["b"]], False),
        (0, [], False),
        (0, [["a"], ["b"]], False),
        (0, [["a", "b", "c", "d"]], False),
    ],
)
def test_row_is_right_where_one_short_place_holds_the_wrong_node(
    healthy: int, nodes: list[list[str]], good: bool
) -> None:
    found = {"healthy": _compared(healthy, 0), "faulty": _compared(1, 1)}
    cells, right = producers.row(found, {"findings": [{"nodes": n} for n in nodes]}, ["a"])
    assert right is good and cells[0] == "1 of 2"


def test_the_wrong_node_is_the_one_with_other_weights(tmp_path: Path) -> None:
    for name, weight in (("healthy", 1.0), ("faulty", 2.0)):
        graph = helper.make_graph(
            [
                helper.make_node("Relu", ["x"], ["y"], "first"),
                helper.make_node("Mul", ["y", name], ["z"], "second"),
            ],
            "net",
            [],
            [],
            [numpy_helper.from_array(np.array([weight], np.float32), name)],
        )
        onnx.save(helper.make_model(graph), tmp_path / f"{name}.onnx")
    assert producers.wrong_nodes(tmp_path / "healthy.onnx", tmp_path / "faulty.onnx") == ["second"]


def test_tool_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(producers.Failed, match="no such board"):
        producers._run(["python3", "-c", "raise ValueError('no such board')"], 60, tmp_path / "log")
