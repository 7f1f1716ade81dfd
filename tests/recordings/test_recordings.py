"""Recordings against a model: matching, judging, intervals, cases.

Covers `recordings.device_runs`, `recordings.matching.match`, `recordings.matching.align`,
`recordings.compare_recording`, `recordings.interval` and `recordings.result_folder`.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from benchmarks.recorded import tried
from fixtures import ROOT, device
from fixtures.oracle import tapped
from subgraph.graph.graph import load
from subgraph.recordings import compare_recording, interval, msaccucmp
from subgraph.recordings.device_runs import RecordedFolder, RecordingOptions, open_runs
from subgraph.recordings.matching.matched import Reason
from subgraph.recordings.run_comparison import RunComparison
from subgraph.runtime.inputs import Feeding
from subgraph.runtime.reference import Reference
from tests.helpers import fake_candidate, text_models
from tests.helpers.compared_dumps import compare_dump
from tests.helpers.documents import problem
from tests.helpers.dump_writers import write_ascend
from tests.helpers.examples import ALL
from tests.helpers.facts import has_line
from tests.helpers.run_command import Done, subcut
from tests.helpers.runs import evaluate

Array = npt.NDArray[Any]
DUMPS = ROOT / "fixtures" / "dumps"
TINY = DUMPS / "mnn" / "test.onnx"  # the net of the RKNN, TNN and MNN samples


@pytest.fixture(scope="module")
def made() -> onnx.ModelProto:
    return device.net()


@pytest.fixture
def fifty(tmp_path: Path, made: onnx.ModelProto) -> Callable[..., Path]:
    """A folder with net.onnx and the dumps of one run of the device: all of them, node `wrong`
    off."""

    def make(
        wrong: int | None = None,
        kind: device.Kind = device.KINDS[0],
        name: str = "dump",
        seed: int = 0,
    ) -> Path:
        onnx.save(made, tmp_path / "net.onnx")
        data = device.fed()
        left = device.dumps(made, kind, seed)
        device.save(device.run(made, data, wrong, seed), data, left, tmp_path / name)
        return tmp_path

    return make


def tensors(folder: Path) -> dict[str, Array]:
    """What lies in a folder of .npy."""
    return {p.stem: np.load(p) for p in folder.glob("*.npy")}


def compared(folder: Path, *words: str, model: str = "net.onnx") -> Done:
    return subcut("compare", model, "--json", *words, cwd=folder)


def cells(done: Done, run: int = 0) -> dict[str, Any]:
    """Tensor -> its cell in one run; None where it was not seen."""
    return {row["tensor"]: row["runs"][run] for row in done.document["rows"]}


def statuses(done: Done, run: int = 0) -> dict[str, str]:
    """Of what was seen and compared."""
    return {n: c["in_place"]["status"] for n, c in cells(done, run).items() if c and c["in_place"]}


# ------------------------------------------------------------ real recordings


@pytest.mark.slow
def test_rknn_names_the_side_that_differs(tmp_path: Path) -> None:
    done = compared(
        tmp_path, "--recorded", str(DUMPS / "rknn"), "--precision", "fp32", model=str(TINY)
    )
    assert done.code == 1
    assert [r["name"] for r in done.document["recordings"]] == ["rknn:golden", "rknn:simulator"]
    assert set(statuses(done, 0).values()) == {"agree"}
    assert done.document["odd_one_out"] == "rknn:simulator"
    held = compared(tmp_path, "--recorded", str(DUMPS / "rknn"), model=str(TINY))
    # its names say that the simulator computes in int8
    assert held.code == 0 and held.document["precision"] == "int8"
    assert set(statuses(held, 1).values()) == {"agree"}
    assert not held.document["odd_one_out"]


def test_tnn_and_mnn_dumps_agree(tmp_path: Path) -> None:
    later = {"relu2", "/blk/conv3_output_0", "/blk/Add_output_0", "relu4", "gap", "flat", "logits"}
    for folder, seen in (("tnn", later), ("mnn", {"logits"})):
        done = compared(
            tmp_path, "--recorded", str(DUMPS / folder), "--criterion", "tnn", model=str(TINY)
        )
        assert done.code == 0, done.err
        assert statuses(done) == dict.fromkeys(seen, "agree")


def test_dump_of_another_model_is_noticed(tmp_path: Path) -> None:
    done = compared(tmp_path, "--recorded", str(DUMPS / "ascend"), "--seed", "0", model=str(TINY))
    assert done.code == 2
    assert has_line(done.document["error"]["what"], "model")
    assert "res2a" in done.document["error"]["what"] and "conv1" in done.document["error"]["what"]


# ------------------------------------------------------------ in place, alone


def test_wrong_layer_is_the_first_bad_tensor(
    fifty: Callable[..., Path], made: onnx.ModelProto
) -> None:
    here = fifty(wrong=17)
    done = compared(here, "--recorded", "dump")
    names = [n.output[0] for n in made.graph.node]
    found = statuses(done)
    assert done.code == 1
    assert {n for n in names if found[n] == "agree"} == set(names[:17]), "all behind it is wrong"
    assert done.document["recordings"][0]["first_bad"] == names[17]
    alone = {n: c["alone"] and c["alone"]["status"] for n, c in cells(done).items()}
    assert alone == {
        n: "fail" if n == names[17] else "agree" if n in names[18:] else None for n in names
    }


def test_second_fault_behind_the_first_is_seen(
    fifty: Callable[..., Path], made: onnx.ModelProto
) -> None:
    here = fifty(wrong=12)
    names = [n.output[0] for n in made.graph.node]
    folder = here / "dump"
    later = names[30].replace("/", "_")
    values = np.load(folder / f"{later}.npy")
    np.save(folder / f"{later}.npy", values + 0.1 * np.abs(values).max())
    done = subcut("bisect", "net.onnx", "--recorded", "dump", "--json", cwd=here)
    found = {f["first_bad"][0]: f for f in done.document["findings"]}
    assert done.document["findings"][0]["first_bad"] == [names[12]]
    assert done.document["findings"][0]["first"]
    assert not found[names[30]]["first"]
    assert found[names[30]]["adds_an_error"]


def test_without_a_fault_all_agree(fifty: Callable[..., Path]) -> None:
    here = fifty()
    assert set(statuses(compared(here, "--recorded", "dump")).values()) == {"agree"}
    for command in ("compare", "bisect"):
        done = subcut(command, "net.onnx", "--recorded", "dump", cwd=here)
        assert done.code == 0
    assert has_line(done.out, "right: 50", "agree")
    assert not (here / "subcut_out" / "recorded-dump").exists()
    for name in ("compare-dump", "recorded-dump-report"):
        document = json.loads((here / "subcut_out" / name / "run.json").read_text(encoding="utf-8"))
        assert not problem(document), "as the schema says"
        page = (here / "subcut_out" / name / "report.html").read_text(encoding="utf-8")
        assert (
            has_line(page, "right: 50", "agree")
            and document["report"] == f"subcut_out/{name}/report.html"
        )


@pytest.mark.slow
def test_unrecorded_tensor_is_not_seen(fifty: Callable[..., Path]) -> None:
    here = fifty(wrong=20, kind=device.KINDS[1])
    done = compared(here, "--recorded", "dump")
    assert any(c is None for c in cells(done).values())
    assert "-              -" in subcut("compare", "net.onnx", "--recorded", "dump", cwd=here).out


# ------------------------------------------------------------ matching


def test_fused_name_is_repaired_and_said(fifty: Callable[..., Path], made: onnx.ModelProto) -> None:
    here = fifty(kind=device.KINDS[2])
    done = compared(here, "--recorded", "dump")
    left = device.dumps(made, device.KINDS[2])
    repaired = {name: tensor for name, tensor in left.files.items() if name != tensor}
    assert repaired
    found = cells(done)
    assert set(statuses(done).values()) == {"agree"}
    for name, tensor in repaired.items():
        assert found[name] is None
        assert has_line(found[tensor]["note"], name, "fused")


def test_names_that_the_model_does_not_have_are_matched_by_value(
    fifty: Callable[..., Path],
) -> None:
    here = fifty()
    for k, file in enumerate(sorted((here / "dump").glob("*.npy"))):
        if file.stem != "data":
            file.rename(file.with_name(f"blob{k}.npy"))
    done = compared(here, "--recorded", "dump")
    assert done.code == 0
    assert len(statuses(done)) == device.LAYERS
    assert {c["matched_by"] for c in cells(done).values()} == {"value"}


def test_of_two_with_the_same_value_the_other_is_a_copy(
    fifty: Callable[..., Path], made: onnx.ModelProto
) -> None:
    here = fifty()
    name = made.graph.node[4].output[0]
    file = here / "dump" / f"{name.replace('/', '_')}.npy"
    file.rename(file.with_name("x.npy"))
    (here / "dump" / "y.npy").write_bytes((here / "dump" / "x.npy").read_bytes())
    done = compared(here, "--recorded", "dump")
    assert cells(done)[name]["recorded_as"] == "x"
    run = done.document["recordings"][0]
    assert [(e["name"], e["why"]) for e in run["lost"]] == [("y", f"a copy of {name}")]
    assert run["left_out"] == [{"why": Reason.NOTHING, "count": 1, "names": ["y"]}]


@pytest.mark.parametrize(
    "given", [(), pytest.param(("--dump-layout", "NHWC"), marks=pytest.mark.slow)]
)
def test_headerless_files_with_channels_last(
    fifty: Callable[..., Path], given: tuple[str, ...]
) -> None:
    here = fifty(wrong=31)
    (here / "raw" / "Result_0").mkdir(parents=True)
    for name, value in tensors(here / "dump").items():
        value.transpose(0, 2, 3, 1).tofile(here / "raw" / "Result_0" / f"{name}.raw")
    done = compared(here, "--recorded", "raw", "-i", "dump/data.npy", *given)
    found = list(statuses(done).values())
    assert found == ["agree"] * 31 + ["fail"] * 19


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda value: value.astype(np.int8), ("int8", "scale")),
        (lambda value: np.zeros((1, 3, 5), np.float32), ("1×3×5",)),
        (lambda value: np.full(value.shape, "a"), ("another type",)),
    ],
)
def test_value_of_another_kind_is_unresolved(
    change: Callable[[Array], Array],
    says: tuple[str, ...],
    fifty: Callable[..., Path],
    made: onnx.ModelProto,
) -> None:
    here = fifty()
    name = made.graph.node[3].output[0]
    file = here / "dump" / f"{name.replace('/', '_')}.npy"
    np.save(file, change(np.load(file)))
    done = compared(here, "--recorded", "dump")
    assert done.code == 5
    assert has_line(cells(done)[name]["why"], *says)


@pytest.mark.slow
@settings(
    max_examples=12 if ALL else 6,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
)
@given(seed=st.integers(0, 10**6))
def test_law_what_is_matched_holds_that_tensor(
    seed: int, made: onnx.ModelProto, tmp_path_factory: pytest.TempPathFactory, reference: Reference
) -> None:
    """Some names are lost, some belong to another tensor's values: what is matched has the right
    values, or is said to be wrong; nothing that is right is called wrong."""
    dice = np.random.default_rng(seed)
    folder = tmp_path_factory.mktemp("law")
    onnx.save(made, folder / "net.onnx")
    values = device.run(made, device.fed(), None, seed)
    data = device.fed()
    kept = {n: v for n, v in values.items() if dice.random() < 0.7}
    (folder / "dump").mkdir()
    np.save(folder / "dump" / "data.npy", data)
    for k, (name, value) in enumerate(kept.items()):
        word = f"blob{k}" if dice.random() < 0.3 else name.replace("/", "_")
        np.save(folder / "dump" / f"{word}.npy", value)
    graph = load(folder / "net.onnx")
    with (
        open_runs(
            graph, RecordingOptions((RecordedFolder(folder / "dump"),)), Feeding()
        ) as recorded,
        recorded.open_judge(graph, reference, folder / "out") as (judge, runs),
    ):
        (found,) = compare_recording.match_run(judge, runs[0])
    for tensor, held in found.matches.items():
        if tensor != "data":
            assert np.array_equal(held.entry.read(), values[tensor])
    assert len(found.matches) + len(found.left_out) == len(kept) + 1


# ------------------------------------------------------------ what is judged


def test_the_printed_digits_raise_no_alarm(tmp_path: Path, made: onnx.ModelProto) -> None:
    """Six digits behind the point, and a rule that allows nothing."""
    onnx.save(made, tmp_path / "net.onnx")
    values = device.run(made, device.fed())
    exact = {k: np.load(p) for k, p in dumped(tmp_path).items()}
    (tmp_path / "text").mkdir()
    for name in values:
        shape = "".join(f"-{d}" for d in exact[name].shape)
        stem = name.replace("/", "_")
        lines = "\n".join(f"{v:.9f}" for v in exact[name].reshape(-1))
        (tmp_path / "text" / f"00000-{stem}-out-0-{stem}-dims{shape}.txt").write_text(lines + "\n")
    done = compared(tmp_path, "--recorded", "text", "-i", "fed.npy", "--rtol", "0", "--atol", "0")
    assert done.code == 0, done.out


def dumped(folder: Path) -> dict[str, Path]:
    """What the reference itself gives, tensor by tensor."""
    np.save(folder / "fed.npy", device.fed())
    done = subcut("dump", "net.onnx", "--all", "-i", "fed.npy", "-o", "exact", "--json", cwd=folder)
    document = done.document
    home = Path(folder / document["path"])
    return {t["name"]: home / t["samples"][0]["files"][0]["file"] for t in document["tensors"]}


@pytest.mark.slow
def test_another_input_is_told(fifty: Callable[..., Path]) -> None:
    here = fifty()
    np.save(here / "other.npy", device.fed(5))
    done = compared(here, "--recorded", "dump", "-i", "other.npy")
    assert done.code == 1
    assert has_line(done.document["recordings"][0]["notes"][0], "input", "data")


@pytest.mark.slow
def test_nobody_says_what_was_fed(fifty: Callable[..., Path]) -> None:
    here = fifty()
    (here / "dump" / "data.npy").unlink()
    done = subcut("compare", "net.onnx", "--recorded", "dump", cwd=here)
    assert done.code == 2
    assert has_line(done.err, "unknown")
    assert subcut("compare", "net.onnx", "--recorded", "dump", "--seed", "0", cwd=here).code == 1


@pytest.mark.slow
def test_align_output_and_all(fifty: Callable[..., Path], made: onnx.ModelProto) -> None:
    here = fifty(wrong=9)
    names = [n.output[0] for n in made.graph.node]
    outputs = compared(here, "--recorded", "dump", "--align", "output")
    assert list(cells(outputs)) == [names[-1]]
    assert outputs.code == 1
    stopped = compared(here, "--recorded", "dump", "--align", "all")
    assert list(statuses(stopped)) == names[:10]
    found = subcut("compare", "net.onnx", "--recorded", "dump", "--align", "inputs", cwd=here)
    assert found.code == 2
    some = compared(here, "--recorded", "dump", "--at", "/block0/*")
    assert list(cells(some)) == names[:5]


# ------------------------------------------------------------ several runs


@pytest.mark.slow
def test_three_runs_name_the_odd_one_out(fifty: Callable[..., Path], made: onnx.ModelProto) -> None:
    fifty(name="simulator")
    here = fifty(wrong=25, name="board")
    done = compared(here, "--recorded", "simulator", "--recorded", "board")
    assert done.code == 1
    assert done.document["odd_one_out"] == "board"
    row = next(r for r in done.document["rows"] if r["odd_one_out"])
    assert row["tensor"] == made.graph.node[25].output[0]
    done = subcut("compare", "net.onnx", "--recorded", "simulator", "--recorded", "board", cwd=here)
    says = (
        "simulator agrees with the reference; board departs from simulator first at"
        f" {row['tensor']} (Conv)"
    )
    assert done.out.startswith(f"{says}\n") and "FAIL, unlike simulator" in done.out


@pytest.mark.slow
def test_the_reference_may_be_the_odd_one(fifty: Callable[..., Path]) -> None:
    fifty(wrong=25, name="simulator")
    here = fifty(wrong=25, name="board")
    done = compared(here, "--recorded", "simulator", "--recorded", "board")
    assert done.document["odd_one_out"] == "reference"


@pytest.mark.parametrize(("wrong", "code"), [(None, 5), (25, 1)])
def test_missing_side_names_its_path_and_the_rest_is_compared(
    wrong: int | None, code: int, fifty: Callable[..., Path]
) -> None:
    here = fifty(wrong=wrong, name="board")
    words = ("compare", "net.onnx", "--recorded", "arm_result", "--recorded", "board", "--all")
    done = subcut(*words, cwd=here)
    assert done.code == code
    assert has_line(done.out, "arm_result", "missing")
    assert "/block0/conv0_output_0" in done.out
    only = subcut("compare", "net.onnx", "--recorded", "arm_result", cwd=here)
    assert only.code == 2
    assert "arm_result" in only.err


def test_damaged_file_costs_one_tensor(fifty: Callable[..., Path], made: onnx.ModelProto) -> None:
    here = fifty()
    name = made.graph.node[7].output[0]
    file = here / "dump" / f"{name.replace('/', '_')}.npy"
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    done = compared(here, "--recorded", "dump")
    if done.code == 2:  # the whole recording is refused: then it says which file
        assert file.name in done.document["error"]["what"]
    else:
        assert done.code == 5
        assert len(statuses(done)) == device.LAYERS - 1


@pytest.mark.slow
def test_several_samples_are_several_runs(tmp_path: Path, made: onnx.ModelProto) -> None:
    """Of two samples the second goes wrong: the worst counts, in place and alone."""
    onnx.save(made, tmp_path / "net.onnx")
    (tmp_path / "fed").mkdir()
    for k, wrong in enumerate((None, 8)):
        data = device.fed(k)
        np.save(tmp_path / "fed" / f"{k}.npy", data)
        (tmp_path / "out" / f"Result_{k}").mkdir(parents=True)
        for name, value in device.run(made, data, wrong).items():
            value.tofile(tmp_path / "out" / f"Result_{k}" / f"{name.replace('/', '_')}.raw")
    done = compared(tmp_path, "--recorded", "out", "-i", "fed")
    assert list(statuses(done).values()) == ["agree"] * 8 + ["fail"] * 42
    name = made.graph.node[8].output[0]
    assert cells(done)[name]["in_place"]["sample"] == "1"
    assert cells(done)[name]["alone"]["status"] == "fail"
    assert cells(done)[made.graph.node[9].output[0]]["alone"]["status"] == "agree"
    one = subcut("compare", "net.onnx", "--recorded", "out", "-i", "fed/0.npy", cwd=tmp_path)
    assert one.code == 0
    assert has_line(one.err, "out", "2 samples", "1 sample")


def test_msaccucmp_columns(fifty: Callable[..., Path], made: onnx.ModelProto) -> None:
    here = fifty(wrong=17)
    folder = here / "dump"
    name = made.graph.node[30].output[0].replace("/", "_")
    np.save(folder / f"{name}.npy", -np.load(folder / f"{name}.npy"))
    (folder / f"{made.graph.node[4].output[0].replace('/', '_')}.npy").unlink()
    words = ("compare", "net.onnx", "--recorded", "dump", "--criterion", "msaccucmp")
    done = subcut(*words, "--csv", "-", cwd=here)
    rows = list(csv.reader(io.StringIO(done.out)))
    assert rows[0] == list(msaccucmp.HEAD)
    assert len(rows) == 2 + device.LAYERS
    shown = {row[5]: dict(zip(msaccucmp.HEAD, row, strict=True)) for row in rows[1:]}
    assert shown["data"]["OpType"] == "Data"
    assert shown["/block0/conv0"]["CosineSimilarity"] == "1.000000"
    assert shown["/block6/conv30"]["CosineSimilarity"].startswith("-")
    assert shown["/block6/conv30"]["IsPrecisionError"] == "YES"
    assert shown["/block0/relu4"]["NPUDump"] == "*"
    assert has_line(shown["/block0/relu4"]["CompareFailReason"], "no dump")


def test_csv_has_a_line_per_tensor(fifty: Callable[..., Path]) -> None:
    here = fifty(wrong=17)
    done = subcut("compare", "net.onnx", "--recorded", "dump", "--csv", "-", cwd=here)
    rows = list(csv.DictReader(io.StringIO(done.out)))
    in_place, alone = ([r for r in rows if r["column"] == column] for column in ("dump", "alone"))
    assert [r["status"] for r in in_place] == ["agree"] * 17 + ["fail"] * 33
    assert alone[17]["status"] == "fail" and len(alone) == device.LAYERS


# ------------------------------------------------------------ handing on


@pytest.mark.slow
def test_the_interval_is_a_case(fifty: Callable[..., Path], made: onnx.ModelProto) -> None:
    here = fifty(wrong=17, kind=device.KINDS[1], seed=3)
    done = subcut("bisect", "net.onnx", "--recorded", "dump", cwd=here)
    assert done.code == 1
    case = here / "subcut_out" / "recorded-dump" / "interval"
    truth = device.between(made, 17, device.dumps(made, device.KINDS[1], 3).seen)
    manifest = json.loads((case / "manifest.json").read_text())
    assert [n["index"] for n in manifest["region"]["nodes"]] == list(truth)
    bad = made.graph.node[truth[-1]].output[0]
    held = np.load(here / "dump" / f"{bad.replace('/', '_')}.npy")
    assert np.array_equal(np.load(next((case / "candidate").glob("*.npy"))), held)
    assert f"subcut export {case.relative_to(here)}" in done.out
    again = subcut("replay", case, "-c", "ort", cwd=here)
    assert again.code == 0, "onnxruntime computes it right"
    # its own result is replaced
    assert subcut("bisect", "net.onnx", "--recorded", "dump", cwd=here).code == 1
    exported = subcut(
        "export", case, "-o", "board", "--dtype", "float16", "--layout", "NHWC", cwd=here
    )
    assert exported.code == 0


@pytest.mark.rare
@pytest.mark.slow
def test_with_a_candidate_the_recording_says_where_to_look(fifty: Callable[..., Path]) -> None:
    here = fifty(wrong=33)
    words = ("bisect", "net.onnx", "-c", f"{fake_candidate.HERE}:add=/block6/conv32:1", "--json")
    plain = subcut(*words, "-i", "dump/data.npy", cwd=here)
    told = subcut(*words, "--recorded", "dump", "--force", cwd=here)
    assert told.code == plain.code == 1
    assert [f["nodes"] for f in told.document["findings"]] == [
        f["nodes"] for f in plain.document["findings"]
    ]
    healthy = (*words[:2], "-c", "ort", "--recorded", "dump", "--json", "--force")
    right = subcut(*healthy, cwd=here)
    assert right.code == 0
    assert any("the recording dump differs" in note for note in right.document["notes"])


def test_recording_and_lint_are_weights_of_the_search(
    fifty: Callable[..., Path], reference: Reference, made: onnx.ModelProto
) -> None:
    here = fifty(wrong=33, kind=device.KINDS[1])
    graph = load(here / "net.onnx")
    with (
        open_runs(graph, RecordingOptions((RecordedFolder(here / "dump"),)), Feeding()) as recorded,
        recorded.open_judge(graph, reference, here / "out") as (judge, runs),
    ):
        seen = [compare_recording.compare_run(judge, run) for run in runs]
        weights = interval.weigh_nodes(graph, interval.weigh_intervals(seen))
    truth = device.between(made, 33, device.dumps(made, device.KINDS[1]).seen)
    assert weights == dict.fromkeys(truth, interval.INTERVAL_WEIGHT)


def test_cut_fed_with_what_was_recorded(fifty: Callable[..., Path], made: onnx.ModelProto) -> None:
    here = fifty(wrong=12)
    names = [n.output[0] for n in made.graph.node]
    done = subcut(
        *"cut net.onnx -s /block3/conv15 -e /block3/relu19 --recorded dump".split(), cwd=here
    )
    assert done.code == 0, done.err
    case = here / "subcut_out" / "block3_conv15__block3_relu19"
    manifest = json.loads((case / "manifest.json").read_text())
    values = tensors(here / "dump")

    def stored(role: str) -> dict[str, Array]:
        return {
            t["name"]: np.load(case / t["samples"][0]["files"][0]["file"]) for t in manifest[role]
        }

    assert {n: v.tobytes() for n, v in stored("inputs").items()} == {
        names[14]: values[names[14].replace("/", "_")].tobytes()
    }, "what the device had, wrong as it is"
    assert {n: v.tobytes() for n, v in stored("dump_data").items()} == {
        n: values[n.replace("/", "_")].tobytes() for n in names[15:20]
    }
    assert manifest["check"]["status"] == "identical"
    assert has_line(done.out, "recorded inputs")
    log = (case / "log.txt").read_text()
    words = ("Dump Layer: ", "Output File: ", "Input File: ", "Export Layer: ", "Recorded: ")
    assert all(word in log for word in words)


def test_result_that_is_read_as_a_recording_is_not_replaced(fifty: Callable[..., Path]) -> None:
    here = fifty()
    words = ("cut", "net.onnx", "-s", "/block3/conv15", "-e", "/block3/relu19")
    assert subcut(*words, "-i", "dump/data.npy", "--dump", "all", cwd=here).code == 0
    read = here / "subcut_out" / "block3_conv15__block3_relu19"
    before = sorted(p.name for p in read.rglob("*"))
    done = subcut(
        *words, "--recorded", read / "dump_data", "-i", "dump/data.npy", "--force", cwd=here
    )
    assert done.code == 2
    assert has_line(done.err, "holds")
    assert sorted(p.name for p in read.rglob("*")) == before


def test_cut_that_the_recording_cannot_feed(
    fifty: Callable[..., Path], made: onnx.ModelProto
) -> None:
    here = fifty()
    (here / "dump" / f"{made.graph.node[14].output[0].replace('/', '_')}.npy").unlink()
    done = subcut(
        *"cut net.onnx -s /block3/conv15 -e /block3/relu19 --recorded dump".split(), cwd=here
    )
    assert done.code == 2
    assert has_line(done.err, "'/block2/relu14_output_0'")
    assert has_line(done.err, "--start", "/block2/relu14")
    assert not (here / "subcut_out" / "block3_conv15__block3_relu19").exists()


def test_without_the_data_layer_compile_without_aipp(fifty: Callable[..., Path]) -> None:
    here = fifty()
    values = {n: v for n, v in tensors(here / "dump").items() if n != "data"}
    (here / "npu").mkdir()
    write_ascend(values, here / "npu")
    words = ("cut", "net.onnx", "--recorded", "npu", "-i", "dump/data.npy")
    away = subcut(*words, "-s", "/block3/conv15", "-e", "/block3/relu19", cwd=here)
    assert away.code == 0, away.err
    assert has_line(away.out, "AIPP")
    whole = subcut(*words, "-s", "/block0/conv0", "-e", "/block3/relu19", cwd=here)
    assert whole.code == 0, whole.err
    assert "AIPP" not in whole.out


def test_link_to_itself_is_refused(fifty: Callable[..., Path]) -> None:
    here = fifty()
    (here / "loop").symlink_to("loop")
    assert subcut("compare", "net.onnx", "--recorded", "loop", cwd=here).code == 2


# ------------------------------------------------------------ what looks alike


def seen_in(
    reference: Reference,
    model: onnx.ModelProto,
    folder: Path,
    before: Callable[[], object] = lambda: None,
) -> tuple[RunComparison, int, list[list[str]]]:
    """(what a recording in `folder`/dump is beside the model, its exit code, the nodes of its
    intervals).

    `before`: what happens to the files before their values are read.
    """
    onnx.save(model, folder / "net.onnx")
    found = compare_dump(reference, folder / "net.onnx", folder / "dump", before=before)
    return found.run, found.exit_code, found.places


def cube(*ops: str, names: Sequence[str] = ()) -> onnx.ModelProto:
    """A chain on 1×6×6×6: channels last look like channels first."""
    dice = np.random.default_rng(0)
    nodes = []
    weights = []
    last = "data"
    for k, op in enumerate(ops):
        reads = [last]
        name = names[k] if names else f"t{k}"
        if op == "Conv":
            weights.append(
                onnx.numpy_helper.from_array(
                    dice.normal(size=(6, 6, 1, 1)).astype(np.float32), f"w{k}"
                )
            )
            reads.append(f"w{k}")
        nodes.append(onnx.helper.make_node(op, reads, [name], f"n{k}"))
        last = name
    ends = [
        onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [1, 6, 6, 6])
        for n in ("data", last)
    ]
    graph = onnx.helper.make_graph(nodes, "cube", ends[:1], ends[1:], weights)
    return onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9
    )


def kept(
    model: onnx.ModelProto, folder: Path, turned: bool = False, flat: bool = False
) -> dict[str, Array]:
    """What a healthy device keeps of a cube, in `folder`/dump; `turned`: its layers with channels
    last."""
    data = np.random.default_rng(1).normal(size=(1, 6, 6, 6)).astype(np.float32)
    names = [n.output[0] for n in model.graph.node]
    values = evaluate(tapped(model, names), {"data": data}, names) | {"data": data}
    (folder / "dump").mkdir()
    for name, value in values.items():
        own = value.transpose(0, 2, 3, 1) if turned and name != "data" else value
        np.save(folder / "dump" / f"{name.replace('/', '_')}.npy", own.reshape(-1) if flat else own)
    return values


@pytest.mark.parametrize(("turned", "flat"), [(True, False), (False, True), (True, True)])
def test_healthy_cube_agrees_in_each_layout(
    turned: bool, flat: bool, tmp_path: Path, reference: Reference
) -> None:
    model = cube("Conv", "Relu", "Conv", "Sigmoid")
    kept(model, tmp_path, turned, flat)
    found, code, places = seen_in(reference, model, tmp_path)
    assert (code, places) == (0, [])
    assert len(found.rows) == 4 and found.inputs["data"].agreeing


def test_names_that_are_written_alike_hold_the_nearest(
    tmp_path: Path, reference: Reference
) -> None:
    """Of `a/b` and `a.b` one was dumped; `c_d` has the very name of a file that `c/d` left."""
    model = cube("Conv", "Sigmoid", "Conv", "Tanh", names=("a/b", "a.b", "c/d", "c_d"))
    values = kept(model, tmp_path)
    for file in ("a.b", "a_b", "c_d"):
        (tmp_path / "dump" / f"{file}.npy").unlink()
    np.save(tmp_path / "dump" / "a_b.npy", values["a.b"])
    np.save(tmp_path / "dump" / "c_d.npy", values["c/d"])
    np.save(tmp_path / "dump" / "c_d~2.npy", values["c_d"])
    found, code, _ = seen_in(reference, model, tmp_path)
    assert code == 0
    assert {n: row.match.entry.name for n, row in found.rows.items()} == {
        "a.b": "a_b",
        "c/d": "c_d",
        "c_d": "c_d~2",
    }


@pytest.mark.parametrize("wrong", range(1, 5))
def test_node_that_was_left_out_does_not_vanish(
    wrong: int, tmp_path: Path, reference: Reference
) -> None:
    """The device hands on what came in: its value is the neighbor's."""
    ops = ["Conv", "Relu", "Conv", "Sigmoid", "Conv"]
    model = cube(*ops)
    broken = cube(*(op if k != wrong else "Identity" for k, op in enumerate(ops)))
    for node in broken.graph.node:
        del node.input[1 if node.op_type == "Identity" else 2 :]
    kept(broken, tmp_path)
    found, code, places = seen_in(reference, model, tmp_path)
    assert code == 1
    assert f"n{wrong}" in places[0]
    for k in range(5):
        (tmp_path / "dump" / f"t{k}.npy").rename(tmp_path / "dump" / f"blob{k}.npy")
    found, code, places = seen_in(reference, model, tmp_path)
    if code == 1:  # the nodes tell what lies behind it
        assert f"n{wrong}" in places[0]
        return
    assert has_line(found.notes, "output", "t4")
    if wrong < 4:
        assert code == 5, "what fits nothing may be wrong"
        assert has_line(found.notes, "neither", "value")


