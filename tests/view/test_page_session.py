"""What the page is told of a model, and files that are dropped onto it."""

from __future__ import annotations

import io
import json
import re
import signal
import stat
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import urlsplit
from urllib.request import url2pathname

import numpy as np
import onnx
import pytest

from fixtures import bodies
from subgraph import view
from subgraph.commands.options import InputOptions
from subgraph.commands.resolve import ResolvedOptions
from subgraph.commands.view import (
    RunOptions,
    find_known,
    find_model,
    make_view_options,
    offer_candidate,
    open_page,
)
from subgraph.documents import to_json
from subgraph.errors import UnknownName, UsageError
from subgraph.graph.cut import cut_region
from subgraph.graph.graph import load
from subgraph.graph.region import find_region
from subgraph.graph.shape_inference import infer_types
from subgraph.inspection import describe
from subgraph.results.bisect import InnerFinding, InsideDocument
from subgraph.results.plan import (
    KeptPlace,
    PlanDocument,
    PlanFiles,
    PlanResult,
    PlanSetup,
    PlanTrials,
    TriedPlan,
)
from subgraph.search import QueryKind
from subgraph.storage.value_pairs import ValuePair, save_values
from subgraph.view.output_files import DROPPED
from subgraph.view.page_session import (
    LayoutRequest,
    StartRequest,
    TensorRequest,
    ViewOptions,
    ViewSession,
    find_links,
    read_request,
)
from subgraph.view.server import ViewServer
from subgraph.view.values import open_model
from tests.helpers import text_models
from tests.helpers.chain_models import chain
from tests.helpers.facts import has_line
from tests.helpers.recorded_runs import record_runs
from tests.helpers.refusals import raises
from tests.helpers.run_command import in_process

NAMES = [f"stage{i // 6}/block{i // 2}/n{i}" for i in range(12)]


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ViewSession:
    monkeypatch.chdir(tmp_path)
    options = ViewOptions(
        {"ort": []}, ("typed.npy",), ("--trust",), ("--criterion=noise",), (), Path("out")
    )
    return ViewSession(open_model(chain(Path("m.onnx"), NAMES)), "m.onnx", options)


def _interrupt_at_address(server: ViewServer) -> str:
    """Press Ctrl-C while the address is printed."""
    signal.raise_signal(signal.SIGINT)
    return "http://127.0.0.1"


def test_interrupt_as_soon_as_the_address_is_printed_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    chain(Path("m.onnx"), NAMES)
    monkeypatch.setattr(ViewServer, "url", property(_interrupt_at_address))
    assert in_process("view", "m.onnx", "--no-browser").exit_code == 0


def test_the_page_knows_what_a_step_asks() -> None:
    """Its script colors nodes by the `query` of a step, which is a `QueryKind`."""
    script = (Path(view.__file__).parent / "static" / "view.js").read_text(encoding="utf-8")
    resolved = re.search(r"function learn.*?\n}\n", script, re.DOTALL)
    known = re.findall(
        r'\[([^\]]*)\]\.includes\(query\)|query === ("\w+")', resolved[0] if resolved else ""
    )
    words = {word for pair in known for word in re.findall(r"\w+", ",".join(pair))}
    assert words == {QueryKind.ISOLATED, QueryKind.REST}


def test_about_leads_from_a_node_to_the_groups_around_it(session: ViewSession) -> None:
    about = session.describe_model()
    group = about["holders"][7]
    around = []
    while group:
        around.append(about["groups"][group])
        group = about["parents"][group]
    assert around == ["stage1/block3", "stage1"]
    assert (
        about["labels"] == NAMES and about["makes"][0] == ["t0"] and about["candidates"] == ["ort"]
    )


