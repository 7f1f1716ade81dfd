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
from subgraph.origins.torch import program as programs
from subgraph.origins.torch.piece import ExportedModel

MODEL = Path(__file__).parents[3] / "fixtures" / "torch" / "tiny_dynamo.onnx"

pytestmark = [
    pytest.mark.skipif(not find_spec("torch"), reason="torch is not installed"),
    pytest.mark.filterwarnings("ignore"),  # torch uses its own deprecated functions
]


@pytest.fixture(scope="module")
def tiny() -> tuple[ExportedModel, Any, Any]:
    from fixtures import torch_networks

    module, args = torch_networks.NETWORKS["tiny"]()
    graph = load(MODEL).prepare()
    program, _ = programs.nearest(graph, programs.programs(module, args, {}))
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


def test_what_is_no_piece_is_refused(tiny: tuple[ExportedModel, Any, Any]) -> None:
    exported, _, args = tiny
    graph = load(MODEL)
    (name,), (last,) = graph.inputs, graph.outputs
    inner = next(n for n in graph.maker if n not in exported.places)
    with pytest.raises(Refused, match="inside an operator's translation"):
        exported.piece([name], [inner])
    with pytest.raises(Refused, match="lies across"):
        exported.piece([], [last])
    with pytest.raises(
        Refused,
        match=r"is float32 \[2, 1, 6, 6\], but float32 \[1, 1, 6, 6\] in the exported module",
    ):
        exported.run(exported.piece([name], [last]), {name: np.zeros((2, 1, 6, 6), np.float32)})
    with pytest.raises(Refused, match="float64"):
        exported.run(exported.piece([name], [last]), {name: args[0].numpy().astype(np.float64)})


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("net = None", "no function build"),
        ("def build(): raise ValueError('dead')", "failed: ValueError: dead"),
        ("def build(): return 1, 2", "something else than a module"),
        (
            "import torch\ndef build(): return torch.nn.Linear(6, 6), torch.zeros(1, 1, 6, 6)",
            "training mode",
        ),
        (
            "import torch\ndef build(): return torch.nn.Linear(7, 7).eval(), torch.zeros(1)",
            "cannot export the module",
        ),
    ],
)
def test_a_file_that_makes_no_module(tmp_path: Path, code: str, says: str) -> None:
    from subgraph.runtime.backends import torch as backend

    file = tmp_path / "net.py"
    file.write_text(code + "\n")
    with pytest.raises(BackendError, match=says):
        backend.load(MODEL, {"file": str(file), "build": "build", "model": str(MODEL)})


def test_a_module_alone_is_fed_zeros(tmp_path: Path) -> None:
    from subgraph.runtime.backends import torch as backend

    file = tmp_path / "net.py"
    file.write_text(
        "from fixtures.torch_networks import tiny\n\ndef build():\n    return tiny()[0]\n"
    )
    options = {"file": str(file), "build": "build"}
    assert {*load(MODEL).inputs, *load(MODEL).outputs} <= {*backend.tensors(MODEL, options)}
    with pytest.raises(BackendError, match="runs the module of a Python file"):
        backend.load(MODEL, {})
