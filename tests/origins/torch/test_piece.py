"""A module in pieces between the tensors of the model that was exported from it; covers
`runtime.backends.torch`."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from subgraph.errors import BackendError, Refused
from subgraph.graph.graph import load
from subgraph.graph.region import prepare_graph
from subgraph.origins.torch import program as programs
from subgraph.origins.torch.piece import ExportedModel
from tests.helpers.refusals import raises

MODEL = Path(__file__).parents[3] / "fixtures" / "torch" / "tiny_dynamo.onnx"

pytestmark = [
    pytest.mark.skipif(not find_spec("torch"), reason="torch is not installed"),
    pytest.mark.filterwarnings("ignore"),  # torch uses its own deprecated functions
]


@pytest.fixture(scope="module")
def tiny() -> tuple[ExportedModel, Any, Any]:
    from fixtures import torch_networks

    module, args = torch_networks.NETWORKS["tiny"]()
    graph = prepare_graph(load(MODEL))
    program, _ = programs.find_nearest(graph, programs.iter_programs(module, args, {}))
    return ExportedModel(program, graph, whole=True), module, args


def test_pieces_one_after_the_other_are_the_module(tiny: tuple[ExportedModel, Any, Any]) -> None:
    exported, module, args = tiny
    graph = load(MODEL)
    (name,), (last,) = graph.inputs, graph.outputs
    expected = module(*args).detach().numpy()
    values: dict[str, Any] = {name: args[0].numpy()}
    for tensor in graph.maker:  # each from those before it
        if tensor in exported.places:
            values |= exported.run(exported.piece([*values], [tensor]), values)
    whole = exported.run(exported.piece([name], [last]), values)[last]
    np.testing.assert_array_equal(whole, expected)
    np.testing.assert_array_equal(values[last], expected)
    assert len(values) > 0.7 * len(graph.maker), "most tensors are values of the module"


def test_malformed_piece_is_refused(tiny: tuple[ExportedModel, Any, Any]) -> None:
    exported, _, args = tiny
    graph = load(MODEL)
    (name,), (last,) = graph.inputs, graph.outputs
    inner = next(n for n in graph.maker if n not in exported.places)
    with raises(Refused, "torch.inside-operator"):
        exported.piece([name], [inner])
    with pytest.raises(Refused, match="lies across"):
        exported.piece([], [last])
    with raises(Refused, "torch.type-differs", "float32 [2, 1, 6, 6]", "float32 [1, 1, 6, 6]"):
        exported.run(exported.piece([name], [last]), {name: np.zeros((2, 1, 6, 6), np.float32)})
    with raises(Refused, "torch.type-differs", "float64"):
        exported.run(exported.piece([name], [last]), {name: args[0].numpy().astype(np.float64)})


@pytest.mark.parametrize(
    ("source", "code", "about"),
    [
        ("net = None", "torch.no-function", "build"),
        ("def build(): raise ValueError('dead')", "torch.function-failed", "ValueError: dead"),
        ("def build(): return 1, 2", "torch.wrong-return", "module"),
        (
            "import torch\ndef build(): return torch.nn.Linear(6, 6), torch.zeros(1, 1, 6, 6)",
            "torch.training-mode",
            "training",
        ),
        (
            "import torch\ndef build(): return torch.nn.Linear(7, 7).eval(), torch.zeros(1)",
            "torch.export-failed",
            "torch.export",
        ),
    ],
)
def test_file_that_makes_no_module(tmp_path: Path, source: str, code: str, about: str) -> None:
    from subgraph.runtime.backends import torch as backend

    file = tmp_path / "net.py"
    file.write_text(source + "\n")
    with raises(BackendError, code, about):
        backend.load(MODEL, {"file": str(file), "build": "build", "model": str(MODEL)})


def test_module_alone_is_fed_zeros(tmp_path: Path) -> None:
    from subgraph.runtime.backends import torch as backend

    file = tmp_path / "net.py"
    file.write_text(
        "from fixtures.torch_networks import tiny\n\ndef build():\n    return tiny()[0]\n"
    )
    options = {"file": str(file), "build": "build"}
    assert {*load(MODEL).inputs, *load(MODEL).outputs} <= {*backend.tensors(MODEL, options)}
    with raises(BackendError, "torch.no-function"):
        backend.load(MODEL, {})
