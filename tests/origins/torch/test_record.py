"""`subgraph.torch.record`: a module's values under the names of the exported model, and what
`compare` says of them.

Covers `torch` and `origins.torch.program`. What needs torch is skipped
without it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import subgraph.torch
from subgraph.errors import BackendError, ResultExists, UsageError
from subgraph.graph.graph import load
from subgraph.origins.torch.program import PART, count_same_nodes, parse_name, read_statement
from subgraph.origins.torch.record import MANIFEST, ScopedTensors, record
from tests.helpers.facts import has_line
from tests.helpers.refusals import raises
from tests.helpers.run_command import in_process

pytestmark = pytest.mark.filterwarnings("ignore")  # torch uses its own deprecated functions
TORCH = Path(__file__).parents[3] / "fixtures" / "torch"
needs_torch = pytest.mark.skipif(
    not (find_spec("torch") and find_spec("onnxscript")),
    reason="torch and onnxscript are not installed",
)


def test_without_torch_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with raises(BackendError, "package.not-installed"):
        subgraph.torch.record(None, (), TORCH / "tiny_dynamo.onnx", tmp_path / "dump")


def test_parts_of_a_value() -> None:
    def part(name: str) -> tuple[str, ...] | None:
        found = PART.fullmatch(name)
        return found.groups() if found else None

    assert part("lstm__0") == ("lstm", "0") and part("split_1_split_2") == ("split_1", "2")
    assert part("relu_3") is None


def test_statements_of_nodes_tell_whether_a_program_is_the_one() -> None:
    graph = load(TORCH / "tiny_dynamo.onnx")
    texts = [text for i in range(len(graph.nodes)) if (text := read_statement(graph, i))]
    assert len(texts) == len(graph.nodes) - 1 and "linear" in map(parse_name, texts)
    nodes = [
        SimpleNamespace(name=parse_name(text), format_node=lambda text=text: text)
        for text in dict.fromkeys(texts)
    ]
    nodes[0].format_node = lambda: "%another : [num_users=1] = call_function[…]"
    changed = sum(text == texts[0] for text in texts)
    assert count_same_nodes(graph, SimpleNamespace(graph=SimpleNamespace(nodes=nodes))) == (
        len(texts) - changed,
        len(texts),
    )


def test_scopes_of_the_older_exporter() -> None:
    scopes = ScopedTensors(load(TORCH / "tiny_script.onnx"))
    assert scopes.result("mix/qkv") == "/mix/qkv/Add_output_0" and scopes.result(
        "stem/stem.0"
    ).endswith("Conv_output_0")
    # the normalization is in the convolution
    assert scopes.has("stem") and not scopes.has("stem/stem.1")
    assert scopes.is_foldable("/stem/stem.0/Conv_output_0") and not scopes.is_foldable(
        "/mix/qkv/Add_output_0"
    )
    value = np.zeros((1, 2, 9, 9), np.float32)
    assert [name for name, _ in scopes.iter_calls("mix", "Softmax", [value])] == [
        "/mix/Softmax_output_0"
    ]
    assert not list(scopes.iter_calls("mix", "Softmax", [value, value]))  # one node, two calls
    assert not list(scopes.iter_calls("mix", "Softmax", [None]))


def test_scopes_of_metadata() -> None:
    scopes = ScopedTensors(load(TORCH / "tiny_dynamo.onnx"))
    assert scopes.result("mix.qkv") == "linear" and scopes.result("norm") == "layer_norm"


# ------------------------------------------------------------ with torch


@pytest.fixture(scope="module")
def networks() -> Iterator[Any]:
    from fixtures import torch_networks

    yield torch_networks


def compared(model: Path, dump: Path, out: Path) -> tuple[int, int, Any]:
    """Exit code, number of tensors compared, and the document."""
    result = in_process("compare", model, "--recorded", dump, "-o", out)
    return result.exit_code, result.document["recordings"][0]["compared"], result.document


# The least number of tensors that are compared, of those of the model that carry values.
HEALTHY = {
    ("resnet18", True): 49,
    ("resnet18", False): 49,
    ("transformer", True): 70,
    ("transformer", False): 50,
    ("lstm", True): 5,
    ("lstm", False): 3,
    ("detector", True): 30,
    ("tiny", True): 20,
    ("tiny", False): 12,
}


@needs_torch
@pytest.mark.slow
@pytest.mark.parametrize(("name", "dynamo"), HEALTHY)
def test_nothing_is_wrong_with_a_right_export(
    networks: Any, name: str, dynamo: bool, tmp_path: Path
) -> None:
    model = tmp_path / "model.onnx"
    dump = tmp_path / "dump"
    networks.export(name, model, dynamo)
    module, args = networks.NETWORKS[name]()
    done = record(module, args, model, dump)
    assert done.way == ("exported program" if dynamo else "hooks")
    code, seen, _ = compared(model, dump, tmp_path / "out")
    assert code == 0 and seen >= HEALTHY[name, dynamo]


@needs_torch
@pytest.mark.slow
def test_wrong_translation_is_found_at_its_line(networks: Any, tmp_path: Path) -> None:
    import torch
    from onnxscript import opset18 as op

    model = tmp_path / "model.onnx"
    dump = tmp_path / "dump"
    wrong = {torch.ops.aten.gelu.default: lambda x, approximate="none": op.Relu(x)}
    networks.export("transformer", model, custom_translation_table=wrong)
    module, args = networks.transformer()
    record(module, args, model, dump)
    code, _, document = compared(model, dump, tmp_path / "out")
    assert code == 1
    assert has_line(document["recordings"][0]["source"]["code"], "hidden = F.gelu(self.up(")


@needs_torch
@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision(networks: Any, dtype: str, tmp_path: Path) -> None:
    import torch

    module, args = networks.tiny()
    module, args = (
        module.to(getattr(torch, dtype)),
        tuple(a.to(getattr(torch, dtype)) for a in args),
    )
    model = tmp_path / "model.onnx"
    torch.onnx.export(module, args, str(model), dynamo=True, verbose=False)
    done = record(module, args, model, tmp_path / "dump")
    assert len(done.tensors) > 20
    assert json.loads((tmp_path / "dump" / MANIFEST).read_text())["way"] == "exported program"


@needs_torch
@pytest.mark.slow
def test_module_that_does_not_export_is_recorded_by_hooks(networks: Any, tmp_path: Path) -> None:
    import torch

    module, args = networks.tiny()
    forward = module.forward

    def refused(x: Any) -> Any:
        if torch.compiler.is_exporting():
            raise ValueError("not for export")
        return forward(x)

    module.forward = refused
    done = record(module, args, TORCH / "tiny_dynamo.onnx", tmp_path / "dump")
    assert done.way == "hooks" and has_line(done.notes[0], "export")
    assert {"linear", "layer_norm"} <= set(done.tensors)
    assert compared(TORCH / "tiny_dynamo.onnx", tmp_path / "dump", tmp_path / "out")[0] == 0


@needs_torch
def test_what_is_refused(networks: Any, tmp_path: Path) -> None:
    module, args = networks.tiny()
    with pytest.raises(UsageError, match="training mode"):
        record(module.train(), args, TORCH / "tiny_dynamo.onnx", tmp_path / "dump")
    with pytest.raises(UsageError, match="not function"):
        record(lambda x: x, args, TORCH / "tiny_dynamo.onnx", tmp_path / "dump")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").touch()
    with pytest.raises(ResultExists):
        record(module.eval(), args, TORCH / "tiny_dynamo.onnx", tmp_path / "full")
    assert (tmp_path / "full" / "mine.txt").exists()
