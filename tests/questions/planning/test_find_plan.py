"""Plans as a user asks for them.

Covers `questions.planning.result_folder`, `questions.planning.lower`,
`questions.planning.quantize_main`, `results.plan`."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Collection
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from subgraph.documents import from_json
from subgraph.errors import OutOfTime
from subgraph.graph.graph import load
from subgraph.graph.region import prepare_graph
from subgraph.precision import Precision
from subgraph.questions.planning import find_plan, quantize_main
from subgraph.questions.planning.find_plan import (
    LoweredModels,
    ModelRunner,
    Planner,
    measure_distance,
)
from subgraph.questions.planning.places import Unit, lower_by_command
from subgraph.reports.html import render_plan
from subgraph.results.plan import PlanDocument
from subgraph.runtime.deadline import Deadline
from tests.helpers import planned_network, text_models
from tests.helpers.facts import has_line
from tests.helpers.planned_network import EXACT, SAMPLES
from tests.helpers.planted_candidates import planted
from tests.helpers.run_command import Done, subcut
from tests.helpers.runs import evaluate


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network, samples, and it quantized: rightly; with a scale of `r` that cuts off most; with
    too large a one."""
    folder = tmp_path_factory.mktemp("plan")
    planned_network.save(folder)
    files = [{"x": f"{folder}/samples/s{k}.npy"} for k in range(SAMPLES)]
    (folder / "files.json").write_text(json.dumps(files))
    quantize_main.main(
        str(folder / "m.onnx"), str(folder / "good.onnx"), "uint8", str(folder / "files.json")
    )
    for name, factor in (("bad", 1 / 40), ("coarse", 60)):
        model = onnx.load(folder / "good.onnx")
        for scale in model.graph.initializer:
            if scale.name == "r_scale":
                scale.CopyFrom(
                    numpy_helper.from_array(
                        numpy_helper.to_array(scale) * np.float32(factor), scale.name
                    )
                )
        onnx.save(model, folder / f"{name}.onnx")
    return folder


def plan(place: Path, *words: str) -> Done:
    return subcut("plan", "m.onnx", "-i", "samples", "-c", EXACT, *words, "--json", cwd=place)


def test_right_model_keeps_nothing_in_float(place: Path) -> None:
    done = plan(place, "--candidate-model", "good.onnx", "--criterion", "cosine>0.98")
    assert (done.code, done.document["kept"], done.document["runs"]) == (0, [], 1), done
    assert (place / done.document["model"]).is_file()


@pytest.mark.slow
def test_the_one_place_is_kept_and_proven(place: Path) -> None:
    done = plan(place, "--candidate-model", "bad.onnx", "--criterion", "cosine>0.98")
    document = done.document
    assert done.code == 0 and [k["name"] for k in document["kept"]] == ["second"], done
    assert (
        document["minimal"]
        and document["proven"] == 1
        and has_line(document["says"], "1 of 6", "second")
    )
    assert document["kept"][0]["tensors"] == ["r", "v"] and document["weights"] == {
        "low": 768,
        "between": 0,
        "float": 1024,
    }
    refused = [t for t in document["tried"] if t["kept"] == 0]
    assert refused and not refused[0]["accepted"]
    lists = {name: (place / file).read_text() for name, file in document["lists"].items()}
    assert json.loads(lists["onnxruntime"])["nodes_to_exclude"] == ["second"]
    stored = onnx.load(place / document["model"])
    kinds = {t.name: t.data_type for t in stored.graph.initializer}
    assert (
        kinds["v"] == onnx.TensorProto.FLOAT
        and kinds["w:codes"] == kinds["u:codes"] == onnx.TensorProto.INT8
    )
    again = plan(place, "--candidate-model", "bad.onnx", "--criterion", "cosine>0.98")
    assert [k["name"] for k in again.document["kept"]] == ["second"]


