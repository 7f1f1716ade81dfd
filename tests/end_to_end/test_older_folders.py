"""Folders that earlier releases wrote (`fixtures/folders/`) are read by this one, by the commands
that users type.

Each kind is there once: cut, dump, compare, bisection with blame, one that was stopped, bundle,
recordings, loop, sweep and manual search. No answer depends on stored runs: their keys name the
machine that made them.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import urllib.request
from pathlib import Path

import pytest

from fixtures import ROOT, older_folders
from subgraph.storage.store import Store
from subgraph.system import interrupt
from tests.helpers.facts import has_line
from tests.helpers.run_command import PATIENCE, finish, in_process, run_program, start

SWEEP = "results/sweep-wrong.py-test_elu_example+test_relu"
CASES = {  # folder -> exit code of its replay on the candidate with the fault
    "results/shift__gate": 1,
    "results/recorded-recording/interval": 0,
    f"{SWEEP}/test_elu_example": 1,
    "results/manual-device/todo/3": 1,
    "steps/bisect-wrong.py/culprit": 1,
    "fault.zip": 1,
}
# the others are replayed as slow tests
QUICK = ("results/shift__gate", "results/manual-device/todo/3", "fault.zip")
REPORTS = {  # folder -> words of its report
    "results/bisect-wrong.py": "✗ wrong    shift, act (Add, Relu)   2 of 6 nodes",
    "results/compare-wrong.py": "wrong: the model's outputs; 4 of 6 tensors in place or alone",
    "results/compare-recording": "wrong: 5 of 6 recorded tensors, first shifted",
    "results/recorded-recording": "wrong: 5 of 6 recorded tensors, first shifted",
    "interrupted/bisect-wrong.py": "in doubt shift, act",
    "steps/bisect-wrong.py": "✗ wrong    squash (Tanh)   1 of 5 nodes",
    "fault": "✗ wrong    shift, act (Add, Relu)   2 of 6 nodes",
}
FORMS = {
    "html": ("report.html", "<!DOCTYPE html>"),
    "md": ("report.md", "# subcut"),
    "model-explorer": ("model_explorer.json", "{"),
    "text": ("report.txt", ""),
}
DRAWN = {  # folder -> what its drawing marks
    "results/bisect-wrong.py": "errors of 6 tensors, 4 wrong",
    "results/compare-wrong.py": "errors of 6 tensors, 4 wrong",
    "results/compare-recording": "errors of 6 tensors, 5 wrong",
    "results/recorded-recording": "errors of 6 tensors, 5 wrong",
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the folder, in which the test stands; paths in its documents are as if it had been
    written here.

    Stored runs are left out; a test that needs them calls `bring_stored_runs`.
    """
    place = tmp_path / "here"
    shutil.copytree(older_folders.HERE, place, ignore=shutil.ignore_patterns(".store"))
    for file in place.rglob("*.json"):
        text = file.read_text(encoding="utf-8")
        if older_folders.PLACE.as_posix() in text:
            file.write_text(
                text.replace(older_folders.PLACE.as_posix(), place.as_posix()), encoding="utf-8"
            )
    monkeypatch.chdir(place)
    return place


def bring_stored_runs(here: Path, folder: str) -> Path:
    """Copy the stored runs of that folder."""
    return Path(shutil.copytree(older_folders.HERE / folder / ".store", here / folder / ".store"))


@pytest.mark.parametrize("folder", REPORTS)
def test_older_results_have_reports_in_all_forms(here: Path, folder: str) -> None:
    assert REPORTS[folder] in in_process("report", folder).text
    done = in_process("report", folder, "-f", ",".join(FORMS), "-o", "reports")
    assert done.exit_code == 0
    for name, begin in FORMS.values():
        assert (here / "reports" / name).read_text(encoding="utf-8").startswith(begin)


def test_older_sweep_has_a_report(here: Path) -> None:
    assert in_process("report", SWEEP, "-f", "html", "-o", "reports").exit_code == 0
    assert "test_elu_example" in (here / "reports" / "report.html").read_text(encoding="utf-8")


def test_report_tells_what_blame_found(here: Path) -> None:
    text = in_process("report", "results/bisect-wrong.py").text
    assert has_line(text, "Cure, proven", "Identity", "shift (apart-1.onnx")


def test_older_bisection_keeps_its_finding(here: Path) -> None:
    document = in_process("report", "results/bisect-wrong.py").document
    run = json.loads(
        (here / "results" / "bisect-wrong.py" / "run.json").read_text(encoding="utf-8")
    )
    (finding,) = run["findings"]
    assert (finding["kind"], finding["nodes"], finding["certified"]) == (
        "culprit",
        ["shift", "act"],
        True,
    )
    assert document["exit_code"] == 0


@pytest.mark.turns(3)
@pytest.mark.parametrize(
    "case",
    [case if case in QUICK else pytest.param(case, marks=pytest.mark.slow) for case in CASES],
)
def test_cases_are_replayed(here: Path, case: str) -> None:
    assert in_process("replay", case, "-c", "wrong.py").exit_code == CASES[case]


