"""What the page is told of a model, and files that are dropped onto it."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

from subgraph.errors import InputError, UnknownName, UsageError
from subgraph.graph.graph import load
from subgraph.storage.value_pairs import ValuePair, save_values
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
    assert session.tensor(3, 1, None)["scatter"] is None, "of another shape"
    with pytest.raises(UsageError, match="channels are 0 to 1"):
        session.tensor(3, 0, 2)
    with pytest.raises(UsageError, match="no such tensor"):
        session.tensor(3, 2, None)