@pytest.mark.slow
@pytest.mark.parametrize(("other", "gear"), [("coarse", "int16"), ("bad", "float16")])
def test_the_lowest_gear_that_holds(place: Path, other: str, gear: str) -> None:
    """16 bits heal steps that are too large; where the range is cut off, they have the same one."""
    words = (
        "--candidate-model",
        f"{other}.onnx",
        *"--criterion cosine>0.98 --gears float32,float16,int16".split(),
    )
    document = plan(place, *words).document
    (kept,) = document["kept"]
    assert (kept["name"], kept["gear"], document["minimal"]) == ("second", gear, True), document
    assert has_line(document["says"], "1 of 6", f"second ({gear})")
    stored = onnx.load(place / document["model"])
    held = {t.name: t.data_type for t in stored.graph.initializer}
    assert held["v:codes" if gear == "int16" else "v:float16"] == onnx.TensorProto.DataType.Value(
        {"int16": "INT8", "float16": "FLOAT16"}[gear]
    )
    text = subcut("plan", "m.onnx", "-i", "samples", "-c", EXACT, *words, "-q", cwd=place).out
    assert "gear lower" in text


@pytest.mark.slow
def test_score_of_a_file_is_used(place: Path) -> None:
    (place / "mine.py").write_text(
        "import numpy as np\n"
        "def near(outputs, samples):\n"
        "    assert all(s['x'].shape == (1, 8) for s in samples)\n"
        "    return float(np.mean([abs(o['y']).max() for o in outputs]))\n"
    )
    words = ("--candidate-model", "bad.onnx", "--score", "mine.py:near", "--drop", "20%")
    done = plan(place, *words)
    score = done.document["score"]
    assert done.code in (0, 5) and [k["name"] for k in done.document["kept"]] == ["second"], done
    assert score["plan"] >= score["limit"] > score["as_it_is"] and score["samples"] == SAMPLES
    assert score["interval"][0] <= score["float"] - score["plan"] <= score["interval"][1]
    text = subcut("plan", "m.onnx", "-i", "samples", "-c", EXACT, *words, "-q", cwd=place).out
    assert has_line(text, "the plan")


def test_few_samples_are_unresolved(place: Path) -> None:
    done = subcut(
        *"plan m.onnx -i samples/s0.npy --to fp16 --score sqnr --at-least 10 --json".split(),
        cwd=place,
    )
    assert done.code == 5 and "one sample" in done.document["says"], done
    said = subcut("replay", done.document["path"], cwd=place)
    assert said.code == 2 and "report.html" in said.err


@pytest.mark.turns(3)
@pytest.mark.parametrize("precision", ["fp16", "bf16", "int8", "uint8"])
def test_the_lowered_model_is_made(place: Path, precision: str) -> None:
    done = plan(place, "--to", precision, "--score", "sqnr", "--at-least", "15")
    assert done.code in (0, 5) and done.document["kept"] is not None, done
    assert done.document["score"]["plan"] >= 15
    assert done.document["precision"] == {"uint8": "int8"}.get(precision, precision)


CONVERT = """
import sys, numpy as np, onnx
from onnx import numpy_helper
model, keep, converted = sys.argv[1:]
kept, network = open(keep).read().split(), onnx.load(model)
weights = {w.name: w for w in network.graph.initializer}
for node in network.graph.node:
    step = {"first": 0.02, "second": 2, "last": 0.02}.get(node.name)
    if step and node.name not in kept:
        rounded = (numpy_helper.to_array(weights[node.input[1]]) / step).round() * np.float32(step)
        weights[node.input[1]].CopyFrom(numpy_helper.from_array(rounded, node.input[1]))
onnx.save(network, converted)
"""
RUN = """
import json, sys, numpy as np, onnxruntime
from pathlib import Path
converted, inputs, outputs = map(Path, sys.argv[1:])
session, asked = onnxruntime.InferenceSession(converted), json.loads((inputs / "manifest.json").read_text())
(y,) = session.run(None, {"x": np.load(inputs / asked["inputs"][0]["npy"])})
np.save(outputs / asked["outputs"][0]["npy"], y)
"""  # noqa: E501


