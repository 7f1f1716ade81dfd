"""What the page is told of a model, and files that are dropped onto it."""

from __future__ import annotations

import io
import json
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest

from subgraph.errors import InputError, UnknownName, UsageError
from subgraph.graph.graph import load
from subgraph.storage.value_pairs import ValuePair, save_values
from subgraph.types import Array
from subgraph.view.session import DROPPED, ViewOptions, ViewSession
from tests.helpers.run_command import chain

NAMES = [f"stage{i // 6}/block{i // 2}/n{i}" for i in range(12)]


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ViewSession:
    monkeypatch.chdir(tmp_path)
    options = ViewOptions({"ort": []}, ("typed.npy",), ("--trust",), ("--criterion=noise",), (), Path("out"))
    return ViewSession(load(chain(Path("m.onnx"), NAMES)), "m.onnx", options)


def test_about_leads_from_a_node_to_the_groups_around_it(session: ViewSession) -> None:
    about = session.about()
    group = about["holders"][7]
    around = []
    while group:
        around.append(about["groups"][group])
        group = about["parents"][group]
    assert around == ["stage1/block3", "stage1"]
    assert about["labels"] == NAMES and about["makes"][0] == ["t0"] and about["candidates"] == ["ort"]


def test_groups_open(session: ViewSession) -> None:
    boxes = session.layout([], 800)["boxes"]
    assert isinstance(boxes, list)
    assert [b["key"] for b in boxes if b["kind"] == "group"] == ["stage0", "stage1"]
    opened = session.layout(["stage1"], 800)
    assert opened["open"] == ["stage1"] and "stage1/block3" in str(opened["boxes"])
    with pytest.raises(UsageError, match="no group 'x'"):
        session.layout(["x"], 800)


def test_a_node_tells_all_that_the_file_says(session: ViewSession) -> None:
    node = session.node(2)
    assert node["label"] == NAMES[2] and node["inputs"][0]["name"] == "t1" and node["doc"] == ""
    with pytest.raises(UnknownName):
        session.node(-1)


def test_an_open_end_stands_for_the_model(session: ViewSession) -> None:
    region = session.region("", NAMES[1])
    assert (region["nodes"], region["start"], region["inputs"]) == ([0, 1], "", ["in"])
    assert region["command"] == f"subcut cut m.onnx --end={NAMES[1]}"


def test_a_dropped_file_is_stored_under_a_safe_name_and_fed(session: ViewSession) -> None:
    data = io.BytesIO()
    np.save(data, np.zeros((1, 3), np.float32))
    raw = data.getvalue()
    stored = session.drop("../../my input.npy", io.BytesIO(raw), len(raw))["file"]
    assert (Path("out") / DROPPED / stored).read_bytes() == raw and "/" not in stored
    session.runs.start = lambda kind, words: words  # type: ignore[assignment,method-assign,return-value]
    words = session.run({"kind": "bisect", "candidate": "ort", "inputs": [{"file": stored, "input": "in"}]})["run"]
    assert words[:3] == ["bisect", "m.onnx", "--criterion=noise"]
    assert words[3:5] == ["--trust", f"--input=in={Path('out').resolve() / DROPPED / stored}"]
    assert "--input=typed.npy" in session.run({"kind": "compare", "candidate": "ort"})["run"]


def test_a_file_of_another_kind_or_cut_short_is_refused(session: ViewSession) -> None:
    with pytest.raises(InputError, match=r"takes \.npy"):
        session.drop("x.pkl", io.BytesIO(b"12"), 2)
    with pytest.raises(InputError, match="1 bytes too soon"):
        session.drop("x.npy", io.BytesIO(b"12"), 3)
    assert not list((Path("out") / DROPPED).iterdir())


def test_links_lead_only_to_results_in_the_output_folder(session: ViewSession) -> None:
    Path("out/case").mkdir(parents=True)
    document = {"results": [{"path": "out/case"}, {"path": "/etc"}], "report": "../report.html"}
    session.runs.show("cut", "subcut cut", document)
    assert (session.runs.events[-1]["folders"], session.runs.events[-1]["report"]) == (["case"], "")


def test_values_that_were_not_asked_for_are_not_given(session: ViewSession) -> None:
    for run, pair, plane in ((1, 0, None), ("1", 0, None), (None, None, None)):
        with pytest.raises(UsageError, match="no such values"):
            session.tensor(run, pair, plane)
    for node in (-1, 12, "0", None):
        with pytest.raises(UsageError, match="of which node"):
            session.run({"kind": "values", "node": node})
    with pytest.raises(UsageError, match="no candidate 'evil' was named"):
        session.run({"kind": "values", "node": 0, "candidate": "evil"})


