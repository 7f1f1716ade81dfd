"""`subcut manual` with a scripted board: the result of the automatic bisection, in few rounds, and
nothing gets lost.

Covers `questions.bisection.manual.advance`, `questions.bisection.manual.manual_search`,
`questions.bisection.manual.outputs`, `questions.bisection.manual.manual_session`,
`questions.bisection.manual.tasks`, `commands.manual` and
`commands.recorded`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from subgraph.cases.layout import FROM_DEVICE
from subgraph.commands import Result
from subgraph.errors import InputError, ResultExists, SubcutError, UnknownName, UsageError
from subgraph.questions.bisection.manual.outputs import ExpectedFile
from subgraph.questions.bisection.manual.tasks import TaskFormat
from subgraph.runtime.reference import Reference
from subgraph.storage.convert import StoredFile
from tests.helpers import fake_candidate, text_models
from tests.helpers.chain_models import NAMES, line
from tests.helpers.documents import problem
from tests.helpers.facts import has_line
from tests.helpers.killed_command import kill_before_rename
from tests.helpers.refusals import raises
from tests.helpers.run_command import Done, in_process, subcut, tree

QUICK = ("--rtol", "1e-3")
HOME = Path("subcut_out", "manual-device")
TODO = HOME / "todo"
MAX = 60  # rounds of one session

Manual = Callable[..., Result]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a chain of 24 nodes, in which the test stands."""
    line(tmp_path / "m.onnx", NAMES)
    np.save(tmp_path / "x.npy", np.array([[1.5, 0.25, 3.0]], np.float32))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def manual(monkeypatch: pytest.MonkeyPatch, reference: Reference) -> Iterator[Manual]:
    """The command line in this process, with the shared reference."""
    monkeypatch.setattr(
        "subgraph.commands.resolve.ResolvedOptions.start_reference",
        lambda *_, **__: contextlib.nullcontext(reference),
    )

    def call(*words: str | Path) -> Result:
        out = ["-o", str(Path("subcut_out").resolve())]
        result = in_process("-q", "--no-progress", "manual", *map(whole, words), *out)
        assert result.document["schema"] == "subcut.manual/1"
        json.dumps(result.document, allow_nan=False)
        return result

    yield call


def whole(word: str | Path) -> str:
    """The shared reference has another working directory: paths become absolute."""
    name, sep, file = str(word).rpartition("=")
    return (
        f"{name}{sep}{Path(file).resolve()}"
        if file in ("x.npy", "ids.npy", "samples")
        else str(word)
    )


# ------------------------------------------------------------ the board


