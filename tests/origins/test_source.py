"""The module and line of a node, read from files that PyTorch's exporters wrote
(`fixtures/torch_networks.py`).

Torch is not needed. Covers `origins.source`.
"""

from __future__ import annotations

import csv
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import numpy as np
import pytest

from subgraph import plugins
from subgraph.documents import make_schema
from subgraph.graph.graph import Graph, load
from subgraph.graph.selection import select
from subgraph.origins.source import MAX_METADATA_CHARACTERS, Source, find_source, parse_module_path
from subgraph.reports import render_document
from subgraph.results import find_type, parse
from tests.helpers import fake_candidate
from tests.helpers.facts import has_line
from tests.helpers.run_command import in_process

TORCH = Path(__file__).parents[2] / "fixtures" / "torch"
FILE = "/home/me/project/torch_networks.py"
CODE = "q, k, v = self.qkv(x).chunk(3, dim=-1)"
WRONG = f"{fake_candidate.HERE}:fault=wrong,nodes=node_linear"
LINE = "mix.qkv (Linear) at project/torch_networks.py:"


def of(graph: Graph, node: str) -> Source | None:
    return find_source(graph, select(graph, node).nodes[0])


def node(**metadata: str) -> Any:
    """A graph of one node with that metadata."""
    entries = [
        SimpleNamespace(key=f"pkg.torch.onnx.{key}", value=value) for key, value in metadata.items()
    ]
    return SimpleNamespace(
        nodes=[SimpleNamespace(metadata_props=entries)],
        node_names=["n"],
        reads=[()],
        makes=[()],
        readers={},
        maker={},
    )


def test_the_line_is_that_of_the_users_innermost_call() -> None:
    found = of(load(TORCH / "tiny_dynamo.onnx"), "node_linear")
    assert found and found.line
    assert (found.module, found.kind, found.file, found.code) == ("mix.qkv", "Linear", FILE, CODE)
    assert has_line(
        str(found), "mix.qkv", "(Linear)", f"project/torch_networks.py:{found.line}", f"{CODE}"
    )


def test_fused_node_names_the_modules_of_its_weights() -> None:
    found = of(load(TORCH / "tiny_dynamo.onnx"), "Conv@1")
    assert found and found.module == "stem.0 + stem.1" and found.kind == "BatchNorm2d"


def test_all_nodes_of_the_new_exporter_have_a_line() -> None:
    """Split has no metadata; it splits what the node before it makes."""
    graph = load(TORCH / "tiny_dynamo.onnx")
    found = {graph.ops[i]: find_source(graph, i) for i in range(len(graph.nodes))}
    assert all(found.values())
    assert [op for op, one in found.items() if one and one.derived] == ["Split"]
    assert found["Split"] and has_line(str(found["Split"]), "node", f"{LINE}")


def test_of_the_old_exporter_the_name_tells_the_module() -> None:
    graph = load(TORCH / "tiny_script.onnx")
    assert of(graph, "/mix/qkv/MatMul") == Source("mix.qkv")
    assert of(graph, "/stem/stem.0/Conv") == Source("stem.0")
    assert of(graph, "/Add") is None  # of the model itself
    assert str(of(graph, "/mix/qkv/MatMul")) == ""  # the node's name says it already
    assert has_line(
        in_process("inspect", TORCH / "tiny_script.onnx", "/mix/qkv/MatMul", "--no-run").text,
        "from mix.qkv",
    )


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("/layer1/layer1.0/conv1/Conv", "layer1.0.conv1"),
        ("/encoder/layer/layer.0/attn/MatMul", "encoder.layer.0.attn"),
        ("/features/features.0/features.0.0/Conv", "features.0.0"),
        ("/Add", ""),
        ("stem/conv/Conv", ""),
        ("", ""),
    ],
)
def test_the_module_in_a_name(name: str, path: str) -> None:
    assert parse_module_path(name) == path


def test_metadata_is_read_as_text() -> None:
    assert find_source(node(name_scopes="[__import__('os').getcwd(), 'x']"), 0) is None
    assert find_source(node(name_scopes="[" * 20_000), 0) is None
    assert find_source(node(name_scopes=f"['{'m' * MAX_METADATA_CHARACTERS}', 'x']"), 0) is None
    assert find_source(node(name_scopes="[1, 2]"), 0) is None