@pytest.mark.slow
def test_own_converter_receives_the_kept_places(place: Path, tmp_path: Path) -> None:
    """The command gets the float model and a list; only the list comes out of it. Elsewhere the
    list is empty."""
    (tmp_path / "convert.py").write_text(CONVERT)
    (tmp_path / "run.py").write_text(RUN)
    python = sys.executable
    (tmp_path / "subcut.toml").write_text(f"""[candidates.board]
        convert = '"{python}" convert.py {{model}} {{keep}} {{converted}}'
        run = '"{python}" run.py {{converted}} {{inputs}} {{outputs}}'
        precision = "int8"
        """)
    model = place / "m.onnx"
    sample = ("-i", place / "samples" / "s0.npy")
    words = (*sample, "-c", "board", "--criterion", "cosine>0.98", "--trust", "--json")
    done = subcut("plan", model, *words, cwd=tmp_path)
    document = done.document
    assert (
        done.code == 0
        and [k["name"] for k in document["kept"]] == ["second"]
        and document["minimal"]
    ), done
    assert document["model"] is document["weights"] is None
    assert (tmp_path / document["lists"]["names"]).read_text() == "second\n"
    assert subcut("compare", model, *words, cwd=tmp_path).code == 1
    by_operator = subcut("plan", model, *words, "--unit", "operator", cwd=tmp_path).document
    # its places have the numbers of nodes, not their runs
    assert [k["name"] for k in by_operator["kept"]] == ["MatMul"]
    done = subcut("plan", model, *words, "--to", "int8", cwd=tmp_path)
    assert done.code == 2 and done.document["error"]["kind"] == "UsageError"


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--to", "int7"),
        ("--to", "int8", "--candidate-model", "good.onnx"),
        ("--to", "int8", "--score", "top1"),
        ("--to", "int8", "--score", "top1", "--drop", "1%", "--labels", "cats.csv"),
        ("--to", "fp16", "--gears", "int16"),
        ("--candidate-model", "good.onnx", "--rescale"),
        ("--candidate-model", "m.onnx"),
    ],
)
def test_slips_are_refused(place: Path, words: tuple[str, ...]) -> None:
    (place / "cats.csv").write_text("cat\n" * SAMPLES)
    done = subcut("plan", "m.onnx", "-i", "samples", *words, cwd=place)
    assert done.code == 2, done


def test_score_that_fails_is_told_with_its_words(place: Path) -> None:
    (place / "fails.py").write_text(
        "def f(outputs):\n    raise RuntimeError('no boxes')\ndef g(outputs):\n    return"
        " float('nan')\n"
    )
    for function, says in (("f", "no boxes"), ("g", "gave nan"), ("h", "has no function h")):
        done = plan(place, "--to", "fp16", "--score", f"fails.py:{function}", "--drop", "1%")
        assert done.code == 2 and says in done.document["error"]["what"], done


def test_not_even_float_is_good_enough(place: Path) -> None:
    done = plan(place, "--to", "fp16", "--score", "sqnr", "--at-least", "900")
    assert done.code == 1 and done.document["says"].startswith("wrong: "), done


def test_used_up_time_ends_the_plan(place: Path) -> None:
    done = plan(
        place,
        *"--candidate-model bad.onnx --criterion cosine>0.98 --max-time 0.01s --fresh".split(),
    )
    assert (done.code, done.document["error"]["kind"]) == (5, "OutOfTime"), done


@pytest.mark.turns(3)
@pytest.mark.parametrize("asked", [3, 6, 9])
def test_plan_at_the_end_of_the_time_is_written(
    place: Path, monkeypatch: pytest.MonkeyPatch, asked: int
) -> None:
    left = [asked]

    def is_over(_: ModelRunner) -> bool:
        left[0] -= 1
        return left[0] < 0

    monkeypatch.setattr(ModelRunner, "is_over", is_over)
    done = plan(place, "--candidate-model", "bad.onnx", "--criterion", "cosine>0.98", "--fresh")
    document = done.document
    assert done.code == 0 and document["kept"] and not document["minimal"], done
    assert "second" in [k["name"] for k in document["kept"]]
    assert document["proven"] < len(document["kept"]) and (place / document["model"]).is_file()