def test_groups_open_to_their_nodes(session: ViewSession) -> None:
    boxes = session.lay_out(LayoutRequest([], 800))["boxes"]
    assert isinstance(boxes, list)
    assert [b["key"] for b in boxes if b["kind"] == "group"] == ["stage0", "stage1"]
    opened = session.lay_out(LayoutRequest(["stage1"], 800))
    assert opened["open"] == ["stage1"] and "stage1/block3" in str(opened["boxes"])
    with raises(UsageError, "group.unknown", "x"):
        session.lay_out(LayoutRequest(["x"], 800))


def test_node_has_all_facts_of_the_file(session: ViewSession) -> None:
    node = session.describe_node(2)
    assert node["label"] == NAMES[2] and node["inputs"][0]["name"] == "t1" and node["doc"] == ""
    with pytest.raises(UnknownName):
        session.describe_node(-1)


PADDED = """
g (float[1, 2, 6, 6] x) => (y)
<int64[8] pads = {0, 0, 1, 1, 0, 0, 1, 1}>
{
    r = Neg (x)
    padded = Pad (r, pads)
    y = MaxPool <kernel_shape = [3, 3], strides = [2, 2]> (padded)
}
"""


def test_node_has_the_known_faults_of_the_candidate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each candidate that was named; one that cannot be read is told by its run."""
    monkeypatch.chdir(tmp_path)
    text_models.save("m.onnx", PADDED)
    resolved = ResolvedOptions(model="m.onnx")
    specs = ["ort==1.31.1", "ort==1.32.0", "nothing such"]
    options = ViewOptions(
        dict.fromkeys(specs, ()), (), (), (), (), Path("out"), partial(find_known, resolved, specs)
    )
    session = ViewSession(open_model(Path("m.onnx")), "m.onnx", options)
    said = [session.describe_node(i)["known"] for i in range(3)]
    assert said[0] == said[1] == [] and len(said[2]) == 1, said
    assert said[2][0].startswith("ort==1.31.1: ") and has_line(said[2][0], "Pad", "zeros")


def test_node_is_described_where_the_projects_candidate_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text_models.save("m.onnx", PADDED)
    Path("subcut.toml").write_text('candidate = "nothing such"\n', encoding="utf-8")
    resolved = ResolvedOptions(model="m.onnx")
    typed = make_view_options(resolved.settings, RunOptions(), InputOptions(), None, None)
    assert [*typed.candidates] == ["nothing such"]
    options = replace(typed, known=partial(find_known, resolved, [*typed.candidates]))
    session = ViewSession(open_model(Path("m.onnx")), "m.onnx", options)
    assert [
        (session.describe_node(i)["op"], session.describe_node(i)["known"]) for i in (1, 2)
    ] == [
        ("Pad", []),
        ("MaxPool", []),
    ]


LOOP = bodies.planted(4, ("Loop", "If"))
PREFIX = "/".join([*LOOP.path, ""])
INNER = PREFIX + LOOP.node  # a node in the branch of an If in the body of a Loop


@pytest.fixture
def loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ViewSession]:
    """A model with bodies, a candidate and a recording."""
    monkeypatch.chdir(tmp_path)
    onnx.save(LOOP.model, "m.onnx")
    options = ViewOptions({"ort": []}, (), (), (), ("dumps",), Path("out"))
    opened = ViewSession(open_model(Path("m.onnx")), "m.onnx", options)
    yield opened
    opened.close()


def test_node_of_a_body_is_described_by_its_number(loop: ViewSession) -> None:
    about = loop.describe_model()
    number = about["labels"].index(INNER)
    node = loop.describe_node(number)
    assert (node["label"], node["op"]) == (INNER, about["ops"][number])


def test_node_with_bodies_names_them(loop: ViewSession) -> None:
    about = loop.describe_model()
    assert LOOP.path[0].split("/")[1] in about["bodies"][about["labels"].index("loop4")]


def test_node_of_a_body_is_a_region(loop: ViewSession) -> None:
    about = loop.describe_model()
    region = loop.describe_region(INNER, INNER)
    assert region["nodes"] == [about["labels"].index(INNER)]
    assert region["outputs"] == about["makes"][region["nodes"][0]]


def test_region_has_the_nodes_of_the_bodies_of_its_nodes(loop: ViewSession) -> None:
    labels = loop.describe_model()["labels"]
    region = loop.describe_region("loop4", "loop4")
    assert region["nodes"] == [labels.index("loop4")]
    assert labels.index(INNER) in region["inside"]


def test_sizes_that_shapes_give_are_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = """<ir_version: 8, opset_import: ["" : 17]>
    m (float[batch,half] x) => (float[batch,half] y) { y = Relu (x) }"""
    onnx.save(onnx.parser.parse_model(text), "m.onnx")
    options = ViewOptions({}, (), (), (), (), Path("out"), sizes=lambda _: {"batch": 2, "half": 9})
    session = ViewSession(open_model(Path("m.onnx")), "m.onnx", options)
    boxes = session.lay_out(LayoutRequest(None, 800.0))["boxes"]
    assert isinstance(boxes, list) and boxes[0]["detail"] == "float32 2×9"
    assert session.describe_node(0)["outputs"][0]["shape"] == [2, 9]


def test_candidate_of_an_opened_run_is_offered_and_its_code_is_not_run_untrusted(
    session: ViewSession,
) -> None:
    Path("wrong.py").write_text("def run(inputs): return inputs")
    resolved = ResolvedOptions(model="m.onnx")
    offered = offer_candidate(session.options, resolved, "wrong.py", "run.json", trust=False)
    assert list(offered.candidates) == ["wrong.py", "ort"]
    opened = ViewSession(session.opened, "m.onnx", offered)
    with raises(UsageError, "trust.required", "wrong.py", "run.json"):
        opened.run(read_request(StartRequest, {"kind": "compare", "candidate": "wrong.py"}))
    typed = offer_candidate(session.options, resolved, "ort", "run.json", trust=False)
    assert typed is session.options


def test_region_is_in_one_graph(loop: ViewSession) -> None:
    with pytest.raises(UsageError) as error:
        loop.describe_region("loop4", INNER)
    assert error.value.code == "region.two-graphs"


def test_finding_in_an_iteration_is_marked_at_its_node(loop: ViewSession) -> None:
    node = INNER.replace("body", "body@2")
    found = InnerFinding("culprit", None, [node], ["Neg"], certified=True, case=None)
    inside = to_json(InsideDocument(LOOP.path[0], 2, 3, findings=[found]))
    links = find_links(loop, {"findings": [{"case": None, "inside": inside}]}, ())
    assert links["inside"] == [[[loop.describe_model()["labels"].index(INNER)]]]


def test_values_of_a_node_of_a_body_are_of_its_name(loop: ViewSession) -> None:
    """The document of that run has the structure of the body, which is not another model's."""
    started = record_runs(loop.runs)
    node = loop.describe_model()["labels"].index(INNER)
    loop.run(read_request(StartRequest, {"kind": "values", "node": node, "candidate": "ort"}))
    assert f"--at={INNER}" in started[0]
    of_body = {"model": {"structure_sha256": "of the body"}, "results": []}
    assert find_links(loop, of_body, ()) == {"stale": True}
    assert "stale" not in find_links(loop, of_body, started[0])


