"""Steps that are added to what TensorFlow Lite's operators make: exactly these, and nothing else
changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import subgraph
from subgraph.comparison.noise.instrument import MARK, add_steps
from subgraph.comparison.noise.noise import RegionNoise
from subgraph.comparison.noise.perturb import STEP_SHARE, draw_steps
from subgraph.graph.region import build_region, prepare_graph
from subgraph.precision import Precision
from subgraph.runtime.inputs import Feeding
from subgraph.runtime.reference import make_default
from subgraph.runtime.reference_values import ReferenceValues
from subgraph.types import Array
from tests.helpers.run_command import in_process
from tests.helpers.tflite_faults import narrow, plant

MODEL = Path(__file__).parents[3] / "fixtures" / "tflite" / "int8.tflite"
runtime: Any = pytest.importorskip("ai_edge_litert.interpreter", reason="ai-edge-litert is missing")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def run(model: onnx.ModelProto, feeds: dict[str, Array], kernels: str) -> dict[str, Array]:
    from subgraph.origins.tflite import operators

    resolver = getattr(runtime.OpResolverType, kernels)
    net = runtime.Interpreter(
        model_content=operators.to_tflite(model), experimental_op_resolver_type=resolver
    )
    net.allocate_tensors()
    for detail in net.get_input_details():
        net.set_tensor(detail["index"], feeds[detail["name"]])
    net.invoke()
    return {d["name"]: net.get_tensor(d["index"]) for d in net.get_output_details()}


@pytest.mark.parametrize("kernels", ["BUILTIN_WITHOUT_DEFAULT_DELEGATES", "AUTO"])
def test_code_moves_by_the_step_that_is_fed_and_saturates(kernels: str) -> None:
    """Behind a step of 0 all values are the bits of before."""
    graph = subgraph.load(MODEL)
    model = onnx.load(graph.path)
    infos = {v.name: v.type.tensor_type for v in (*model.graph.value_info, *model.graph.output)}
    shapes = {n: [d.dim_value for d in infos[n].shape.dim] for n in graph.maker}
    first = graph.makes[0][0]
    last = graph.outputs[0]
    made = add_steps(
        model,
        {n: ("int8", shape) for n, shape in shapes.items()},
        [first, f"{first}{MARK}moved", last],
    )
    assert set(made.shifts.values()) == graph.maker.keys() - {last}
    rng = np.random.default_rng(0)
    feeds = {
        n: rng.integers(-128, 128, shapes_of(v)).astype(np.int8) for n, v in graph.inputs.items()
    }
    still = {shift: np.zeros(shapes[n], np.int8) for shift, n in made.shifts.items()}
    plain = run(onnx.load(graph.path), feeds, kernels)
    given = run(model, feeds | still, kernels)
    np.testing.assert_array_equal(given[last], plain[last])
    (shift,) = (s for s, n in made.shifts.items() if n == first)
    for step in (-1, 1, 100):
        given = run(model, feeds | still | {shift: np.full(shapes[first], step, np.int8)}, kernels)
        expected = np.clip(given[first].astype(np.int64) + step, -128, 127)
        np.testing.assert_array_equal(given[f"{first}{MARK}moved"], expected)
    assert (given[last] != plain[last]).any()


def shapes_of(info: onnx.ValueInfoProto) -> list[int]:
    return [d.dim_value for d in info.type.tensor_type.shape.dim]


def test_hundredth_of_the_codes_moves() -> None:
    for dtype, zero in (("int8", 0), ("uint8", 128)):
        steps = draw_steps([100, 1000], dtype, 7).astype(np.int64) - zero
        assert set(np.unique(steps)) == {-1, 0, 1}
        assert 0.8 * STEP_SHARE < np.mean(steps != 0) < 1.2 * STEP_SHARE and abs(steps.sum()) < 200


@pytest.mark.slow
def test_healthy_pair_agrees_in_every_tensor_and_a_scale_that_clips_does_not(
    tmp_path: Path,
) -> None:
    """Two steps or more were unresolved, whatever made them: 61 of 64 tensors of a trained
    network."""
    healthy = in_process("compare", MODEL, "-c", "litert")
    assert healthy.exit_code == 0 and "unresolved" not in healthy.text, healthy.text
    (tmp_path / "narrow.tflite").write_bytes(plant("int8", narrow, 9))
    found = in_process("compare", MODEL, "-c", "litert", "--candidate-model", "narrow.tflite")
    assert found.exit_code == 1


@pytest.fixture
def float_noise(tmp_path: Path) -> Iterator[RegionNoise]:
    """The noise of a Conv of the float model: its input, weights and result."""
    graph = prepare_graph(subgraph.load(MODEL.with_name("float.tflite")))
    with make_default(graph) as reference:
        samples = Feeding((str(MODEL.with_name("image.npy")),)).plan(graph, graph.inputs)
        values = ReferenceValues(graph, reference, samples, tmp_path / "values")
        region = build_region(graph, [0])
        values.need([*region.inputs, *region.outputs])
        yield RegionNoise(graph, region, reference, values.records[0], tmp_path)


@pytest.mark.parametrize("claim", [Precision.FP32, Precision.INT8])
def test_floats_are_moved_by_a_rounding_of_the_claim(
    float_noise: RegionNoise, claim: Precision
) -> None:
    (output,) = float_noise.region.outputs
    exact = float_noise.tensors[output].array()
    runs = float_noise.perturb(claim, 2)
    moved = [np.abs(run.array(output) - exact).max() / np.abs(exact).max() for run in runs]
    assert moved[0] != moved[1]
    assert all(claim.eps / 2 < most < 20 * claim.eps for most in moved)


@pytest.mark.slow
def test_int8_model_beside_its_float_one(tmp_path: Path) -> None:
    """One Add of the healthy pair clips: the converter gives it the scale of a Concatenation."""
    words = ("compare", MODEL.with_name("float.tflite"), "-i", MODEL.with_name("image.npy"))
    healthy = in_process(*words, "-c", MODEL, "--json").document
    assert _wrong_alone(healthy) == set()
    (tmp_path / "narrow.tflite").write_bytes(plant("int8", narrow, 7))
    faulty = in_process(*words, "-c", "narrow.tflite", "--json").document
    assert _wrong_alone(faulty) == {7}
    assert faulty["first_bad"]["tensor"] == "functional_1/block0_add_1/Add"


def _wrong_alone(document: dict[str, Any]) -> set[int]:
    return {row["index"] for row in document["rows"] if row["alone"]["status"] == "fail"}
