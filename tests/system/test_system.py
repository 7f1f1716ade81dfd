"""What every system gives: one set of names, groups that end with their parent, limits, locks,
command lines.

Covers `system`, `system.shared` and `system.windows`. Where a system does without something, the
test takes it away from this one.
"""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from subgraph import system
from tests.helpers.process_backends import until
from tests.helpers.run_command import SOON

HOME = Path(system.__file__).parent
MIB = 1 << 20
BUSY = "while True: pass"
# The lock of the interpreter is held in C for minutes: a thread of the child could not end it.
HOLDS_THE_LOCK = "import re; print('on', flush=True); re.match('(a+)+$', 'a' * 40 + 'b')"
PARENT = """
import sys, subprocess, time
from subgraph import system
{change}
child = system.ProcessGroup([sys.executable, "-c", {code!r}], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(600)
"""
KILLED_PARENT = """
import os, subprocess, sys
from subgraph import system
start = subprocess.Popen.__init__
def killed(child, *words, **options):
    start(child, *words, **options)
    print(child.pid, flush=True)
    os.kill(os.getpid(), 9)
subprocess.Popen.__init__ = killed
system.ProcessGroup([sys.executable, "-c", "import time; time.sleep(600)"], stdin=subprocess.DEVNULL)
"""  # noqa: E501
NO_KERNEL = "system.posix._kill_when_closed = lambda held, group: False"  # macOS