@pytest.mark.slow
def test_candidate_that_runs_no_lowered_model_proves_nothing(place: Path) -> None:
    """That a model does not run is no reason to keep a place in float, and the float model may be
    the only one."""
    refuse = (
        "if any(n.op_type == 'DequantizeLinear' for n in nodes): raise ValueError('no int8 here')"
    )
    (place / "float_only.py").write_text(planted(refuse))
    done = subcut(
        *(
            "plan m.onnx -i samples -c float_only.py --candidate-model bad.onnx "
            "--criterion cosine>0.98 --json"
        ).split(),
        cwd=place,
    )
    document = done.document
    assert (
        len(document["kept"]) == document["places"]
        and not document["minimal"]
        and not document["proven"]
    ), done
    assert document["notes"]


@pytest.mark.slow
def test_old_opset_is_converted_and_said(place: Path) -> None:
    model = onnx.load(place / "m.onnx")
    model.opset_import[0].version = 11
    (place / "old").mkdir(exist_ok=True)
    onnx.save(model, place / "old" / "m.onnx")
    done = subcut(
        "plan", "old/m.onnx", "-i", "samples", "-c", EXACT, "--to", "int8", "--json", cwd=place
    )
    assert done.code == 0 and "opset" in done.err, done
    source = json.loads((place / done.document["path"] / "manifest.json").read_text())["source"]
    # that of the user's file
    assert source["structure_sha256"] == load(place / "old" / "m.onnx").skeleton.structure


def test_run_is_stored_by_what_is_lowered_whatever_the_unit(place: Path) -> None:
    """Place 0 is a node, or all nodes of an operator: a run of one was taken for the other's."""
    graph = prepare_graph(load(place / "m.onnx"))
    key = SimpleNamespace(text="board")
    values = SimpleNamespace(records=[])
    trials: Any = SimpleNamespace(
        graph=graph,
        model=SimpleNamespace(graph=graph, values=values),
        runtime=SimpleNamespace(own_model=None),
        processes=SimpleNamespace(runs=SimpleNamespace(candidate_key=key)),
    )
    twin = lower_by_command(graph, Precision.INT8)
    units = (Unit.NODE, Unit.OPERATOR)
    node_models, operator_models = (LoweredModels(graph, twin, unit) for unit in units)
    assert [p.name for p in node_models.places] == ["first", "relu", "second", "tanh", "last"]
    assert [p.name for p in operator_models.places] == ["MatMul", "Relu", "Tanh"]
    node, operator = (Planner(trials, m).runner for m in (node_models, operator_models))
    assert node.key_of({0: 1}) != operator.key_of({0: 1}) and node.key_of({}) == operator.key_of({})
    assert node.key_of({0: 1, 2: 1, 4: 1}) == operator.key_of({0: 1})


def test_distance_is_relative_to_the_reference() -> None:
    a = np.array([3.0, 4.0], np.float32)
    assert measure_distance(a, a) == 0 and measure_distance(
        a, a + np.array([0, 1])
    ) == pytest.approx(0.2)
    assert measure_distance(a, np.array([np.nan, 4])) == np.inf == measure_distance(a, a[:1])
    assert measure_distance(np.array([np.inf, 4.0]), np.array([np.nan, 4.0])) == 0