def test_constants_and_random_numbers_are_told_apart(tmp_path: Path, reference: Reference) -> None:
    model = cube("Sigmoid", "Tanh", "Relu")
    random = onnx.helper.make_node("RandomNormalLike", ["t0"], ["drawn"], "drawn")
    add = onnx.helper.make_node("Add", ["t0", "drawn"], ["sum"], "sum")
    constant = onnx.helper.make_node(
        "Constant", [], ["c"], "c", value_floats=[float(k) for k in range(6)]
    )
    more = onnx.helper.make_node("Mul", ["sum", "c"], ["product"], "product")
    model.graph.node[1].input[0] = "product"
    for k, node in enumerate((random, add, constant, more), 1):
        model.graph.node.insert(k, node)
    kept(model, tmp_path)
    found, code, places = seen_in(reference, model, tmp_path)
    assert (code, places) == (5, [])
    assert found.rows["t0"].agreeing
    assert has_line(found.rows["sum"].why, "random")
    assert {left.entry.name for left in found.list_left_out(Reason.NOTHING)} == {"drawn", "c"}
    assert not found.list_left_out(Reason.UNMATCHED) and not found.notes


# ------------------------------------------------------------ what cannot be read


@pytest.mark.slow
@pytest.mark.posix("Windows has no limit on open files")
@pytest.mark.parametrize("command", ["compare", "bisect"])
def test_more_files_than_may_be_open(command: str, tmp_path: Path) -> None:
    """Each is closed after its use, so that the last of them is seen to be wrong."""
    import resource

    model = cube(*["Neg"] * 100)
    kept(model, tmp_path)
    onnx.save(model, tmp_path / "m.onnx")
    np.save(tmp_path / "dump" / "t99.npy", np.load(tmp_path / "dump" / "t99.npy") + 1)
    words = (command, "m.onnx", "--recorded", "dump", "--json")
    done = subcut(
        *words,
        cwd=tmp_path,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)),
    )
    assert done.code == 1, done
    assert [done.document["recordings"][0][key] for key in ("wrong", "compared", "unread")] == [
        1,
        100,
        0,
    ]


