"""A candidate that is right in the first run of a session and wrong from a later one on.

Covers the passes of `runtime.run_result` and `trials.trial`.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from subgraph.graph.graph import Graph, load
from subgraph.runtime import candidate
from subgraph.runtime.inputs import Feeding
from subgraph.runtime.reference import Reference
from subgraph.runtime.worker_pool import Workers
from subgraph.trials.open_trials import Setup, open_trials
from subgraph.verdict import Status, Verdict
from tests.helpers import text_models
from tests.helpers.facts import has_line
from tests.helpers.open_trials import region_of
from tests.helpers.planted_candidates import planted
from tests.helpers.run_command import subcut

LINE = (
    "g (float[N, 4] x) => (float[N, 4] y) { [a] p = Abs(x) [b] q = Neg(p) [c] r = Exp(q) [d] y ="
    " Tanh(r) }"
)
# What a session with the operator Neg gives in a run, as Python: `runs` counts them, `shapes` are
# those of its feeds.
STATEFUL = planted(
    change="""
    has_neg = any(node.op_type == "Neg" for node in nodes)
    shapes = []
    """,
    answer="""
    shapes.append(next(iter(feeds.values())).shape)
    runs = len(shapes)
    if has_neg and (WHEN):
        found = {n: v[..., ::-1].copy() + 1 for n, v in found.items()}
    """,
)


def made(folder: Path, when: str, *rows: int) -> Graph:
    text_models.save(folder / "m.onnx", LINE)
    (folder / "stateful.py").write_text(STATEFUL.replace("WHEN", when), encoding="utf-8")
    (folder / "in").mkdir()
    for k, n in enumerate(rows):
        np.save(
            folder / f"in/{k}.npy", np.random.default_rng(k).standard_normal((n, 4), np.float32)
        )
    return load(folder / "m.onnx")


def verdicts(folder: Path, graph: Graph, reference: Reference, *regions: str) -> list[Verdict]:
    """Of the whole, and of these regions, in one session of trials."""
    chosen = candidate.parse(str(folder / "stateful.py"))
    setup = Setup(chosen, Feeding((str(folder / "in"),)), folder / "out")
    with Workers(chosen) as workers, open_trials(graph, setup, reference, workers) as trials:
        asked = [trials.model.whole(), *(region_of(graph, *nodes) for nodes in regions)]
        return [trials.verdict(region) for region in asked]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("when", "words"),
    [
        ("runs > 1", ("second run", "max error")),
        ("runs == 3", ("third run", "max error")),
        ("runs > 1 and os.abort()", ("second run", "the process")),
    ],
)
def test_the_piece_that_goes_wrong_later_is_wrong(
    when: str, words: tuple[str, ...], tmp_path: Path, reference: Reference
) -> None:
    whole, piece, others = verdicts(tmp_path, made(tmp_path, when, 3), reference, "b", "cd")
    assert whole.status is piece.status is Status.FAIL and others.status is Status.AGREE
    assert has_line(whole.why, *words) and has_line(piece.why, *words), (whole.why, piece.why)
    assert whole.to_document().from_run == (3 if "third run" in words else 2)


def test_samples_behind_the_first_are_later_runs(tmp_path: Path, reference: Reference) -> None:
    """Each sample but the first was wrong, and its case, run alone, right."""
    whole, piece = verdicts(tmp_path, made(tmp_path, "runs > 1", 3, 3), reference, "b")
    assert whole.from_run == piece.from_run == 2
    assert [j.status for j in piece.outputs] == [Status.FAIL] * 2


@pytest.mark.parametrize(("when", "written"), [("False", 1), ("runs > 1", 3), ("runs == 3", 2)])
def test_equal_result_of_a_later_run_is_not_written_again(
    when: str, written: int, tmp_path: Path, reference: Reference
) -> None:
    verdicts(tmp_path, made(tmp_path, when, 3), reference)
    assert len(list(tmp_path.rglob("*s0-o0.npy"))) == written


def test_shape_that_comes_again(tmp_path: Path, reference: Reference) -> None:
    """The first pass over samples of two shapes is right, the first shape behind the second is
    not."""
    when = "shapes[-1] == shapes[0] and len(set(shapes)) > 1"
    (whole,) = verdicts(tmp_path, made(tmp_path, when, 3, 5), reference)
    assert whole.from_run == 2 and [j.status for j in whole.outputs] == [Status.FAIL, Status.AGREE]


@pytest.mark.parametrize(("when", "status"), [("False", Status.AGREE), ("True", Status.FAIL)])
def test_constant_condition_costs_no_build(
    when: str, status: Status, tmp_path: Path, reference: Reference
) -> None:
    """Nothing is kept of further runs that give the same."""
    whole, _ = verdicts(tmp_path, made(tmp_path, when, 3), reference, "b")
    assert whole.status is status and whole.from_run is None
    entries = [
        json.loads(p.read_text(encoding="utf-8")) for p in (tmp_path / "out").rglob("*.json")
    ]
    assert entries and not any(
        "later" in entry["document"] for entry in entries if "document" in entry
    )
    assert not list((tmp_path / "out").rglob("p1-*"))


@pytest.mark.slow
def test_search_says_so_and_its_case_is_replayed_alike(tmp_path: Path) -> None:
    made(tmp_path, "runs > 1", 3)
    words = ("-c", "stateful.py", "--trust")
    done = subcut("bisect", "m.onnx", "-i", "in/0.npy", *words, cwd=tmp_path)
    assert done.code == 1 and has_line(done.out, "wrong", "b (Neg)", "second run", "1 of 4"), (
        done.out
    )
    again = subcut("replay", "subcut_out/bisect-stateful.py/culprit", *words, cwd=tmp_path)
    assert again.code == 1 and has_line(again.out, "FAIL", "second run"), again.out + again.err
    compared = subcut("compare", "m.onnx", "-i", "in/0.npy", *words, cwd=tmp_path)
    assert has_line(compared.out, "wrong", "second run", "outputs"), compared.out