def test_plan_has_a_report(place: Path) -> None:
    """Curve, sensitivity and what was tried; names are escaped."""
    words = ("--candidate-model", "bad.onnx", "--score", "sqnr", "--at-least", "20")
    document = plan(place, *words).document
    page = (place / document["path"] / "report.html").read_text()
    assert (
        page == render_plan(from_json(PlanDocument, document))
        and 'aria-label="The score over' in page
    )
    assert [one["name"] for one in document["sensitivity"]][:2] == ["first", "relu"]
    worst = max(document["sensitivity"], key=lambda one: one["error"])
    assert worst["name"] == "second" and f">{document['says']}" in page
    assert subcut("report", document["path"], "-f", "html", cwd=place).code == 0
    document["kept"][0]["name"] = "<script>alert(1)"
    assert "<script>alert" not in render_plan(from_json(PlanDocument, document))


def test_the_document_is_that_of_the_folder(place: Path) -> None:
    done = plan(place, "--candidate-model", "bad.onnx", "--criterion", "cosine>0.98")
    stored: dict[str, Any] = json.loads((place / done.document["path"] / "plan.json").read_text())
    assert stored["kept"] == done.document["kept"] and stored["schema"] == "subcut.plan/1"


def test_where_the_time_is_limited_the_sensitive_places_are_measured_in_its_first_half(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """160 places, a second each, of which 100 s are left: ten groups, then the group of the
    sensitive ones first."""
    clock = [0.0]
    bad = {70, 71}
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])

    def error_of(group: Collection[int], until: float, samples: int | None) -> float:
        assert samples == (1 if len(group) > 1 else None)
        if clock[0] > until:
            raise OutOfTime("used up")
        clock[0] += 1
        return 0.1 * len(bad.intersection(group)) + 1e-3 * len(group)

    for left, measured in ((100.0, 41), (math.inf, 160)):
        clock[0] = 0.0
        trials: Any = SimpleNamespace(
            runtime=SimpleNamespace(workers=SimpleNamespace(deadline=Deadline(left), turns=None))
        )
        places = [SimpleNamespace(name=f"n{k}") for k in range(160)]
        models: Any = SimpleNamespace(places=places)
        planner = Planner(trials, models)
        monkeypatch.setattr(planner, "_measure_error", error_of)
        with nullcontext() if left == math.inf else pytest.raises(OutOfTime):
            planner.measure()
        assert len(planner.errors) == measured and planner.runs == measured + (
            10 if left < math.inf else 0
        )
        order = sorted(places, key=lambda p: -planner.measure_sensitivity(places.index(p)))
        assert order[:2] == [places[70], places[71]]
        assert clock[0] <= (left / 2 + 1 if left < math.inf else 160)


