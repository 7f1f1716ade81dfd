"""A candidate that differs from the reference by no more than the reference differs from itself.

Covers `trials.float_forms`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from subgraph.runtime.reference import count_threads
from tests.helpers import text_models
from tests.helpers.planted_candidates import planted
from tests.helpers.run_command import Done, subcut

STEPS, BATCH, SIZE, HIDDEN = 12, 6, 8, 16
OTHER_THREADS = f"ort:threads={1 if count_threads() > 1 else 2}"
MIXED = """g (float[N, 8] x) => (float[N, 8] y) {
    q, s, z = DynamicQuantizeLinear(x)
    d = DequantizeLinear(q, s, z)
    y = Softmax <axis = 0> (d)
}"""
WRONG_SOFTMAX = 'found = {n: v * 1.4 if n == "y" else v for n, v in found.items()}'


def save_lstm(folder: Path) -> None:
    """Save an LSTM that quantizes what it reads, and inputs of very different sizes."""
    rng = np.random.default_rng(0)
    scales = np.linspace(0.3, 3, BATCH)[None, :, None]
    np.save(folder / "x.npy", (rng.standard_normal((STEPS, BATCH, SIZE)) * scales).astype("f4"))
    weights: dict[str, np.ndarray[Any, Any]] = {
        "w": rng.integers(-128, 128, (1, SIZE, 4 * HIDDEN)).astype(np.int8),
        "r": rng.integers(-128, 128, (1, HIDDEN, 4 * HIDDEN)).astype(np.int8),
        "scale": np.array([0.01], np.float32),
        "zero": np.array([0], np.int8),
    }
    inputs = ["x", "w", "r", *[""] * 5, "scale", "zero", "scale", "zero"]
    lstm = helper.make_node(
        "DynamicQuantizeLSTM", inputs, ["y"], "lstm", domain="com.microsoft", hidden_size=HIDDEN
    )
    graph = helper.make_graph(
        [lstm],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [STEPS, BATCH, SIZE])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [STEPS, 1, BATCH, HIDDEN])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), folder / "m.onnx")


def ask(command: str, folder: Path, spec: str, *words: str) -> Done:
    fed = ("-i", "x.npy", "-c", spec, "--trust", "--json", *words)
    return subcut(command, "m.onnx", *fed, cwd=folder)


@pytest.mark.turns(2)
@pytest.mark.parametrize("command", ["bisect", "compare"])
def test_other_number_of_threads_is_no_fault(command: str, tmp_path: Path) -> None:
    save_lstm(tmp_path)
    done = ask(command, tmp_path, OTHER_THREADS)
    assert (done.code, done.document["agree"]) == (0, True)
    assert done.document["whole"]["status"] == "fail"


def test_search_that_is_asked_for_is_made(tmp_path: Path) -> None:
    save_lstm(tmp_path)
    assert ask("bisect", tmp_path, OTHER_THREADS, "--inside").code == 1


def test_larger_error_than_the_movement_is_a_fault(tmp_path: Path) -> None:
    save_lstm(tmp_path)
    (tmp_path / "c.py").write_text(planted("", "found = {n: 1 - v for n, v in found.items()}"))
    assert ask("bisect", tmp_path, "c.py").code in (1, 4)


@pytest.mark.slow
def test_first_axis_that_is_no_batch_excuses_nothing(tmp_path: Path) -> None:
    """Half of a sequence has other outputs: the reference does not move by that."""
    (tmp_path / "m.onnx").write_bytes(text_models.model(MIXED).SerializeToString())
    np.save(tmp_path / "x.npy", np.linspace(-2, 3, 64, dtype=np.float32).reshape(8, 8))
    (tmp_path / "c.py").write_text(planted("", WRONG_SOFTMAX))
    assert ask("compare", tmp_path, "c.py").code == 1


IN_FLOAT = """
import numpy as np, onnx, onnxruntime
from onnx import helper, numpy_helper
def load(path, options):
    model = onnx.load(path)
    weights = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "DynamicQuantizeLSTM":
            for name in ("w", "r"):
                value = (weights[name].astype("f4") * weights["scale"]).transpose(0, 2, 1)
                model.graph.initializer.append(numpy_helper.from_array(value, name + "_float"))
            node.op_type, node.domain = "LSTM", ""
            del node.input[:]
            node.input.extend(["x", "w_float", "r_float"])
    session = onnxruntime.InferenceSession(model.SerializeToString())
    names = [o.name for o in session.get_outputs()]
    factor = np.float32(options.get("factor", 1))
    jump = np.float32(options.get("jump", 0))
    def run(feeds):
        values = session.run(names, dict(feeds))
        if jump and len(names) == 1 and values[0].ndim == 4:
            values[0].flat[7] += jump
        return {n: v * factor if v.ndim == 4 and n == "y" and len(names) == 1 else v
                for n, v in zip(names, values)}
    return run
"""


@pytest.mark.slow
@pytest.mark.turns(2)
@pytest.mark.parametrize(
    ("options", "code"), [("factor=1", 0), ("factor=1.5", 1), ("jump=0.02", 1)]
)
def test_candidate_that_computes_in_float_what_the_reference_quantizes(
    options: str, code: int, tmp_path: Path
) -> None:
    """One element 2 % of the scale off is a fault; the quantization moves them by more."""
    save_lstm(tmp_path)
    (tmp_path / "c.py").write_text(IN_FLOAT)
    assert ask("bisect", tmp_path, f"c.py:{options}").code == code