@pytest.mark.parametrize(
    "case",
    [*(case for case in CASES if case != "fault.zip"), "interrupted/bisect-wrong.py/in-doubt"],
)
def test_cases_are_bundled_exported_and_inspected(here: Path, case: str) -> None:
    assert in_process("bundle", case, "-o", "case.zip").exit_code == 0
    assert (here / "case.zip").stat().st_size > 1000
    exported = in_process("export", case, "-o", "out", "--format", "bin", "--dtype", "float16")
    assert exported.exit_code == 0 and list((here / "out").rglob("*.bin"))
    model = next((here / case).rglob("model.onnx"))
    assert in_process("inspect", model, "--no-run").exit_code == 0


def test_older_dump_and_cut_are_read(here: Path) -> None:
    assert "shifted.npy" in in_process("export", "dumped", "-o", "out", "--format", "npy").text
    put_back = in_process(
        *"replace model.onnx -s shift -e gate --by results/shift__gate -o n.onnx".split()
    )
    assert put_back.exit_code == 0 and "bit-identical" in put_back.text


@pytest.mark.parametrize("folder", DRAWN)
def test_drawing_shows_the_errors(here: Path, folder: str) -> None:
    done = in_process("draw", "model.onnx", "-o", "drawn.svg", "--values", folder)
    assert DRAWN[folder] in done.text and (here / "drawn.svg").stat().st_size > 1000


def test_the_script_in_a_case_runs(here: Path) -> None:
    words = [sys.executable, "results/bisect-wrong.py/culprit/repro.py", "--reference"]
    done = run_program(words, cwd=here)
    assert done.returncode == 0 and "bit-identical" in done.stdout, done


@pytest.mark.posix("without a console a process is ended, not interrupted")
def test_the_page_opens_a_bisection(here: Path) -> None:
    process = start(
        "view",
        "results/bisect-wrong.py",
        "--no-browser",
        cwd=here,
        env={"SUBCUT_MODEL": "model.onnx"},
    )
    assert process.stderr
    lines = iter(process.stderr.readline, "")
    url, key = next(
        found.groups() for line in lines if (found := re.search(r"(http://\S+/)#(\S+)", line))
    )
    page = f"{url}api/model?token={key}"
    try:
        with urllib.request.urlopen(page, timeout=PATIENCE) as reply:
            assert json.load(reply)["labels"] == ["mix", "shift", "act", "gate", "both", "join"]
    finally:
        interrupt(process)
        done = finish(process)
    assert done.code == 0


def test_older_manual_search_continues(here: Path) -> None:
    assert "bad" in in_process("manual", "log").text
    assert has_line(in_process("manual", "next").text, "mix … act, 3")
    assert "mix, 1 node" in in_process("manual", "bad", "3").text
    assert has_line(in_process("manual", "undo").text, "mix … act, 3")
    assert in_process("manual", "log").text.count("\n") == 1


@pytest.mark.slow
def test_bisection_that_was_stopped_goes_on(here: Path) -> None:
    bring_stored_runs(here, "interrupted")
    done = in_process("bisect", "model.onnx", "-i", "x.npy", "-c", "wrong.py", "-o", "interrupted")
    assert done.exit_code == 1
    assert [finding["nodes"] for finding in done.document["findings"]] == [["shift", "act"]]
    assert (here / done.document["findings"][0]["case"] / "model.onnx").exists()


@pytest.mark.rare
@pytest.mark.slow
def test_loop_runs_again_beside_its_folder(here: Path) -> None:
    bring_stored_runs(here, "steps")
    words = ("--loop", "loop.toml", "-i", "sound=sound.npy", "-c", "wrong.py", "-o", "steps")
    done = in_process("bisect", "cell.onnx", *words)
    assert (
        done.exit_code == 1
        and has_line(done.text, "wrong", "step 0 of 4")
        and "squash (Tanh)" in done.text
    )


@pytest.mark.parametrize("folder", ["here/interrupted", "here/steps", "windows/interrupted"])
def test_stored_runs_are_read(here: Path, folder: str) -> None:
    place = bring_stored_runs(here, f"../{folder}")
    entries = list(place.glob("*/*/entry.json"))
    assert len(entries) > 2
    with Store(place) as store:
        for entry in entries:
            found = store.get(entry.parent.name)
            assert found and found.document, entry


@pytest.mark.turns(2)
@pytest.mark.parametrize("case", ["results/shift__gate", "fault.zip"])
def test_cases_of_windows_are_replayed(here: Path, case: str) -> None:
    """Written there, read here; and what is written here, there, where `make test-windows` runs the
    tests above."""
    for place in (here / "fault", here / "results"):
        shutil.rmtree(place)
    shutil.copytree(older_folders.WINDOWS, here, dirs_exist_ok=True)
    assert in_process("replay", case, "-c", "wrong.py").exit_code == CASES[case]


@pytest.mark.parametrize("folder", [older_folders.HERE, older_folders.WINDOWS])
def test_no_path_of_a_machine_is_kept(folder: Path) -> None:
    assert str(ROOT) not in str(older_folders.PLACE)
    for file in folder.rglob("*"):
        if file.is_file():
            assert not re.search(rb"[/\\](home|root|Users|work)[/\\]", file.read_bytes()), file