@pytest.mark.slow
def test_many_places_are_ranked_by_a_few_runs(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of 18 nodes leave float16's range: the group that they are in says that some do, one run
    more which."""
    monkeypatch.setattr(find_plan, "MIN_GROUPED_PLACES", 12)
    monkeypatch.setattr(find_plan, "GROUP_PLACES", 4)
    nodes = "".join(
        f"[n{k}] h{k + 1} = Mul (h{k}, {'one' if k % 11 else 'near'}) " for k in range(16)
    )
    text = (
        f"g (float[1, 8] h0) => (float[1, 8] y) {{ {nodes} [big] b = Mul (h16, big) [y] y = Mul (b,"
        " tiny) }"
    )
    one, near, big, tiny = (np.array([v], np.float32) for v in (1, 1.1, 1e6, 1e-6))
    text_models.save(place / "many.onnx", text, one=one, near=near, big=big, tiny=tiny)
    seen: list[Planner] = []
    measured = Planner.measure

    def measure(planner: Planner) -> None:
        seen.append(planner)
        measured(planner)

    monkeypatch.setattr(Planner, "measure", measure)
    done = subcut(
        *"plan many.onnx -i samples -c".split(),
        EXACT,
        *"--to fp16 --score sqnr --at-least 40 --max-time 300s --json".split(),
        cwd=place,
    )
    document = done.document
    assert (
        done.code == 0
        and {k["name"] for k in document["kept"]} == {"big", "y"}
        and document["minimal"]
    ), done
    assert seen[0].estimates[16] > 0.5 > 10 * max(seen[0].estimates[k] for k in range(16))
    assert document["runs"] <= 3 + 5 + 18 + 12


LARGE = """g (float[1, 8] x) => (float[1, 8] y) {
    [up] a = MatMul (x, large) [relu] b = Relu (a) [down] y = MatMul (b, small) }"""


def test_a_tensor_that_overflows_is_scaled(tmp_path: Path) -> None:
    """The float16 model without scales is refused, and with them no place stays in float."""
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(2, 8, 8)).astype(np.float32)
    large, small = weights[0] * np.float32(6e4), weights[1] * np.float32(1e-4)
    text_models.save(tmp_path / "m.onnx", LARGE, large=large, small=small)
    x = rng.normal(size=(1, 8)).astype(np.float32) * 4
    np.save(tmp_path / "x.npy", x)
    words = ["plan", "m.onnx", "--to", "fp16", "-i", "x.npy", "--json"]
    kept = subcut(*words, cwd=tmp_path).document["kept"]
    assert {place["name"] for place in kept} >= {"up"}
    document = subcut(*words, "--rescale", "--force", cwd=tmp_path).document
    assert document["kept"] == []
    scales = document["scales"]
    assert {tensor["kind"] for tensor in scales["tensors"]} == {"overflow"}
    assert scales["difference"] == 0 and not scales["factors"]
    assert set(scales["weights"]) == {"large", "small"}
    expected = evaluate(tmp_path / "m.onnx", {"x": x})["y"]
    assert np.array_equal(evaluate(tmp_path / scales["model"], {"x": x})["y"], expected)


@pytest.mark.slow
def test_why_more_than_half_of_the_places_stay(place: Path) -> None:
    """The error of each alone tells many small errors from few large ones."""
    model = onnx.load(place / "good.onnx")
    for tensor in model.graph.initializer:
        if tensor.name.endswith("_scale") and tensor.name[0] not in "wvu":
            tensor.CopyFrom(
                numpy_helper.from_array(numpy_helper.to_array(tensor) / np.float32(40), tensor.name)
            )
    onnx.save(model, place / "narrow.onnx")

    def note(model: str, *words: str) -> str:
        done = subcut(
            "plan",
            model,
            "-i",
            "samples",
            "-c",
            EXACT,
            "--score",
            "sqnr",
            *words,
            "--json",
            cwd=place,
        )
        return str(
            next(
                note
                for note in done.document["notes"]
                if note.startswith("more than half of the places")
            )
        )

    cut = note("m.onnx", "--candidate-model", "narrow.onnx", "--at-least", "20")
    assert has_line(cut, "deviates by", "median")
    assert has_line(note("m.onnx", "--to", "fp16", "--at-least", "130"), "deviates by", "median")


def test_wrapper_that_breaks_its_contract_has_no_plan(place: Path) -> None:
    """As before a search: no place in float heals an output that is a list."""
    (place / "lists.py").write_text(
        planted("", "found = {name: value.tolist() for name, value in found.items()}")
    )
    words = "plan m.onnx -i samples -c lists.py --to fp16 --trust --json"
    done = subcut(*words.split(), cwd=place)
    assert done.code == 4 and done.document["error"]["code"] == "candidate.breaks-contract", done


@pytest.mark.slow
def test_a_setting_that_heals_the_float_model_is_named(place: Path) -> None:
    """As before a search: the runtime is wrong only in the precision that it chose."""
    settings = """
def precision(options):
    return "fp32" if options.get("full") == "yes" else "bf16"


def exact(options):
    return {**options, "full": "yes"} if options.get("full") != "yes" else None
"""
    fault = "wrong = not options.get('full') and any(n.op_type == 'Tanh' for n in nodes)"
    answer = "found = {n: v + v.max() if wrong else v for n, v in found.items()}"
    (place / "chooses.py").write_text(planted(fault, answer) + settings)
    words = "plan m.onnx -i samples -c chooses.py --to fp16 --trust --json"
    done = subcut(*words.split(), cwd=place)
    assert done.code == 1 and has_line(done.document["says"], "full=yes", "agree"), done
