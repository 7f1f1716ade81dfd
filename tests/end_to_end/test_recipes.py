"""The recipes of docs/candidates/: each page is complete, its scripts compile; ssh and adb run,
also interrupted."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.recipes import PAGES, SSHD, Recipe, Sshd, prepare, recipes
from subgraph.project import load
from subgraph.runtime.candidate import Candidate, parse
from tests.helpers.facts import has_line
from tests.helpers.run_command import PATIENCE, SUBCUT, subcut
from tests.helpers.versions import with_padfusion_bug

LONGEST = 40  # lines of a script that one copies and changes
ALL = recipes()
SCRIPTS = [p for r in ALL for p in sorted(r.folder.iterdir()) if p.suffix in (".py", ".sh")]
CASE = PAGES.parent.parent / "fixtures" / "cases" / "ort_padfusion_clean"
LACKING = [str(p) for p in (SSHD, "ssh", "ssh-keygen", "tar") if shutil.which(p) is None]
with_sshd = pytest.mark.skipif(bool(LACKING), reason=f"lacks {', '.join(LACKING)}")


def _candidates(recipe: Recipe, folder: Path) -> list[Candidate]:
    """Those of the page's table, as subcut reads them."""
    (folder / "subcut.toml").write_text(recipe.table, encoding="utf-8")
    return [parse(name, load(folder)) for name in tomllib.loads(recipe.table)["candidates"]]


@pytest.mark.parametrize("recipe", ALL, ids=lambda r: r.name)
def test_page_names_its_files_and_when_it_ran_and_its_table_parses(
    recipe: Recipe, tmp_path: Path
) -> None:
    for file in recipe.folder.iterdir():
        if file.is_file():
            assert f"{recipe.name}/{file.name})" in recipe.text or file.name in recipe.text, file
    for link in re.findall(r"\]\(([^)#]+)\)", recipe.text):
        assert (PAGES / link).exists(), link
    assert recipe.last_run
    found = _candidates(recipe, tmp_path)
    assert found
    for candidate in found:
        assert candidate.backend == "cmd"
        words = " ".join(candidate.commands).split()
        named = {w.removeprefix("./") for w in words if Path(w).suffix in (".py", ".sh")}
        assert named
        assert named <= {p.name for p in recipe.folder.iterdir()}


@pytest.mark.parametrize("recipe", ALL, ids=lambda r: r.name)
def test_requirements_are_pinned(recipe: Recipe) -> None:
    assert [w for w in recipe.requirements if not re.fullmatch(r"[\w.-]+==[\w.+]+", w)] == []


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_script_is_short_and_compiles(script: Path) -> None:
    text = script.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= LONGEST
    if script.suffix == ".py":
        compile(text, str(script), "exec")
        return
    assert os.access(script, os.X_OK)
    shell = shutil.which("bash") or "sh"
    assert subprocess.run([shell, "-n", script], check=False).returncode == 0