@pytest.mark.parametrize("names", ["known", "unknown"])
def test_unreadable_tensor_is_not_right(names: str, tmp_path: Path, reference: Reference) -> None:
    model = cube("Sigmoid", "Tanh", "Neg")
    kept(model, tmp_path)
    lost = tmp_path / "dump" / ("t1.npy" if names == "known" else "blob.npy")
    (tmp_path / "dump" / "t1.npy").rename(lost)
    found, code, _ = seen_in(reference, model, tmp_path, before=lost.unlink)
    assert (code, len(found.list_left_out(Reason.UNREADABLE)), len(found.failing)) == (5, 1, 0)
    (note,) = found.notes
    assert re.match(r"1 of 4 .*(t1|blob).npy: ", note)


# ------------------------------------------------------------ at length


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", device.KINDS[:1], ids=lambda kind: kind.name)
def test_fault_in_each_third_layer(
    kind: device.Kind, made: onnx.ModelProto, reference: Reference
) -> None:
    layers = range(0, device.LAYERS, 3)
    results = [tried(reference, made, kind, layer, 0) for layer in layers]
    assert [right for right, _ in results] == [True] * len(layers)


def test_recording_of_constants_alone_tells_nothing(tmp_path: Path) -> None:
    text = "g (float[1,64] x) => (float[1,64] y) { [a] a = Sub(x, nine) [b] y = Relu(a) }"
    (tmp_path / "m.onnx").write_bytes(
        text_models.model(text, nine=np.array([9], np.float32)).SerializeToString()
    )
    np.save(
        tmp_path / "x.npy", np.random.default_rng(0).standard_normal((1, 64)).astype(np.float32)
    )
    (tmp_path / "dump").mkdir()
    np.save(tmp_path / "dump/y.npy", np.zeros((1, 64), np.float32))
    for command in ("bisect", "compare"):
        done = subcut(
            command, "m.onnx", "--recorded", "dump", "-i", "x.npy", "--json", cwd=tmp_path
        )
        assert (done.code, done.document["recordings"][0]["status"]) == (5, "unresolved")