def files(tensor: dict[str, Any], k: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """A sample's tensor in the manifest: the file for the board, the .bin if there is one, and the
    .npy."""
    stored = tensor["samples"][k]["files"]
    own = next(f for f in stored if f["format"] == "npy")
    return next((f for f in stored if f["format"] == "bin"), own), own


def fed(place: Path, tensor: dict[str, Any], k: int) -> Any:
    """An input as the board reads it."""
    handed, own = files(tensor, k)
    path = place / handed["file"]
    if path.suffix == ".npy":
        return np.load(path)
    value = np.fromfile(path, handed["dtype"]).reshape(handed["shape"])
    turned = (
        value.transpose(0, 3, 1, 2) if handed["layout"] == "NHWC" and value.ndim == 4 else value
    )
    return np.ascontiguousarray(turned.astype(own["dtype"]))


def give(place: Path, tensor: dict[str, Any], k: int, value: Any) -> None:
    """An output as the board writes it."""
    handed, _ = files(tensor, k)
    target = place / FROM_DEVICE / Path(*Path(handed["file"]).parts[1:])
    target.parent.mkdir(parents=True, exist_ok=True)
    turned = (
        value.transpose(0, 2, 3, 1) if handed["layout"] == "NHWC" and value.ndim == 4 else value
    )
    value = np.ascontiguousarray(turned.astype(handed["dtype"]))
    if target.suffix == ".npy":
        np.save(target, value)
    else:
        value.tofile(target)


def board(place: Path, **faults: str) -> None:
    """Run one task on onnxruntime with these faults, and leave the outputs in `from_device`."""
    manifest = json.loads((place / "manifest.json").read_text())
    run = fake_candidate.load(place / "model.onnx", faults)
    for k in range(len(manifest["samples"])):
        given = run({t["name"]: fed(place, t, k) for t in manifest["inputs"]})
        for tensor in manifest["outputs"]:
            give(place, tensor, k, given[tensor["name"]])


def trip(**faults: str) -> list[str]:
    """Run all open tasks."""
    places = sorted(TODO.glob("[0-9]*"), key=lambda p: p.name)
    for place in places:
        board(place, **faults)
    return [p.name for p in places]


def to_the_end(manual: Manual, result: Result, **faults: str) -> dict[str, Any]:
    """Go to the board until the search has ended; the last command's document."""
    for _ in range(MAX):
        if result.document["ended"]:
            assert not problem(result.document["result"])
            assert result.exit_code == result.document["result"]["exit_code"]
            return result.document
        assert trip(**faults)
        result = manual("take")
    raise AssertionError("it does not end")


def named(document: dict[str, Any]) -> list[list[str]]:
    """The nodes of each region that findings stand for."""
    regions = chain.from_iterable((f, *f.get("repeats", ())) for f in document["findings"])
    return [region["nodes"] for region in regions]


START = ("start", "m.onnx", "-i", "x.npy", *QUICK)


# ------------------------------------------------------------ the same search


@pytest.mark.slow
def test_the_answer_of_the_automatic_search_in_fewer_trips(here: Path, manual: Manual) -> None:
    spec = f"{fake_candidate.HERE}:nodes=n7"
    auto = subcut(
        "bisect", "m.onnx", "-i", "x.npy", "-c", spec, *QUICK, "--json", cwd=here
    ).document
    done = to_the_end(manual, manual(*START), nodes="n7")
    result = done["result"]
    assert named(result) == named(auto) == [["n7"]]
    assert done["trips"] == done["answers"] == result["trials"] == 4 < auto["trials"]
    keys = ("certified", "explains", "signature", "worst", "off", "edge")
    assert {k: result["findings"][0][k] for k in keys} == {k: auto["findings"][0][k] for k in keys}
    case = Path(result["findings"][0]["case"])
    assert {p.name for p in case.iterdir()} >= {
        *"model.onnx inputs outputs candidate repro.py".split()
    }
    assert (case.parent / "report.html").is_file() and case.parent.name == "bisect-device"
    assert has_line(result["notes"], "repeated")
    assert not list(TODO.iterdir()), "what is answered is cleared away"
    # it can be seen again
    assert manual("next").document["result"]["findings"] == result["findings"]
    replayed = subcut("replay", case.parent, *QUICK, cwd=here)
    assert replayed.code == 2 and has_line(replayed.err, "device", "by hand")
    assert "--recorded DIR" in replayed.err and "-c SPEC" in replayed.err


def test_nobody_is_to_blame(here: Path, manual: Manual) -> None:
    done = to_the_end(manual, manual(*START), add="n7:0")
    assert done["result"]["agree"] and done["trips"] == 1
    assert not (here / "subcut_out" / "bisect-device").exists()


@pytest.mark.slow
def test_culprits_whose_shares_have_to_be_asked_for(here: Path, manual: Manual) -> None:
    """If a share is unclear, everything but that piece runs on the device, in turns with the
    reference: more trips."""
    faults = {"add": "n3:0.5+n9:0.5+n14:0.5+n21:0.5"}
    spec = f"{fake_candidate.HERE}:add={faults['add']}"
    auto = subcut(
        "bisect", "m.onnx", "-i", "x.npy", "-c", spec, *QUICK, "--json", cwd=here
    ).document
    for batch, most in (("1", auto["trials"]), ("4", auto["trials"] // 2 + 1)):
        done = to_the_end(manual, manual(*START, "--batch", batch, "--force"), **faults)
        assert named(done["result"]) == named(auto)
        shares = [[f["explains"] for f in d["findings"]] for d in (done["result"], auto)]
        assert shares[0] == pytest.approx(shares[1])
        assert done["trips"] <= most


# Its shapes are computed by nodes that are constants in a frozen cut.
COMPUTED_SHAPE = """g (float[N,4] x) => (float[N,2,2] y) {
    [s] s = Shape(x) [z] z = Constant<value=int64[1] {0}>() [n] n = Gather(s, z)
    [t] t = Constant<value=int64[2] {2,2}>()
    [u] u = Concat<axis=0>(n, t) [y] y = Reshape(x, u)
}"""


def test_fault_of_a_computed_shape_is_found(here: Path, manual: Manual) -> None:
    """No cut with frozen shapes fails, so the person is given cuts whose shapes are inputs."""
    text_models.save(here / "m.onnx", COMPUTED_SHAPE)
    np.save(here / "x.npy", np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4))
    result = manual(*START)
    while not result.document["ended"]:
        for place in TODO.glob("[0-9]*"):
            graph = onnx.load(place / "model.onnx").graph
            frozen = {tensor.name for tensor in graph.initializer}
            reshapes = [node for node in graph.node if node.op_type == "Reshape"]
            is_computed = any(node.input[1] not in frozen for node in reshapes)
            board(place, **({"nodes": "y"} if is_computed else {}))
        result = manual("take")
    assert named(result.document["result"]) == [["y"]]


# ------------------------------------------------------------ words alone


def truth(place: Path, *guilty: str) -> str:
    """The answer of a person who only sees whether the outputs are wrong."""
    held = {n.name for n in onnx.load(place / "model.onnx").graph.node}
    return "bad" if held.issuperset(guilty) else "good"


@pytest.mark.parametrize(
    "guilty",
    [
        ("n7",),
        pytest.param(("n0",), marks=pytest.mark.slow),
        pytest.param(("n22", "n23"), marks=pytest.mark.slow),
    ],
)
def test_good_and_bad_alone_are_enough(guilty: tuple[str, ...], here: Path, manual: Manual) -> None:
    """No intermediate tensors are brought, so the search halves."""
    result = manual(*START)
    said = 0
    while not result.document["ended"]:
        (one,) = result.document["open"]
        word = (
            "skip"
            if "intermediate tensor" in one["what"]
            else truth(Path(one["folders"][0]), *guilty)
        )
        result, said = manual(word, *([one["number"]] if said % 2 else [])), said + 1
        assert said < MAX
    document = result.document["result"]
    assert not problem(document)
    (one,) = document["findings"]
    assert (one["nodes"], one["certified"], one["signature"], one["explains"]) == (
        [*guilty],
        True,
        "mismatch",
        None,
    )
    assert said <= 14
    assert has_line(document["notes"], "outputs", "bad")
    assert "n22" not in guilty or one["nearest"]["nodes"]


@pytest.mark.slow
def test_crash_is_searched_for(here: Path, manual: Manual) -> None:
    """The whole is skipped, so the search looks for the node that the device cannot run."""
    result = manual(*START, "--batch", "3")
    for _ in range(MAX):
        if result.document["ended"]:
            break
        rows = result.document["open"]
        held = [row["number"] for row in rows if truth(Path(row["folders"][0]), "n13") == "bad"]
        fine = [row["number"] for row in rows if row["number"] not in held]
        if held:
            result = manual("skip", *held)
        if fine and not result.document["ended"]:
            result = manual("good", *fine)
    (one,) = result.document["result"]["findings"]
    assert (one["nodes"], one["signature"]) == (["n13"], "refused")


# ------------------------------------------------------------ rewritings of the full model

# Its board loses a Relu that reads a Sin, in graphs of six nodes or more with one output.
MERGED = """g (float[2,3] x) => (float[2,3] y) {
    [a] a = Tanh(x) [b] b = Sin(a) [c] c = Relu(b) [d] d = Cos(c) [e] e = Add(d, a)
    [f] y = Sigmoid(e)
}"""


def merging_board(place: Path) -> None:
    """Run one task on a board that merges two nodes of the full model."""
    manifest = json.loads((place / "manifest.json").read_text())
    model = onnx.load(place / "model.onnx")
    ops = {name: node.op_type for node in model.graph.node for name in node.output}
    if len(model.graph.node) >= 6 and len(model.graph.output) == 1:
        for node in model.graph.node:
            if node.op_type == "Relu" and ops.get(node.input[0]) == "Sin":
                node.op_type = "Identity"
    session = onnxruntime.InferenceSession(model.SerializeToString())
    given = session.run(None, {t["name"]: fed(place, t, 0) for t in manifest["inputs"]})
    for tensor, value in zip(manifest["outputs"], given, strict=True):
        give(place, tensor, 0, value)


def search_on_merging_board(
    manual: Manual, *words: str, says: Callable[[Path, int], list[str]] | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Search to the end; return the result and the tasks in words."""
    result = manual(*START, *words)
    tasks = list[str]()
    for _ in range(MAX):
        if result.document["ended"]:
            return result.document["result"], tasks
        (task,) = result.document["open"]
        tasks.append(task["what"])
        place = Path(task["folders"][0])
        merging_board(place)
        result = manual(*(says(place, task["number"]) if says else ["take"]))
    raise AssertionError("it does not end")


@pytest.mark.parametrize("words", [pytest.param((), marks=pytest.mark.slow), ("--by", "rewriting")])
def test_fault_that_no_cut_shows_is_found_by_rewriting(
    here: Path, manual: Manual, words: tuple[str, ...]
) -> None:
    text_models.save(here / "m.onnx", MERGED)
    np.save(here / "x.npy", np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3))
    result, tasks = search_on_merging_board(manual, *words)
    (finding,) = result["findings"]
    assert (finding["nodes"], finding["certified"]) == (["b", "c"], True)
    assert result["healing"]["changes"] == ["a barrier on b before c"]
    assert Path(result["healing"]["model"]).is_file()
    rewritten = ["rewritten" in task for task in tasks]
    assert sum(rewritten) > 3 and (not words or all(rewritten[1:]))


@pytest.mark.slow
def test_good_and_bad_are_enough_for_rewriting(here: Path, manual: Manual) -> None:
    text_models.save(here / "m.onnx", MERGED)
    np.save(here / "x.npy", np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3))

    def say(place: Path, number: int) -> list[str]:
        (output,) = (place / FROM_DEVICE).glob("*.npy")
        (expected,) = (place / "outputs").glob("*.npy")
        is_right = np.allclose(np.load(output), np.load(expected), atol=1e-5)
        return ["good" if is_right else "bad", str(number)]

    result, _ = search_on_merging_board(manual, "--by", "rewriting", "--export", "npy", says=say)
    assert [finding["nodes"] for finding in result["findings"]] == [["b", "c"]]


@pytest.mark.slow
def test_board_that_refuses_a_barrier_gets_another_one(here: Path, manual: Manual) -> None:
    text_models.save(here / "m.onnx", MERGED)
    np.save(here / "x.npy", np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3))

    def say(place: Path, number: int) -> list[str]:
        ops = {node.op_type for node in onnx.load(place / "model.onnx").graph.node}
        return ["skip", str(number)] if ops & {"Where", "Less", "If"} else ["take"]

    result, _ = search_on_merging_board(manual, "--by", "rewriting", says=say)
    assert [finding["nodes"] for finding in result["findings"]] == [["b", "c"]]


# ------------------------------------------------------------ there and back


def picture(path: Path) -> None:
    """Conv and Relu on 1×3×4×6, then a Gather with ids as input: a layout to convert, integers to
    keep."""
    text = """g (float[1,3,4,6] x, int64[2] ids) => (float[1,2,4,6] y, int64[2] next) {
        [conv] c = Conv<pads = [1, 1, 1, 1]>(x, w) [relu] r = Relu(c)
        [pick] y = Gather<axis = 1>(r, ids) [count] next = Add(ids, one)
    }"""
    kernel = np.random.default_rng(0).normal(size=(5, 3, 3, 3)).astype(np.float32)
    text_models.save(path, text, w=kernel, one=np.array(1, np.int64))


def test_float16_nhwc_there_and_back(here: Path, manual: Manual) -> None:
    picture(here / "p.onnx")
    np.save(here / "ids.npy", np.array([4, 3], np.int64))
    result = manual(
        "start", "p.onnx", "-i", "ids=ids.npy", "--export", "bin:float16:NHWC", "--batch", "2"
    )
    first, _ = result.document["open"]
    output, state = first["outputs"]
    assert has_line(output, "y.bin", "float16 1×4×6×2 NHWC", "96 bytes")
    assert has_line(state, "next.bin", "int64 2", "16 bytes")
    todo = (Path(first["folders"][0]) / "TODO.txt").read_text()
    assert has_line(todo, "inputs/x.bin", "float16", "1×4×6×3 NHWC") and "from_device/y.bin" in todo
    manifest = json.loads((Path(first["folders"][0]) / "manifest.json").read_text())
    assert manifest["by_hand"]["number"] == 1 and not any(
        "ids" in loss for loss in manifest["losses"]
    )
    trip(nodes="relu")
    done = to_the_end(manual, manual("take"), nodes="relu")
    assert named(done["result"]) == [["relu"]]
    given = np.load(Path(done["result"]["findings"][0]["case"]) / "candidate" / "r.npy")
    right = np.load(Path(done["result"]["findings"][0]["case"]) / "outputs" / "r.npy")
    assert given.shape == right.shape == (1, 5, 4, 6) and np.allclose(given - right, 0.5, atol=1e-2)


def test_outputs_from_another_folder(here: Path, manual: Manual) -> None:
    manual(*START, "--batch", "2")
    for number in ("1", "2"):
        board(TODO / number, nodes="n7")
    shutil.copytree(TODO / "1" / FROM_DEVICE, "card/1")
    shutil.move(TODO / "2" / FROM_DEVICE, "plain")
    shutil.rmtree(TODO / "1" / FROM_DEVICE)
    assert manual("take", "card").document["answers"] == 1
    assert manual("take", "plain", "-k", "2").document["answers"] == 2


def test_samples_that_need_cuts_of_their_own(here: Path, manual: Manual) -> None:
    text = "g (float[n,3] x) => (float[n,3] y) { [Abs] a = Abs(x) [Neg] y = Neg(a) }"
    text_models.save("s.onnx", text)
    Path("samples").mkdir()
    for k, rows in enumerate((2, 3, 2)):
        np.save(f"samples/{k}.npy", np.full((rows, 3), k + 1, np.float32))
    result = manual("start", "s.onnx", "-i", "samples")
    assert sorted(p.name for p in TODO.iterdir()) == ["1", "1-2"]
    board(TODO / "1", op="Neg")
    with raises(InputError, "manual.missing-outputs", "1 of 3", "1-2"):
        manual("take")
    done = to_the_end(manual, result, op="Neg")
    assert named(done["result"]) == [["Neg"]] and done["result"]["samples"] == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("name", "content", "code", "about"),
    [
        ("prob.bin", b"1234", "manual.no-outputs", ("from_device",)),
        ("out.bin", b"1234", "tensor.wrong-size", ("out.bin", "4 bytes", "12", "float32 1×3")),
        ("out.npy", np.zeros((3, 1), np.float32), "manual.wrong-shape", ("3×1", "1×3")),
        ("out.npy", np.zeros((1, 3), np.int8), "manual.wrong-type", ("int8", "float32")),
        ("out.npy", b"nonsense", "tensor.unreadable", ("out.npy",)),
    ],
)
def test_answers_that_do_not_fit_are_refused_and_nothing_is_taken(
    name: str, content: Any, code: str, about: tuple[str, ...], here: Path, manual: Manual
) -> None:
    result = manual(*START)
    path = TODO / "1" / FROM_DEVICE / name
    path.write_bytes(content) if isinstance(content, bytes) else np.save(path, content)
    before = tree(HOME)
    words = ("take",)
    if name == "prob.bin":
        with raises(InputError, code, *about) as told:
            manual(*words)
        assert has_line(told.value.hint, "out.bin", "float32 1×3", "12 bytes", ".npy")
        return
    with raises(InputError, code, *about):
        manual(*words)
    assert tree(HOME) == before
    path.unlink()
    np.save(
        TODO / "1" / FROM_DEVICE / "out.npy",
        np.load(TODO / "1" / "outputs" / "out.npy").astype(np.float64),
    )
    assert manual("take").document["result"]["agree"] and not result.document["ended"]


def test_partial_sets_are_refused(here: Path, manual: Manual) -> None:
    manual(*START)
    trip(nodes="n7")
    manual("take")
    trip(nodes="n7")
    (TODO / "2" / FROM_DEVICE / "t5.bin").unlink()
    with raises(InputError, "manual.missing-outputs", "1 of 24") as told:
        manual("take")
    assert has_line(told.value.hint, "t5.bin", "float32 1×3", "12 bytes")
    np.zeros((1, 3), np.float32).tofile(TODO / "2" / FROM_DEVICE / "t5.bin")
    np.save(TODO / "2" / FROM_DEVICE / "t4.npy", np.zeros((1, 3), np.float32))
    with raises(InputError, "manual.ambiguous-output", "t4"):
        manual("take")
    assert manual("log").document["log"][0]["said"] == "taken"


def test_complete_answers_are_taken_and_the_others_stay_open(here: Path, manual: Manual) -> None:
    manual(*START, "--batch", "3")
    trip(nodes="n7")
    missing = TODO / "2" / FROM_DEVICE / "t5.bin"
    odd = next((TODO / "3" / FROM_DEVICE).glob("*.bin"))
    kept = missing.read_bytes()
    whole_file = odd.read_bytes()
    missing.unlink()
    odd.write_bytes(whole_file[:-1])
    document = manual("take").document
    assert [row["said"] for row in manual("log").document["log"]] == ["taken"]
    assert [left["number"] for left in document["stay_open"]] == [2, 3]
    assert has_line(document["stay_open"][0]["why"], "1 of 24", "missing")
    assert "t5.bin" in document["stay_open"][0]["hint"]
    assert has_line(document["stay_open"][1]["why"], "11 bytes", "12")
    missing.write_bytes(kept)
    document = manual("take").document
    assert {row["number"] for row in manual("log").document["log"]} >= {1, 2}
    trip(nodes="n7")
    assert named(to_the_end(manual, manual("next"), nodes="n7")["result"]) == [["n7"]]


def test_file_of_less_than_a_byte_per_value() -> None:
    file = StoredFile("outputs/w.npy", "npy", "int4", (5,))
    assert ExpectedFile(file, file).size == 3


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("png", UnknownName),
        ("bin:float17", UnknownName),
        ("npy:float16", UsageError),
        ("bin:NHWC:NCHW", UsageError),
    ],
)
def test_forms_that_mean_nothing(words: str, error: type[SubcutError]) -> None:
    with pytest.raises(error):
        TaskFormat.parse(words)
    assert TaskFormat.parse("bin:NHWC:float16").words == "bin:float16:NHWC"


# ------------------------------------------------------------ back and forth


@pytest.mark.slow
def test_undo_takes_back_what_one_command_said(here: Path, manual: Manual) -> None:
    manual(*START, "--batch", "3")
    manual("good", "2")
    result = manual("bad", "1")
    asked = [row["number"] for row in result.document["open"]]
    manual("bad", str(asked[0]))
    back = manual("undo")
    # the same questions, with the same numbers
    assert [row["number"] for row in back.document["open"]] == asked
    assert len(manual("log").document["log"]) == 2
    manual("undo")
    assert manual("undo").document["open"][0]["number"] == 1
    with raises(UsageError, "manual.nothing-to-undo"):
        manual("undo")
    done = to_the_end(manual, manual("next"), nodes="n7")
    assert named(done["result"]) == [["n7"]]
    reopened = manual("undo").document
    assert reopened["open"] and reopened["answers"] < done["answers"]
    assert named(to_the_end(manual, manual("next"), nodes="n7")["result"]) == [["n7"]]


def test_the_wrong_order(here: Path, manual: Manual) -> None:
    for words in (("next",), ("good",), ("take",), ("undo",), ("reset", "--yes"), ("log",)):
        with raises(UsageError, "manual.no-session") as told:
            manual(*words)
        assert has_line(told.value.hint, "manual start")
    manual(*START, "--batch", "2")
    with raises(UsageError, "manual.ambiguous-task", "1, 2"):
        manual("good")
    with raises(UsageError, "manual.unknown-task", "task 7") as told:
        manual("good", "7")
    assert "open: 1, 2" in told.value.hint
    with raises(UsageError, "manual.unknown-task", "one"):
        manual("good", "one")
    with raises(ResultExists, "manual.session-exists", "2 tasks"):
        manual(*START)
    assert manual("good", "1").document["ended"]
    with raises(UsageError, "manual.already-answered", "task 1", "good"):
        manual("bad", "1")
    for words in (("good",), ("take",)):
        with raises(UsageError, "manual.no-open-task"):
            manual(*words)
    slips: list[tuple[tuple[str, str], str, str]] = [
        (("--batch", "0"), "option.out-of-range", "--batch 0"),
        (("--within", "a..b"), "node.unknown", "'a'"),
        (("--precision", "fp61"), "candidate.unknown-precision", "fp61"),
    ]
    for more, code, about in slips:
        with raises(UsageError, code, about):
            manual(*START, "--force", *more)
    assert manual("next").document["ended"], "a slip cost nothing"


def test_the_end_of_a_session(here: Path, manual: Manual) -> None:
    manual(*START, "--batch", "2")
    manual("good", "2")
    with raises(UsageError, "manual.not-confirmed", "manual-device", "1 answer"):
        manual("reset")
    assert HOME.exists(), "without a terminal there is nobody to ask"
    assert subcut("manual", "log", "--json", cwd=here).document["next"] == []
    notes = TODO / "1" / "notes.txt"
    notes.write_text("mine")
    left = manual("reset", "--yes").document["left"]
    assert left == [str((TODO / "1").resolve())] and notes.read_text() == "mine"
    assert [p.name for p in HOME.iterdir()] == ["todo"]
    assert manual(*START).document["open"], "it can begin again where something was left"
    assert notes.exists()


# ------------------------------------------------------------ a recording


def recording(every: int, **faults: str) -> None:
    """What the board left of one run in `dump`: every so many tensors, and the output."""
    model = onnx.load("m.onnx")
    names = [name for node in model.graph.node for name in node.output]
    kept = [n for k, n in enumerate(names) if k % every == every - 1 or n == "out"]
    model.graph.output.extend(
        helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 3]) for n in kept if n != "out"
    )
    Path("dump").mkdir()
    onnx.save(model, "probed.onnx")
    given = fake_candidate.load(Path("probed.onnx"), faults)({"in": np.load("x.npy")})
    for name in kept:
        np.save(Path("dump", f"{name}.npy"), given[name])
    np.save(Path("dump", "in.npy"), np.load("x.npy"))


@pytest.mark.slow
def test_next_command_is_for_this_device(here: Path, manual: Manual) -> None:
    recording(1, nodes="n7")
    for file in Path("dump").glob("*.npy"):
        np.save(file, np.load(file).astype(np.float16))
    done = subcut("bisect", "m.onnx", "--recorded", "dump", "-i", "x.npy", "--json", cwd=here)
    export, start = [one["argv"] for one in done.document["next"]]
    assert export[:2] == ["subcut", "export"]
    assert export[-4:] == ["-o", "to_device", "--dtype", "float16"]
    assert start[start.index("--within") + 1] == "n7..n7"
    assert {"x.npy", "bin:float16", "fp16"} <= set(start)
    begun = manual(*start[2:])
    assert begun.document["open"][0]["what"] == "the whole model"
    (handed,) = (TODO / "1" / "inputs").glob("*.bin")
    assert handed.stat().st_size == 3 * 2, "float16"


# ------------------------------------------------------------ mishaps


def test_model_that_has_changed(here: Path, manual: Manual) -> None:
    manual(*START)
    before = tree(HOME)
    line(here / "m.onnx", NAMES[:20])
    with raises(UsageError, "model.changed"):
        manual("next")
    (here / "m.onnx").unlink()
    with raises(UsageError, "manual.model-gone"):
        manual("next")
    assert tree(HOME) == before
    line(here / "m.onnx", NAMES)
    assert manual("next").document["open"]


def test_inputs_that_have_changed(here: Path, manual: Manual) -> None:
    manual(*START)
    before = tree(HOME)
    np.save(here / "x.npy", np.ones((1, 3), np.float32))
    with raises(UsageError, "manual.inputs-changed"):
        manual("next")
    assert tree(HOME) == before


def test_random_nodes_are_refused(here: Path, manual: Manual) -> None:
    text_models.save("d.onnx", text_models.RANDOM)
    with raises(UsageError, "manual.random", "random"):
        manual("start", "d.onnx", *QUICK)
    assert not HOME.exists()


def test_another_folder_of_results(here: Path, manual: Manual) -> None:
    manual(*START)
    Path("subcut_out").rename("moved")
    shown = in_process("-q", "manual", "next", "-o", "moved")
    assert has_line(shown.text, "manual take", "-o moved")


def test_damaged_state(here: Path, manual: Manual) -> None:
    manual(*START)
    trip(nodes="n7")
    manual("take")
    trip(nodes="n7")
    manual("take")
    state = HOME / "state.json"
    written = json.loads(state.read_text())
    state.write_text(state.read_text()[:100])
    with raises(UsageError, "document.damaged", "state.json"):
        manual("next")
    written["request"]["batch"] = -4
    state.write_text(json.dumps(written))
    with raises(UsageError, "manual.damaged", "state.json", "bounds"):
        manual("next")
    state.write_text("{}")
    (HOME / "state-before.json").write_text("{}")  # of an older version
    with raises(UsageError, "document.damaged", "state.json", "schema") as told:
        manual("next")
    assert "reset" in told.value.hint
    with raises(ResultExists, "manual.session-exists", "damaged"):
        manual(*START)
    manual("reset", "--yes")
    assert not HOME.exists()


def test_state_of_an_older_version_goes_on(here: Path, manual: Manual) -> None:
    """It lacks what was added since, and has the copy of the state that is not written any more."""
    result = manual(*START)
    state = HOME / "state.json"
    written = json.loads(state.read_text())
    del written["fed"]
    for part in written["asked"]:
        del part["needed"]
    state.write_text(json.dumps(written))
    shutil.copy(state, HOME / "state-before.json")
    assert named(to_the_end(manual, result, nodes="n7")["result"]) == [["n7"]]
    manual("reset", "--yes")
    assert not HOME.exists()


@pytest.mark.slow
def test_damaged_outputs_are_asked_for_again(here: Path, manual: Manual) -> None:
    manual(*START)
    trip(nodes="n7")
    manual("take")
    (path,) = (HOME / "answers" / "1").glob("*.npy")
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    again = manual("next").document
    assert (again["open"][0]["number"], again["answers"]) == (1, 0)
    assert named(to_the_end(manual, manual("next"), nodes="n7")["result"]) == [["n7"]]


def test_hand_out_that_was_spoilt_is_written_anew_with_what_came_back(
    here: Path, manual: Manual
) -> None:
    manual(*START)
    trip(nodes="n7")
    (TODO / "1" / "model.onnx").unlink()
    (TODO / "1" / "manifest.json").write_text("{")
    with raises(InputError, "manual.damaged", "manifest.json"):
        manual("take")
    manual("next")
    assert manual("take").document["answers"] == 1


def cli_manual(cwd: Path, *words: str) -> Done:
    """A process of its own."""
    return subcut("manual", *words, cwd=cwd)


def test_printed_answer_has_the_facts(here: Path) -> None:
    done = cli_manual(here, *START, "--json")
    assert done.code == 0 and has_line(done.document["open"][0]["what"], "whole")
    shown = cli_manual(here, "next").out
    assert has_line(shown, "device") and has_line(shown, "subcut manual")
    failed = cli_manual(here, "take", "--json")
    assert failed.code == 2 and has_line(failed.document["error"]["what"], "no outputs")
    trip(nodes="n7")
    taken = cli_manual(here, "take")
    assert "  1  whole model " in taken.err and "FAIL" in taken.err and taken.code == 0
    lock = os.open(HOME, os.O_RDONLY)
    import fcntl

    fcntl.flock(lock, fcntl.LOCK_EX)
    busy = cli_manual(here, "next")
    os.close(lock)
    assert busy.code == 2 and has_line(busy.err, "works on")


@pytest.mark.slow
def test_killed_before_each_rename_the_same_command_goes_on(here: Path, manual: Manual) -> None:
    """Each `take` is killed before its first rename, then before its second one, until it ends."""
    manual(*START)
    killed_before = []
    number = 1
    while not (here / "subcut_out" / "bisect-device").exists():
        for place in TODO.glob("[0-9]*"):
            if not any((place / FROM_DEVICE).iterdir()):
                board(place, nodes="n7")
        target = kill_before_rename(number, "manual", "take", cwd=here)
        number = number + 1 if target else 1
        killed_before += (
            [target.relative_to(here / HOME)] if target and here / HOME in target.parents else []
        )
    moments = {path.parts[0] for path in killed_before}
    assert {"answers", "state.json", "todo"} <= moments, killed_before
    final = manual("next").document
    assert final["ended"] and named(final["result"]) == [["n7"]]
    assert final["answers"] == final["trips"] == 4
    left = [p for p in HOME.rglob(".*") if p.is_dir()]
    assert not left, "what was left aside is swept"