def test_the_index_lists_each_page_and_when_it_ran() -> None:
    index = (PAGES / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| \[.+?\]\((\w+)\.md\)", index, re.MULTILINE) == [r.name for r in ALL]
    for recipe in ALL:
        row = next(line for line in index.splitlines() if f"({recipe.name}.md)" in line)
        assert recipe.last_run.removeprefix("Last run ")[:10].lower() in row, row


@pytest.fixture
def board(tmp_path: Path) -> Iterator[tuple[Path, Sshd]]:
    """The recipe's folder as its reader has it, and this machine as the board, listening."""
    place = tmp_path / "board"
    recipe = Recipe("ssh")
    prepare(recipe, place)
    shutil.copytree(CASE, place / "case")
    sshd = Sshd(tmp_path / "sshd")
    (place / "ssh_config").write_text(sshd.config(), encoding="utf-8")
    sshd.start()
    yield place, sshd
    sshd.kill()


WORDS = ("case/model.onnx", "-i", "case/input_x.npy", "-c", "board", "--trust")


@pytest.mark.slow
@with_sshd
@with_padfusion_bug
def test_board_over_ssh_gives_its_values_and_keeps_nothing(
    board: tuple[Path, Sshd], tmp_path: Path
) -> None:
    """A real bug of onnxruntime, seen over the wire."""
    place, _ = board
    rooms = tmp_path / "rooms"
    rooms.mkdir()
    script = place / "board.py"
    keeps = (
        f"import os, pathlib\n(pathlib.Path({str(rooms)!r}) /"
        " os.path.basename(os.getcwd())).touch()\n"
    )
    script.write_text(keeps + script.read_text(encoding="utf-8"), encoding="utf-8")
    done = subcut("compare", *WORDS, "--at", "/pool/*", cwd=place)
    assert (done.code, has_line(done.out, "FAIL   logits")) == (1, True), done.out + done.err
    assert list(rooms.iterdir())
    assert [p for p in rooms.iterdir() if (Path("/tmp") / p.name).exists()] == []


@pytest.mark.slow
@with_sshd
def test_exit_code_and_a_crash_on_the_board_arrive_as_such(board: tuple[Path, Sshd]) -> None:
    place, _ = board
    (place / "board.py").write_text("import sys; sys.exit(125)\n", encoding="utf-8")
    done = subcut("compare", *WORDS, "--at", "/pool/*", cwd=place)
    # not even one Relu runs there
    assert (done.code, done.problem) == (4, "candidate.runs-nothing")
    (place / "board.py").write_text("import os; os.kill(os.getpid(), 11)\n", encoding="utf-8")
    done = subcut("compare", *WORDS, "--at", "/pool/*", cwd=place)
    assert (done.code, "SIGSEGV" in done.err) == (4, True), done.out + done.err


@pytest.mark.slow
@with_sshd
def test_connection_cut_midway_is_no_verdict_and_the_same_command_goes_on(
    board: tuple[Path, Sshd],
) -> None:
    place, sshd = board
    script = place / "board.py"
    started = place / "started"
    whole = script.read_text(encoding="utf-8")
    waits = f"import pathlib, time\nif not pathlib.Path({str(place / 'go')!r}).exists():\n"
    waits += f"    pathlib.Path({str(started)!r}).touch()\n    time.sleep(600)\n"
    script.write_text(waits + whole, encoding="utf-8")
    command = ("bisect", *WORDS)
    running = subprocess.Popen(
        [SUBCUT, *command], cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while not started.exists():
        assert running.poll() is None
    sshd.kill()  # with a run under way
    _, err = running.communicate(timeout=PATIENCE)
    assert (running.returncode, has_line(err, "lost, 3")) == (4, True), err
    sshd.start()
    (place / "go").touch()
    again = subcut(*command, cwd=place)
    assert again.code == 1, again.err
    assert has_line(again.out, "/pad/Pad", "/pool/MaxPool")


# In the place of adb: the phone is a folder, which answers as long as there is a cable.
ADB = """#!/bin/sh
phone={phone}
[ -e "$phone/cable" ] || {{ echo "error: no devices/emulators found" >&2; exit 1; }}
case $1 in
get-state) echo device ;;
push) shift; for last; do :; done; while [ $# -gt 1 ]; do cp "$1" "$phone$last/"; shift; done ;;
pull) cp -r "$phone$2" "$3" ;;
shell) sh -c "$(echo "$2" | sed "s#/data/#$phone/data/#g")" ;;
esac
"""
# In the place of the program that runner.cpp is on a phone.
RUNNER = f"""#!{sys.executable}
import os, pathlib, sys
import numpy as np, onnxruntime
phone = pathlib.Path(__file__).parents[4]
with open(phone / "runs", "a") as runs:
    print(os.path.basename(os.getcwd()), file=runs)
if (phone / "pulled").exists():
    (phone / "cable").unlink(missing_ok=True)
    sys.exit(1)
if "logits" in open(sys.argv[2]).read() and (phone / "ends").exists():
    code = int((phone / "ends").read_text())
    os.kill(os.getpid(), code - 128) if code > 128 else sys.exit(code)
feeds, outputs = dict(), dict()
for line in open(sys.argv[2]):
    kind, file, rest = line.strip().split(" ", 2)
    if kind == "out":
        outputs[rest] = file
        continue
    number, rank, *words = rest.split(" ")
    sizes, name = words[: int(rank)], " ".join(words[int(rank) :])
    feeds[name] = np.fromfile(file, {{"1": "f4", "7": "i8"}}[number]).reshape(list(map(int, sizes)))
session = onnxruntime.InferenceSession(sys.argv[1])
for file, value in zip(outputs.values(), session.run(list(outputs), feeds)):
    value.tofile("outputs/" + file)
"""


@pytest.fixture
def phone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The recipe's folder as its reader has it, with a case; the folder that is the phone."""
    place = tmp_path / "recipe"
    phone = tmp_path / "phone"
    prepare(Recipe("adb"), place)
    shutil.copytree(CASE, place / "case")
    there = phone / "data" / "local" / "tmp" / "subcut"
    for file, text in (
        (there / "runner", RUNNER),
        (tmp_path / "bin" / "adb", ADB.format(phone=phone)),
    ):
        file.parent.mkdir(parents=True)
        file.write_text(text, encoding="utf-8")
        file.chmod(0o755)
    (place / "runner").touch()  # as built there
    (phone / "cable").touch()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    return place, phone


PHONE = ("case/model.onnx", "-i", "case/input_x.npy", "-c", "phone", "--trust", "--at", "/pool/*")


@pytest.mark.slow
@with_padfusion_bug
def test_phone_over_adb_gives_its_values_and_keeps_nothing(phone: tuple[Path, Path]) -> None:
    """A real bug of onnxruntime, seen over the cable."""
    place, folder = phone
    done = subcut("compare", *PHONE, cwd=place)
    assert (done.code, has_line(done.out, "FAIL   logits")) == (1, True), done.out + done.err
    assert (folder / "runs").read_text(encoding="utf-8")
    assert [p.name for p in (folder / "data" / "local" / "tmp" / "subcut").iterdir()] == ["runner"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ends", "code", "says"), [(125, 1, "cannot be tested"), (139, 1, "SIGSEGV")]
)
def test_exit_code_of_a_program_on_the_phone_arrives(
    phone: tuple[Path, Path], ends: int, code: int, says: str
) -> None:
    place, folder = phone
    (folder / "ends").write_text(str(ends), encoding="utf-8")
    done = subcut("compare", *PHONE, cwd=place)
    assert (done.code, says in done.out) == (code, True), done.out + done.err


@pytest.mark.slow
def test_cable_that_is_pulled_is_no_verdict_and_the_same_command_goes_on(
    phone: tuple[Path, Path],
) -> None:
    place, folder = phone
    (folder / "pulled").touch()  # in the middle of a run
    done = subcut("compare", *PHONE, cwd=place)
    assert (done.code, has_line(done.err, "lost, 3")) == (4, True), done.out + done.err
    (folder / "pulled").unlink()
    (folder / "cable").touch()
    assert subcut("compare", *PHONE, cwd=place).code == 1