def test_plan_marks_what_stays_in_float(session: ViewSession) -> None:
    plan = PlanDocument(
        exit_code=0,
        says="right with 1 of 3",
        setup=PlanSetup(precision="int8", unit="node", criterion="score", places=3),
        result=PlanResult(
            kept=[KeptPlace(NAMES[1], [NAMES[1]], ["Relu"], [], 0.5)],
            minimal=True,
            proven=1,
            score=None,
            weights=None,
        ),
        trials=PlanTrials(
            runs=2, seconds=1.0, tried=[TriedPlan(k, k > 0, 10.0 * k, "") for k in (0, 1)]
        ),
        files=PlanFiles(model=None),
    )
    links = find_links(session, to_json(plan), ())
    assert (
        links["kept"] == [1] and links["said"]["headline"] == plan.says and "<svg" in links["curve"]
    )
    assert find_links(session, {"findings": []}, ())["curve"] == ""


@pytest.mark.parametrize(
    ("chosen", "ends"),
    [
        ({"end": INNER}, [f"--end={INNER}"]),
        ({"end": "loop4"}, ["--end=loop4"]),
        ({}, []),
        ({"end": INNER, "recording": "dumps"}, []),  # which holds nothing of bodies
    ],
)
def test_compare_is_of_what_lies_between_start_and_end(
    loop: ViewSession, chosen: dict[str, str], ends: list[str]
) -> None:
    started = record_runs(loop.runs)
    loop.run(read_request(StartRequest, {"kind": "compare", "candidate": "ort", **chosen}))
    assert [
        word for word in started[0] if word.startswith(("--start", "--end", "--in-place"))
    ] == ends


