"""A finding holds the small input as a case: the folder, the document, the commands."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from subgraph.questions.bisection import result_folder
from tests.helpers import fake_candidate, text_models
from tests.helpers.documents import problem
from tests.helpers.open_trials import spec_of
from tests.helpers.run_command import subcut

pytestmark = pytest.mark.small_inputs
MODEL = """g (float[1,3,8,8] x) => (float[1,3,8,8] y) {
    [before] a = Neg(x) [act] b = LeakyRelu(a) [after] y = Neg(b)
}"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder with a model of three nodes."""
    text_models.save(tmp_path / "m.onnx", MODEL)
    return tmp_path


def bisect(here: Path, *words: str) -> Path:
    """Bisect the model on a candidate with a fault in `act`; return the folder of the case."""
    spec = spec_of(fake_candidate.HERE, nodes="act")
    done = subcut("bisect", "m.onnx", "-c", spec, "--rtol", "1e-3", "--json", *words, cwd=here)
    assert done.code == 1 and not problem(done.document)
    (finding,) = done.document["findings"]
    assert finding["nodes"] == ["act"]
    assert ("small" in finding) == (here / finding["case"] / "small").exists()
    return here / str(finding["case"])


@pytest.mark.slow
def test_finding_has_its_small_input_in_every_place(here: Path) -> None:
    """The document, the folder, repro.py, replay and the bundle hold it."""
    place = bisect(here)
    (finding,) = json.loads((place.parent / "run.json").read_text())["findings"]
    small = finding["small"]
    assert small["runs"] <= 40 and "[1] in, [1] expected, [1.5] got" in small["numbers"]
    script = [sys.executable, str(place / "repro.py")]
    ran = subprocess.run(script, capture_output=True, text=True, check=True)
    assert small["numbers"] in ran.stdout
    faulty = ("-c", spec_of(fake_candidate.HERE, nodes="act"))
    assert subcut("replay", place, "--small", *faulty, cwd=here).code == 1
    assert subcut("replay", place, "--small", "-c", "ort", cwd=here).code == 0
    assert subcut("bundle", place, "-o", "fault.zip", cwd=here).code == 0
    assert subcut("replay", "fault.zip", "--small", *faulty, cwd=here).code == 1
    assert subcut("bundle", place.parent, "-o", "all.zip", cwd=here).code == 0


def test_option_keeps_the_given_input(here: Path) -> None:
    place = bisect(here, "--keep-input")
    assert not (place / "small").exists()
    lacking = subcut("replay", place, "--small", "-c", "ort", cwd=here)
    assert lacking.problem == "case.no-small-input"


def test_interrupt_keeps_the_finding(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(oracle: Any, finding: Any, folder: Path, runs: int) -> None:
        (folder / "small").mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr(result_folder, "add_small_case", interrupt)
    place = bisect(here)
    assert not (place / "small").exists() and (place / "model.onnx").exists()