def names(file: str) -> set[str]:
    """What a file defines, and others may use."""
    found: set[str] = set()
    for node in ast.parse((HOME / file).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
        elif isinstance(node, ast.Assign):
            found |= {
                word.id
                for target in node.targets
                for word in ast.walk(target)
                if isinstance(word, ast.Name)
            }
    return found


def test_both_files_have_the_names_that_are_asked_for() -> None:
    for file in ("posix.py", "windows.py"):
        assert set(system.__all__) <= names(file), file


def test_both_classes_have_the_same_methods() -> None:
    trees = [
        ast.parse((HOME / file).read_text(encoding="utf-8")) for file in ("posix.py", "windows.py")
    ]
    for name in ("ProcessGroup", "Pipes", "Lock"):
        posix, windows = (
            {
                m.name: m.args
                for c in tree.body
                if isinstance(c, ast.ClassDef) and c.name == name
                for m in c.body
                if isinstance(m, ast.FunctionDef) and (m.name == "__init__" or m.name[0] != "_")
            }
            for tree in trees
        )
        assert posix.keys() == windows.keys()
        assert all(
            [a.arg for a in posix[m].args] == [a.arg for a in windows[m].args] for m in posix
        )


def is_alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize(
    "change", ["", pytest.param(NO_KERNEL, marks=pytest.mark.posix("it is in posix.py"))]
)
def test_child_ends_with_its_parent_even_while_it_holds_the_interpreters_lock(change: str) -> None:
    code = PARENT.format(change=change, code=HOLDS_THE_LOCK)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        pid = int(parent.stdout.readline())
        assert is_alive(pid)
        parent.kill()
        until(lambda: not is_alive(pid))


def test_child_ends_though_its_parent_is_killed_while_it_starts_it() -> None:
    with subprocess.Popen([sys.executable, "-c", KILLED_PARENT], stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        pid = int(parent.stdout.readline())
        parent.wait()
        until(lambda: not is_alive(pid))


def test_program_that_is_not_there_cannot_be_started() -> None:
    with pytest.raises(FileNotFoundError):
        system.ProcessGroup(["no-such-program"], stdin=subprocess.DEVNULL)


def test_command_without_input_has_none_and_its_own_exit_code() -> None:
    code = "import sys; sys.exit(7 + len(sys.stdin.read()))"
    with system.ProcessGroup([sys.executable, "-c", code], stdin=subprocess.DEVNULL) as child:
        assert child.wait(SOON) == 7


def test_long_folder_has_a_short_name(tmp_path: Path) -> None:
    folder = tmp_path.joinpath(*["a_folder"] * 12)
    folder.mkdir(parents=True)
    short = system.shorten_folder(str(folder))
    Path(short, "file").write_text("in it")
    assert (folder / "file").read_text() == "in it"
    assert sys.platform != "linux" or len(short) < 60


@pytest.mark.slow
@pytest.mark.posix("what macOS lacks is taken from Linux")
@pytest.mark.parametrize(
    ("limits", "code"),
    [
        ({"seconds": 1}, BUSY),
        ({"memory": 300 * MIB}, f"import time; x = b'x' * (600 * {MIB}); time.sleep(600)"),
    ],
)
def test_limits_that_the_system_does_not_hold_are_watched(
    limits: dict[str, Any], code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with system.ProcessGroup([sys.executable, "-c", code], **limits) as child:
        assert system.name_crash(child.wait(SOON)) == "SIGKILL"


@pytest.mark.slow
def test_processor_time_is_allowed_anew() -> None:
    with system.ProcessGroup([sys.executable, "-c", BUSY]) as child:
        child.allow(100)
        child.allow(1)
        if sys.platform != "win32":  # wine takes the limit and does not hold it
            assert child.wait(SOON) != 0


def test_output_of_an_ended_child_arrives() -> None:
    pipe = subprocess.PIPE
    code = "import sys; print(sys.stdin.readline()); print('x' * 100_000, file=sys.stderr)"
    with system.ProcessGroup(
        [sys.executable, "-c", code], stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0
    ) as child:
        pipes = system.Pipes(child)
        pipes.send(b"hel")
        pipes.send(b"lo\n")
        out = b""
        err = b""
        end = time.monotonic() + SOON
        while (not out.strip() or len(err) < 100_000) and time.monotonic() < end:
            pipes.wait(0.1)
            out, err = out + (pipes.read() or b""), err + (pipes.read_errors() or b"")
        pipes.close()
    assert (out.split(), len(err.strip())) == ([b"hello"], 100_000)


def test_lock_is_held_once(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    moved = tmp_path / "moved"
    folder.mkdir()
    code = f"""
from pathlib import Path
from typing import Any
from subgraph.system import Lock
try:
    Lock(Path({str(moved)!r}), wait=False).close()
except BlockingIOError:
    print("held")
"""
    with system.Lock(folder, name=moved.name):
        system.move(folder, moved)  # the lock goes with it
        assert subprocess.check_output([sys.executable, "-c", code]).split() == [b"held"]
    assert subprocess.check_output([sys.executable, "-c", code]) == b""
    assert not list(tmp_path.glob("*.lock"))


WORDS = ["subcut", "cut", "a b", r"C:\x\y z\m.onnx", "{model}", "pool1,conv2", "--opt=a;b", ""]


def test_words_of_a_command_line_are_found_again() -> None:
    assert system.split(system.join(WORDS)) == WORDS


@pytest.mark.skipif(sys.platform != "win32", reason="Windows' own words")
def test_windows_keeps_backslashes() -> None:
    assert system.split(r'C:\tools\run.exe "C:\my models\m.onnx" {model}') == [
        r"C:\tools\run.exe",
        r"C:\my models\m.onnx",
        "{model}",
    ]
    assert system.join([r"C:\a\m.onnx", "a b", 'say "x"']) == r'C:\a\m.onnx "a b" "say \"x\""'


@pytest.mark.posix("a shell's `&` is meant")
def test_request_to_end_is_heard_where_a_shell_has_the_interrupt_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(KeyboardInterrupt), system.interrupt_on_termination():
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.posix("access lists are not read on Windows")
@pytest.mark.parametrize(
    ("mode", "as_place", "as_parent"),
    [
        (0o755, True, True),
        (0o777, False, False),
        (0o757, False, False),
        (0o1777, False, True),
        (0o775, False, False),
    ],
)
def test_only_what_nobody_else_can_write_is_private(
    mode: int, as_place: bool, as_parent: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("subgraph.system.posix.is_group_of_one_user", lambda group: False)
    place = tmp_path / "place"
    inner = tmp_path / "place" / "inner"
    inner.mkdir(parents=True)
    place.chmod(mode)
    assert system.is_private(place) == as_place
    assert system.is_private(inner, place) == as_parent


@pytest.mark.posix("access lists are not read on Windows")
def test_folder_of_another_user_is_not_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "place").mkdir()
    owner = tmp_path.stat().st_uid
    if sys.platform != "win32" and owner == 0:
        os.chown(tmp_path / "place", 1, -1)
    else:
        monkeypatch.setattr("os.geteuid", lambda: owner + 1)
    assert not system.is_private(tmp_path / "place")


@pytest.mark.posix("Windows has jobs, not control groups")
@pytest.mark.parametrize("version", [1, 2])
def test_free_memory_is_within_that_of_the_container(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "memory" if version == 1 else tmp_path
    names = ("max", "current", "inactive_file")
    if version == 1:
        names = ("limit_in_bytes", "usage_in_bytes", "total_inactive_file")
    folder.mkdir(exist_ok=True)
    (folder / f"memory.{names[0]}").write_text(f"{100 << 20}\n")
    (folder / f"memory.{names[1]}").write_text(f"{60 << 20}\n")
    (folder / "memory.stat").write_text(f"anon 5\n{names[2]} {10 << 20}\n")
    monkeypatch.setattr("subgraph.system.posix.GROUPS", tmp_path)
    assert 40 << 20 < system.measure_free_memory() <= 50 << 20
    (folder / f"memory.{names[0]}").write_text("max\n")
    assert system.measure_free_memory() > 50 << 20