def test_tensors_of_a_run_in_a_body_have_its_prefix(loop: ViewSession) -> None:
    of_body = {"model": {"structure_sha256": "of the body"}}
    assert find_links(loop, of_body, ("compare", "m.onnx", f"--end={INNER}"))["prefix"] == PREFIX
    assert find_links(loop, {}, ("compare", "m.onnx", "--at=#3"))["prefix"] == ""


def test_large_model_is_not_compared_alone_and_each_candidate_is_listed(
    session: ViewSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("subgraph.view.page_session.MAX_ALONE", 3)
    candidates = {name: [f"--candidate={name}"] for name in ("a.py", "b.py", "other")}
    vars(session)["options"] = replace(
        session.options, candidates=candidates, together=("a.py", "b.py")
    )
    started = record_runs(session.runs)

    def words(**resolved: object) -> list[str]:
        session.run(
            read_request(StartRequest, {"kind": "compare", "candidate": "b.py", **resolved})
        )
        return [w for w in started[-1] if re.match("--(cand|in-place|start)", w)]

    assert words() == ["--candidate=a.py", "--candidate=b.py", "--in-place"]
    assert words(candidate="other") == ["--candidate=other", "--in-place"]
    assert words(candidate="other", start=NAMES[9]) == ["--candidate=other", f"--start={NAMES[9]}"]
    assert words(kind="bisect") == ["--candidate=b.py"]
    assert words(kind="values", node=1) == ["--candidate=a.py", "--candidate=b.py"]
    folder = Path(started[-1][-1].removeprefix("--save="))
    for k, name in enumerate(("a.py", "b.py")):
        save_values([ValuePair("t1", "", name, np.zeros(3), np.full(3, k))], folder / f"{k}-{name}")
    assert [
        pair["source"]
        for pair in session.tensor(read_request(TensorRequest, {"run": len(started), "pair": 1}))[
            "pairs"
        ]
    ] == ["a.py", "b.py"]
    links = find_links(
        session, {"comparisons": [{"report": ""}, {"model": {"structure_sha256": "other"}}]}, ()
    )
    assert links["stale"] and links["comparisons"][0]["folders"] == []
    session.close()


def test_region_has_the_constants_in_its_boxes(tmp_path: Path) -> None:
    constant = "c = Constant <value = float[3] {2, 3, 4}> ()"
    text = f"g (float[3] x) => (float[3] y) {{ {constant} d = Mul(x, c) y = Neg(d) }}"
    text_models.save(tmp_path / "m.onnx", text)
    opened = ViewSession(
        open_model(tmp_path / "m.onnx"), "m.onnx", ViewOptions({}, (), (), (), (), tmp_path / "out")
    )
    region = opened.describe_region("#1", "#1")
    assert (region["nodes"], region["inside"], region["parameters"]) == ([1], [0], 3)
    assert cut_region(opened.graph, find_region(opened.graph, ["#1"], ["#1"])).parameters == 3
    opened.close()


def test_open_end_stands_for_the_model(session: ViewSession) -> None:
    region = session.describe_region("", NAMES[1])
    assert (region["nodes"], region["start"], region["inputs"]) == ([0, 1], "", ["in"])
    assert region["command"] == f"subcut cut m.onnx --end={NAMES[1]}"


def test_dropped_file_is_stored_under_a_safe_name_and_fed(session: ViewSession) -> None:
    data = io.BytesIO()
    np.save(data, np.zeros((1, 3), np.float32))
    raw = data.getvalue()
    stored = session.files.drop("../../my input.npy", io.BytesIO(raw), len(raw))["file"]
    assert (Path("out") / DROPPED / stored).read_bytes() == raw and "/" not in stored
    odd = session.files.drop('a"\u202e$(x) --trust.npy', io.BytesIO(raw), len(raw))["file"]
    assert re.fullmatch(r"[0-9a-f]{8}-[\w.@+-]+\.npy", odd, re.ASCII)
    started = record_runs(session.runs)
    session.run(
        read_request(
            StartRequest,
            {"kind": "bisect", "candidate": "ort", "inputs": [{"file": stored, "input": "in"}]},
        )
    )
    words = started[0]
    assert words[:3] == ["bisect", "m.onnx", "--criterion=noise"]
    assert words[3:5] == ["--trust", f"--input=in={Path('out').resolve() / DROPPED / stored}"]
    session.run(read_request(StartRequest, {"kind": "compare", "candidate": "ort"}))
    assert "--input=typed.npy" in started[1]


def test_links_lead_only_to_results_in_the_output_folder(session: ViewSession) -> None:
    Path("out/case").mkdir(parents=True)
    document = {"results": [{"path": "out/case"}, {"path": "/etc"}], "report": "../report.html"}
    session.runs.show("cut", "subcut cut", document)
    assert (session.runs.events[-1]["folders"], session.runs.events[-1]["report"]) == (["case"], "")


def test_findings_inside_bodies_are_listed_with_their_reports(session: ViewSession) -> None:
    for name in ("deep", "deeper"):
        (Path("out") / name / "culprit").mkdir(parents=True)
        (Path("out") / name / "report.html").touch()

    def inside(name: str, deeper: InsideDocument | None = None) -> InsideDocument:
        case = f"out/{name}/culprit"
        finding = InnerFinding(
            "culprit", None, [f"{name}/n"], ["Neg"], certified=True, case=case, inside=deeper
        )
        return InsideDocument(
            name, None, None, findings=[finding], report=f"out/{name}/report.html"
        )

    deep = to_json(inside("deep", inside("deeper")))
    document: dict[str, Any] = {"findings": [{"inside": deep}, {}]}
    session.runs.show("bisect", "subcut bisect", document)
    event = session.runs.events[-1]
    assert event["inner_reports"] == [["deep/report.html", "deeper/report.html"], []]
    assert event["folders"] == ["deep/culprit", "deeper/culprit"]


def test_values_that_were_not_asked_for_are_not_given(session: ViewSession) -> None:
    with raises(UsageError, "view.unknown-values"):
        session.tensor(TensorRequest(run=1))
    for node in (-1, 12):
        with raises(UsageError, "view.no-node"):
            session.run(
                read_request(StartRequest, {"kind": "values", "node": node, "candidate": "ort"})
            )
    with raises(UsageError, "view.unknown-candidate", "evil"):
        session.run(read_request(StartRequest, {"kind": "values", "node": 0, "candidate": "evil"}))


@pytest.mark.slow
def test_stored_cut_is_shown_without_a_run(session: ViewSession) -> None:
    assert session.tensor(read_request(TensorRequest, {"node": 3})) == {"pairs": []}
    words = ("--start", NAMES[2], "--end", NAMES[4], "--dump", "all", "-o", "out")
    document = in_process("cut", "m.onnx", *words).document
    session.runs.show("cut", "subcut cut", document)
    found = session.tensor(read_request(TensorRequest, {"node": 3, "pair": 0}))
    (place,) = session.runs.events[-1]["folders"]
    assert found["notes"] == [f"stored in {place}"] and found["stored"]
    assert found["pairs"] == [{"tensor": "t3", "sample": "", "source": place}]
    assert session.tensor(read_request(TensorRequest, {"node": 11})) == {
        "pairs": []
    }  # not in the cut
    with raises(UsageError, "view.unknown-values"):
        session.tensor(read_request(TensorRequest, {"node": 3, "pair": 1}))
    model = Path("out") / place / "model.onnx"
    opened = ViewSession(open_model(model), str(model.parent), session.options)
    opened.show_case(model.parent)
    assert opened.tensor(read_request(TensorRequest, {"node": 1, "pair": 0}))["shape"] == [1, 3]


def test_values_that_were_looked_at_are_few_and_gone_at_the_end(
    session: ViewSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("subgraph.view.page_session.MAX_KEPT", 2)
    record_runs(session.runs)
    for node in range(4):
        session.run(
            read_request(StartRequest, {"kind": "values", "node": node, "candidate": "ort"})
        )
    (kept,) = (p for p in Path("out").iterdir() if p.name.startswith(".view_values"))
    assert len(list(kept.iterdir())) == 2
    assert [session.tensor(read_request(TensorRequest, {"run": run})) for run in (3, 4)] == [
        {"pairs": []}
    ] * 2
    with pytest.raises(UsageError) as error:
        session.tensor(read_request(TensorRequest, {"run": 2}))
    assert error.value.code == "view.unknown-values"
    session.close()
    assert not Path("out").exists()


def test_node_tells_its_source_line(tmp_path: Path) -> None:
    chain(Path(tmp_path / "m.onnx"), ["odd\u202ename", NAMES[1]])
    model = onnx.load(tmp_path / "m.onnx")
    trace = 'File "/home/u/net.py", line 7, in forward\n    return self.act(x)\n'
    model.graph.node[1].metadata_props.add(key="pkg.torch.onnx.stack_trace", value=trace)
    onnx.save(model, tmp_path / "m.onnx")
    options = ViewOptions({}, (), (), (), (), tmp_path / "out")
    session = ViewSession(open_model(tmp_path / "m.onnx"), "m.onnx", options)
    assert has_line(session.describe_node(1)["source"], "u/net.py:7")
    assert has_line(session.describe_node(0)["source"], "node after")  # it has none of its own
    assert (
        "\u202e" not in session.describe_node(0)["label"]
    )  # it would reverse what stands behind it
    assert "\u202e" not in session.describe_model()["labels"][0]


@pytest.mark.parametrize("change", ["file", "document"])
def test_result_that_may_be_of_another_file_is_not_shown(session: ViewSession, change: str) -> None:
    structure = session.graph.skeleton.structure
    Path("out/case").mkdir(parents=True)
    document = {"results": [{"path": "out/case"}], "model": {"structure_sha256": structure}}
    session.runs.show("cut", "subcut cut", document)
    assert session.runs.events[-1]["folders"] == ["case"]
    if change == "file":
        chain(Path("m.onnx"), NAMES[:5])
    else:
        document["model"] = {"structure_sha256": "0"}
    session.runs.show("cut", "subcut cut", document)
    assert session.runs.events[-1]["stale"] and "folders" not in session.runs.events[-1]


def test_case_of_another_model_is_left_out(session: ViewSession) -> None:
    for name, structure in (
        ("own", session.graph.skeleton.structure),
        ("other", "x"),
        ("unknown", None),
    ):
        manifest = {
            "schema": "subcut.case/1",
            "source": {"structure_sha256": structure},
            "request": {},
            "files": [],
        }
        Path("out", name).mkdir(parents=True)
        Path("out", name, "manifest.json").write_text(
            json.dumps(manifest | {"command": None}), encoding="utf-8"
        )
        session.show_case(Path("out", name))
    Path("out/own/manifest.json").write_text("{", encoding="utf-8")
    session.show_case(Path("out/own"))
    assert session._cases == [(Path("out/own"), "")]


def test_the_model_of_a_run_is_the_one_with_its_structure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder with several models nobody is asked which."""
    monkeypatch.chdir(tmp_path)
    for name, operator in (("a.onnx", "Neg"), ("b.onnx", "Relu")):
        text_models.save(name, f"g (float[2] x) => (float[2] y) {{ y = {operator}(x) }}")
    Path("damaged.onnx").write_bytes(b"no model")
    structure = load(Path("b.onnx")).skeleton.structure
    assert find_model("b.onnx", structure, "run") == "b.onnx"
    assert find_model("a.onnx", structure, "run") == "b.onnx", "renamed"
    with raises(UsageError, "result.model-missing", "c.onnx"):
        find_model("c.onnx", "0", "run")


def test_types_are_inferred_once_however_many_nodes_are_looked_at(
    session: ViewSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 10,000 nodes it takes 0.3 s, which no click may take."""
    infer = mock.Mock(side_effect=infer_types)
    monkeypatch.setattr(describe, "infer_types", infer)
    opened = ViewSession(session.opened, "m.onnx", session.options)
    assert [opened.describe_node(i)["outputs"][0]["shape"] for i in range(5)] == [[1, 3]] * 5
    assert infer.call_count == 1


def test_recording_is_stored_by_one_run_and_shown_without_another(session: ViewSession) -> None:
    vars(session)["options"] = replace(session.options, recordings=("dump",))
    started = record_runs(session.runs)
    chosen = {"recording": "dump", "pair": 0}
    assert session.tensor(read_request(TensorRequest, {"node": 3, **chosen})) == {"pairs": []}
    session.run(read_request(StartRequest, {"kind": "values", "node": 3, **chosen}))
    (words,) = started
    # all that was recorded, not one node's
    assert not [word for word in words if word.startswith("--at")]
    folder = Path(words[-1].removeprefix("--save="))
    assert session.tensor(read_request(TensorRequest, {"node": 3, **chosen})) == {"pairs": []}, (
        "nothing before it is complete"
    )
    values = [ValuePair(f"t{k}", "", "dump", np.zeros(3), np.full(3, k)) for k in (3, 4)]
    save_values(values, folder)
    for node in (3, 4):
        found = session.tensor(read_request(TensorRequest, {"node": node, **chosen}))
        assert [pair["tensor"] for pair in found["pairs"]] == [f"t{node}"]
        assert found["statistics"]["given"]["most"] == node
    with raises(UsageError, "view.nothing-recorded"):
        session.tensor(read_request(TensorRequest, {"node": 5, **chosen}))
    outcome = session.tensor(read_request(TensorRequest, {"run": 1, "pair": 0}))
    assert (
        outcome["pairs"]
        == session.tensor(read_request(TensorRequest, {"node": 3, **chosen}))["pairs"]
    )
    # the reference was fed otherwise
    assert session.tensor(read_request(TensorRequest, {"node": 3, **chosen, "seed": "7"})) == {
        "pairs": []
    }
    session.close()


def test_the_key_of_the_page_is_in_a_private_file_and_in_no_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with open_page("http://127.0.0.1:9/#s3cret"):
        page = Path(url2pathname(urlsplit(opened[0]).path))
        assert "s3cret" not in opened[0]
        assert page.parent.parent == tmp_path
        assert "url=http://127.0.0.1:9/#s3cret" in page.read_text(encoding="utf-8")
        if sys.platform != "win32":
            assert [stat.S_IMODE(place.stat().st_mode) for place in (page, page.parent)] == [
                0o600,
                0o700,
            ]
    assert not any(tmp_path.iterdir())


def test_runtime_folder_that_cannot_be_used_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "none"))
    with open_page("http://127.0.0.1:9/#key"):
        assert Path(url2pathname(urlsplit(opened[0]).path)).is_file()
