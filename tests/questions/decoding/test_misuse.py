"""What is done wrong with `bisect --loop`: another file, a candidate that gives too little, a
folder without cases.

Covers `questions.decoding.step_search`, `questions.decoding.run_steps`, `questions.decoding.inputs`
and `cases.find_case`."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from subgraph.questions.decoding import run_steps
from subgraph.questions.decoding.decoder import LoopFile, Slicing, resolve_decoder
from subgraph.questions.decoding.inputs import LoopInputs, read_inputs
from subgraph.runtime.inputs import Feeding
from subgraph.runtime.reference import Reference
from subgraph.storage.tensors import Record, save
from tests.helpers import text_models
from tests.helpers.facts import has_line
from tests.helpers.run_command import Done, subcut

SUM = (
    "g (float[1,4] x, float[1,4] h0) => (float[1,4] y, float[1,4] hn) { hn = Add(h0, x) y ="
    " Neg(hn) }"
)
CANDIDATE = '''
"""The sum of all, times what the file beside says from the third step on; nothing but the state if it is 0."""
import numpy as np
from pathlib import Path

def load(model, options):
    gain = float(Path(__file__).with_name("gain").read_text())

    def run(feeds):
        if "h0" not in feeds:
            return {}
        hn = feeds["h0"] + feeds["x"]
        if gain < 0:
            return {"hn": hn, "y": hn * np.float32(gain)}
        return {"hn": hn} if gain == 0 and np.abs(hn).max() > 2.5 else {"hn": hn, "y": -hn}

    return run
'''  # noqa: E501
SLICES = "[slices]\nx = { size = 1, step = 1, axis = 0 }\n"


@pytest.fixture
def here(tmp_path: Path) -> Path:
    text_models.load(tmp_path, SUM)
    np.save(tmp_path / "x.npy", np.ones((8, 4), np.float32))
    (tmp_path / "sum.py").write_text(CANDIDATE)
    (tmp_path / "gain").write_text("1")
    (tmp_path / "loop.toml").write_text(SLICES)
    return tmp_path


def looped(folder: Path, *words: str) -> tuple[Done, dict[str, Any]]:
    fixed = (*"--loop loop.toml -i x.npy -c sum.py --repeat 1 --json".split(), *words)
    done = subcut("bisect", "model.onnx", *fixed, cwd=folder)
    return done, json.loads(done.out)


def inputs(folder: Path, file: LoopFile) -> LoopInputs:
    graph = text_models.load(folder, SUM)
    return read_inputs(resolve_decoder(graph, file, []), file, Feeding((str(folder / "x.npy"),)))


def test_another_loop_file_is_another_walk(here: Path) -> None:
    """The overlap of slices, and what is fed back, do not show in the first step."""
    files = [
        LoopFile(slices={"x": Slicing(1, 1, 0)}, steps=3),
        LoopFile(slices={"x": Slicing(1, 2, 0)}, steps=3),
        LoopFile(slices={"x": Slicing(1, 1, 0)}, steps=3, states={"h0": "y"}),
    ]
    assert len({inputs(here, file).digest() for file in files}) == 3


@pytest.mark.slow
def test_output_that_is_not_given_is_a_wrong_step(here: Path) -> None:
    (here / "gain").write_text("0")
    done, document = looped(here)
    assert (done.code, document["outcome"], document["first_wrong"]) == (1, "step", 2)
    assert has_line(done.err, "no output", "'y'")


@pytest.mark.slow
def test_candidate_that_has_changed_is_asked_again(here: Path) -> None:
    """As a library does that was replaced: nothing in the key of its answers says so."""
    np.save(here / "x.npy", np.random.default_rng(0).standard_normal((8, 4), np.float32))
    assert looped(here)[1]["outcome"] == "agree"
    assert looped(here)[1]["walks"] == 0
    (here / "gain").write_text("-2")
    done, document = looped(here)
    assert (done.code, document["first_wrong"]) == (1, 0)
    assert has_line(done.err, "no longer")


@pytest.mark.parametrize("command", ["report", "view", "replay"])
def test_the_folder_of_a_loop_says_where_its_search_is(command: str, tmp_path: Path) -> None:
    folder = tmp_path / "loop-npu"
    folder.mkdir()
    (folder / "manifest.json").write_text('{"schema": "subcut.evidence/1"}')
    (folder / "loop.json").write_text(
        json.dumps({"bisection": {"report": "out/bisect-npu/report.html"}})
    )
    done = subcut(command, str(folder), cwd=tmp_path)
    assert done.code == 2
    assert has_line(done.err, "loop") and "out/bisect-npu" in done.err


def test_memory_bounds_the_states_that_are_kept(here: Path, reference: Reference) -> None:
    scratch = here / "scratch"
    scratch.mkdir()
    given = inputs(here, LoopFile(slices={"x": Slicing(1, 1, 0)}))
    limited: Any = SimpleNamespace(limit=4 * 144, run=reference.run, load=reference.load)
    found = run_steps.trace_reference(given, limited, given.decoder.graph.path, scratch)
    assert len(found.states) < 8


def test_outputs_of_a_step_are_distinct_from_constant_inputs(tmp_path: Path) -> None:
    """A verdict on one step compares what that step gave; the next step is fed what stays of the
    one before."""

    def record(name: str, rows: int, into: Path) -> Record:
        return save(
            name, np.ones((rows, 4), np.float32), "tensor(float)", into, f"{name}{rows}"
        ).rebase(str(into))

    def run(into: Path, *_: object) -> dict[str, Record]:
        return {"y": record("y", 1, into), "hn": record("hn", 0, into)}

    decoder = SimpleNamespace(
        graph=SimpleNamespace(outputs=["y", "hn"]), states={"h0": "hn"}, cache_branch="b"
    )
    before = {"h0": record("h0", 2, tmp_path)}
    walked: Any = SimpleNamespace(
        decoder=decoder, find_state_before=lambda k: before, feeds=lambda k, states: []
    )
    (step,) = run_steps.follow(walked, run, 1, 1, tmp_path / "steps")
    assert [r["hn"].shapes for r in (step.raw, step.made)] == [((0, 4),), ((2, 4),)]