def test_a_tensor_is_drawn_from_its_files(session: ViewSession) -> None:
    reference = np.zeros((1, 2, 4, 4), np.float32)
    given = reference.copy()
    given[0, 1, 2, 3] = 1
    pairs = [ValuePair("t0", "", "ort", reference, given), ValuePair("t0", "s1", "ort", reference, given[..., :2])]
    save_values(pairs, session.output / "view_values" / "x")
    session._values[3] = ("view_values/x", False)
    found = session.tensor(3, 0, None)
    assert (found["planes"], found["plane"], found["shape"]) == (2, 1, [1, 2, 4, 4])
    assert found["worst"][0]["index"] == [0, 1, 2, 3] and found["statistics"]["given"]["most"] == 1.0
    other = session.tensor(3, 1, None)
    assert other["scatter"] is None and other["notes"] == [
        "ort gave another shape, 1×2×4×2: the reference's stands alone"
    ]
    with pytest.raises(UsageError, match="channels are 0 to 1"):
        session.tensor(3, 0, 2)
    with pytest.raises(UsageError, match="no such tensor"):
        session.tensor(3, 2, None)


@pytest.mark.parametrize("shape", [(), (7,), (0, 3, 4), (2, 3, 50, 60)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int8])
def test_any_tensor_is_drawn_in_a_bounded_reply(session: ViewSession, shape: tuple[int, ...], dtype: type) -> None:
    rng = np.random.default_rng(0)
    reference: Array = np.asarray(9 * rng.standard_normal(shape)).astype(dtype)
    given: Array = np.asarray(9 * rng.standard_normal(shape)).astype(dtype)
    if dtype != np.int8 and given.size:
        given.flat[-1] = np.nan
    save_values([ValuePair("t0", "", "ort", reference, given[()])], session.output / "view_values" / "x")
    session._values[3] = ("view_values/x", False)
    found = session.tensor(3, 0, None)
    assert found["shape"] == list(shape) and len(json.dumps(found)) < 300_000 and found["scatter"]
    assert found["statistics"]["given"]["nans"] == int(dtype != np.int8 and given.size > 0)


@pytest.mark.parametrize(("shape", "seen"), [((3, 5, 6), range(60, 78)), ((50,), range(20)), ((4, 30), range(20))])
def test_of_a_large_tensor_one_channel_is_read(
    session: ViewSession, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], seen: range
) -> None:
    monkeypatch.setattr("subgraph.view.session.MAX_DRAWN", 20)
    monkeypatch.setattr("subgraph.storage.value_pairs.MAX_READ", 0)
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    save_values([ValuePair("t0", "", "ort", values, values)], session.output / "view_values" / "x")
    session._values[3] = ("view_values/x", False)
    found = session.tensor(3, 0, 2 if len(shape) == 3 else None)
    assert "alone" in found["notes"][0] and found["shape"] == list(shape)
    assert (found["statistics"]["given"]["least"], found["statistics"]["given"]["most"]) == (seen[0], seen[-1])


def test_a_value_that_the_candidate_did_not_give_is_said(session: ViewSession) -> None:
    save_values([ValuePair("t0", "", "ort", np.zeros(3, np.float32), None)], session.output / "view_values" / "x")
    session._values[3] = ("view_values/x", False)
    assert session.tensor(3, 0, None)["notes"] == ["ort gave no value of this tensor: the reference's stands alone"]


def test_a_node_tells_its_source_line(tmp_path: Path) -> None:
    chain(Path(tmp_path / "m.onnx"), ["odd\u202ename", NAMES[1]])
    model = onnx.load(tmp_path / "m.onnx")
    trace = 'File "/home/u/net.py", line 7, in forward\n    return self.act(x)\n'
    model.graph.node[1].metadata_props.add(key="pkg.torch.onnx.stack_trace", value=trace)
    onnx.save(model, tmp_path / "m.onnx")
    options = ViewOptions({}, (), (), (), (), tmp_path / "out")
    session = ViewSession(load(tmp_path / "m.onnx"), "m.onnx", options)
    assert "net.py:7" in session.node(1)["source"] and session.node(0)["source"] == ""
    assert "\u202e" not in session.node(0)["label"]  # it would reverse what stands behind it