def test_trace_without_scopes_and_lines_inside_of_torch() -> None:
    library = (
        'File "/usr/lib/python3/site-packages/torch/nn/modules/conv.py", line 565, in forward\n   '
        " return 1"
    )
    only = find_source(node(stack_trace=library), 0)
    assert only and (only.module, only.line) == ("", 565)
    both = find_source(
        node(
            stack_trace=f'File "C:\\net\\m.py", line 3, in forward\n    y = self.c(x)\n  {library}'
        ),
        0,
    )
    assert both and has_line(str(both), "net/m.py:3: y = self.c(x)")
    assert find_source(node(stack_trace="not a trace"), 0) is None


def test_namespace_alone_tells_the_module() -> None:
    graph = node()
    graph.nodes[0].metadata_props = [
        SimpleNamespace(key="namespace", value=": a.Net/b.c: torch.nn.Linear/y: aten.add")
    ]
    assert find_source(graph, 0) == Source("b.c", "Linear")


def test_inspect_shows_source_metadata_and_documentation() -> None:
    shown = in_process("inspect", TORCH / "tiny_dynamo.onnx", "node_linear", "--no-run")
    node = shown.document["nodes"][0]
    assert node["source"] | {"line": 0} == {
        "module": "mix.qkv",
        "class": "Linear",
        "file": FILE,
        "line": 0,
        "code": CODE,
    }
    assert (
        node["metadata"]["namespace"].endswith("aten.linear.default") and node["doc_string"] == ""
    )
    assert f"  from {LINE}" in shown.text
    assert has_line(
        shown.text, "pkg.torch.onnx.name_scopes", "['', 'mix'", "'mix.qkv'", "'linear']"
    )


def test_lint_names_the_line() -> None:
    shown = in_process("lint", TORCH / "tiny_dynamo.onnx", "--target-opset", "16")
    found = next(f for f in shown.document["findings"] if f["node"]["op"] == "LayerNormalization")
    assert found["node"]["source"]["module"] == "norm" and has_line(
        shown.text, "norm (LayerNorm)", "project/"
    )


@pytest.mark.slow
def test_compare_names_the_line(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    shown = in_process(
        "compare",
        TORCH / "tiny_dynamo.onnx",
        "-c",
        WRONG,
        "--at",
        "node_linear",
        "-o",
        tmp_path / "out",
        "--csv",
        table,
    )
    assert f"source            {LINE}" in shown.text
    jsonschema.validate(shown.document, make_schema(find_type("subcut.compare/1")))
    assert shown.document["rows"][0]["source"]["code"] == CODE
    assert next(csv.DictReader(table.read_text().splitlines()))["source"].endswith(CODE)
    for form in ("html", "md", "text", "csv"):
        assert LINE in render_document(plugins.load("reports", form), parse(shown.document)), form


@pytest.mark.slow
def test_finding_names_the_line(tmp_path: Path) -> None:
    document = in_process(
        "bisect", TORCH / "tiny_dynamo.onnx", "-c", WRONG, "-o", tmp_path / "out"
    ).document
    jsonschema.validate(document, make_schema(find_type("subcut.bisect/1")))
    assert document["findings"][0]["nodes"] == ["node_linear"]
    assert document["findings"][0]["sources"][0]["module"] == "mix.qkv"
    for form in ("html", "md", "text"):
        assert f"from {LINE}" in render_document(
            plugins.load("reports", form), parse(document)
        ).replace("`", ""), form


@pytest.mark.slow
def test_interval_of_a_recording_names_the_line(tmp_path: Path) -> None:
    model = TORCH / "tiny_dynamo.onnx"
    dump = tmp_path / "dump"
    in_process("dump", model, "--all", "-o", dump)
    np.save(dump / "linear.npy", np.load(dump / "linear.npy") * 1.5)
    shown = in_process("compare", model, "--recorded", dump, "-o", tmp_path / "out")
    assert f"; from {LINE}" in shown.text
    shown = in_process("bisect", model, "--recorded", dump, "-o", tmp_path / "out")
    jsonschema.validate(shown.document, make_schema(find_type("subcut.recorded/1")))
    assert f"from {LINE}" in shown.text
    assert shown.document["findings"][0]["suspects"][0]["source"]["module"] == "mix.qkv"
