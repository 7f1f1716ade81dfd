"""`subcut demo`: a folder in which the first bisection finds the planted fault, on every supported
runtime.

Covers `demo.files` and `demo.wrong`.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from subgraph.commands import manage
from subgraph.demo.files import make_files
from subgraph.errors import OutputError, ResultExists, UsageError
from tests.helpers.refusals import raises
from tests.helpers.run_command import in_process, subcut, tree

SECONDS = 15  # the first answer must not take longer
FIXED = "            pool.attribute.append("


def test_the_files_are_the_same_each_time() -> None:
    assert make_files() == make_files()
    assert set(make_files()) == set(manage.ABOUT)


def test_next_command_is_printed(tmp_path: Path) -> None:
    done = subcut("demo", "d", cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    assert tree(tmp_path / "d") == make_files()
    for words in ("cd d\n", f"  {manage.BISECT}\n", manage.REPORT, *manage.NEXT):
        assert words in done.out
    assert max(map(len, done.out.splitlines())) <= 80


@pytest.mark.slow
def test_the_command_that_is_shown_finds_the_planted_fault(tmp_path: Path) -> None:
    in_process("demo", tmp_path / "d")
    begin = _seconds()
    done = subcut(*manage.BISECT.split()[1:], "--json", cwd=tmp_path / "d")
    assert _seconds() - begin < SECONDS
    assert done.code == 1
    (finding,) = done.document["findings"]
    assert (finding["kind"], finding["nodes"], finding["certified"]) == (
        "culprit",
        ["stem/pad", "stem/pool"],
        True,
    )
    assert (tmp_path / "d" / manage.REPORT).exists()
    assert "random" not in done.err  # the project file names the input


def _seconds() -> float:
    """CPU time of all processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.slow
def test_the_line_that_is_missing_mends_it(tmp_path: Path) -> None:
    in_process("demo", tmp_path / "d")
    wrong = tmp_path / "d" / "wrong.py"
    mended = wrong.read_text().replace(f"            # {FIXED.strip()}", FIXED)
    assert mended != wrong.read_text()
    wrong.write_text(mended)
    assert subcut("compare", "model.onnx", "-c", "wrong.py", cwd=tmp_path / "d").code == 0


def test_the_same_command_again_restores_what_is_missing(tmp_path: Path) -> None:
    place = tmp_path / "d"
    in_process("demo", place)
    (place / "model.onnx").unlink()
    (place / "subcut_out").mkdir()
    (place / "mine.txt").write_text("kept")
    in_process("demo", place)
    assert tree(place) == make_files() | {"mine.txt": b"kept"}


def test_files_of_others_stay(tmp_path: Path) -> None:
    place = tmp_path / "d"
    in_process("demo", place)
    (place / "wrong.py").write_text("changed")
    (place / "input.npy").unlink()
    with raises(ResultExists, "output.not-ours", "d/wrong.py"):
        in_process("demo", place)
    assert not (place / "input.npy").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").touch()
    with pytest.raises(ResultExists):
        in_process("demo", tmp_path / "full")
    with pytest.raises(UsageError):
        in_process("demo", tmp_path / "full" / "mine.txt")
    with pytest.raises(OutputError):
        in_process("demo", tmp_path / "full" / "mine.txt" / "d")


def test_empty_folder_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "d").mkdir()
    monkeypatch.chdir(tmp_path / "d")
    in_process("demo", ".")
    assert tree(Path()) == make_files()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_folder_that_cannot_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(OutputError):
        in_process("demo", tmp_path / "d")
