"""Environments for converters and runtimes. Covers `environments.installation` and
`storage.cache`."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from fixtures.toy_releases import wheel
from subgraph.environments.installation import Installation, make
from subgraph.errors import BackendError
from subgraph.storage.folders import find_cache_folder
from tests.helpers.facts import has_line
from tests.helpers.refusals import raises
from tests.helpers.run_command import SOON

UV = f"""#!{sys.executable}
# In the place of uv: an environment is a link to this Python; each call is written down.
import os, sys
from pathlib import Path
words = sys.argv[1:]
with open(os.environ["UV_LOG"], "a") as log:
    log.write(" ".join(words) + "\\n")
if words[0] == "venv":
    (Path(words[-1]) / "bin").mkdir(parents=True, exist_ok=True)
    (Path(words[-1]) / "bin" / "python").symlink_to(sys.executable)
elif "broken==1" in words:
    sys.exit("  x No solution found\\n  because broken cannot be found at " + words[words.index("broken==1") - 1])
elif "full==1" in words:
    sys.exit("OSError: [Errno 28] No space left on device")
else:
    print("Downloading numpy (16.4MiB)\\nDownloading tiny (5.1KiB)\\nResolved 2 packages", file=sys.stderr, flush=True)
    if gate := os.environ.get("UV_GATE"):
        go = os.open(gate + "/go", os.O_RDWR)
        open(gate + "/reached", "w").close()
        os.read(go, 1)
"""  # noqa: E501


@pytest.fixture
def uv_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for uv, and what it was called with."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "uv").write_text(UV)
    (tmp_path / "bin" / "uv").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}")
    monkeypatch.setenv("UV_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "log"


class Gate:
    """Named pipes at which the stand-in for uv waits in the middle of an installation."""

    def __init__(self, folder: Path) -> None:
        self.reached = folder / "reached"
        self.go = folder / "go"
        folder.mkdir()
        os.mkfifo(self.reached)
        os.mkfifo(self.go)

    def wait(self) -> None:
        """Return when an installation has reached the gate."""
        self.reached.read_bytes()

    def open(self) -> None:
        """Let the installation go on, if its process is still there."""
        with suppress(OSError):  # it has no reader
            go = os.open(self.go, os.O_WRONLY | os.O_NONBLOCK)
            os.write(go, b".")
            os.close(go)


@pytest.fixture
def gate(uv_log: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """The gate of all installations of a test; it is open when the test ends."""
    monkeypatch.setenv("UV_GATE", str(uv_log.parent / "gate"))
    gate = Gate(uv_log.parent / "gate")
    yield gate
    gate.open()


def left_behind() -> list[str]:
    return [
        p.name for p in find_cache_folder("environments").iterdir() if not p.name.endswith(".lock")
    ]


def test_large_file_is_told_with_its_size_as_it_comes(
    uv_log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "subcut")
    make(Installation(("a==1",)))
    assert [record.getMessage().strip() for record in caplog.records] == [
        "Downloading numpy (16.4MiB)"
    ]


def test_it_is_made_once(uv_log: Path) -> None:
    wanted = Installation(("a==1", "b"), ("--find-links", "wheels"))
    assert not wanted.python.exists()
    python = make(wanted)
    assert wanted.is_ready
    assert python == wanted.python
    assert make(wanted) == python
    first, second = uv_log.read_text().splitlines()
    assert has_line(first, "venv", "--python ")
    assert has_line(second, "--find-links", "a==1")
    assert left_behind() == [wanted.folder.name]
    assert (
        Installation(("a==1",), ("--find-links", "wheels")).folder
        != wanted.folder
        != Installation(wanted.requirements).folder
    )


@pytest.mark.posix("its stand-in for uv waits at a named pipe")
def test_two_that_want_the_same_make_it_once(
    uv_log: Path, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    """The other two wait while the first one is in the middle of it."""
    caplog.set_level("INFO", "subcut")
    waiting = threading.Semaphore(0)

    def count(record: logging.LogRecord) -> bool:
        if "waiting" in record.msg:
            waiting.release()
        return True

    caplog.handler.addFilter(count)
    threads = [
        threading.Thread(target=make, args=(Installation(("a==1",)),), daemon=True)
        for _ in range(3)
    ]
    threads[0].start()
    gate.wait()
    for thread in threads[1:]:
        thread.start()
        assert waiting.acquire(timeout=SOON)
    caplog.handler.removeFilter(count)
    gate.open()
    for thread in threads:
        thread.join()
    assert len(uv_log.read_text().splitlines()) == 2


def test_full_disk_is_told_as_that(uv_log: Path) -> None:
    with pytest.raises(BackendError) as error:
        make(Installation(("full==1",)))
    assert "No space left" in error.value.what
    assert has_line(error.value.hint, "free some")
    assert left_behind() == []


def test_failed_installation_leaves_nothing(uv_log: Path) -> None:
    with raises(BackendError, "environment.install-failed", "broken") as error:
        make(Installation(("broken==1",)))
    assert "--find-links" in error.value.hint
    assert left_behind() == []


def test_failure_shows_no_login(uv_log: Path) -> None:
    with raises(BackendError, "environment.install-failed", "****@host/simple") as error:
        make(Installation(("broken==1",), ("--index-url", "https://me:p4ss@w@host/simple")))
    assert "p4ss" not in str(error.value)


@pytest.mark.posix("its stand-in for uv waits at a named pipe")
def test_killed_installation_is_made_again(
    uv_log: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "from subgraph.environments.installation import Installation, make;"
        " make(Installation(('a==1',)))"
    )
    killed = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    gate.wait()
    killed.kill()
    killed.wait()
    gate.open()
    monkeypatch.delenv("UV_GATE")
    assert not Installation(("a==1",)).is_ready
    make(Installation(("a==1",)))
    assert left_behind() == [Installation(("a==1",)).folder.name]


@pytest.mark.slow
def test_with_venv_and_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a folder of wheels, without a network."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    wheel(wheels, "tiny", "1.0", "ANSWER = 42\n")
    python = make(Installation(("tiny==1.0",), ("--find-links", str(wheels))))
    said = subprocess.run(
        [python, "-c", "import tiny; print(tiny.ANSWER)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout == "42\n"
    with raises(BackendError, "environment.install-failed", "tiny==2.0", "No matching"):
        make(Installation(("tiny==2.0",), ("--find-links", str(wheels))))


def test_cache_that_cannot_be_written_is_a_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    folder = find_cache_folder("environments")
    assert folder.is_dir()
    assert tmp_path not in folder.parents


@pytest.mark.posix("access lists are not read on Windows")
@pytest.mark.parametrize("open_folder", ["cache", "cache/subcut", "cache/subcut/environments"])
def test_cache_that_others_can_write_is_not_used(
    open_folder: str, uv_log: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    planted = find_cache_folder("environments")
    assert planted == tmp_path / "cache/subcut/environments"
    (tmp_path / open_folder).chmod(0o777)
    assert find_cache_folder("environments") != planted
    assert str(tmp_path / "cache") in caplog.text


@pytest.mark.posix("access lists are not read on Windows")
def test_environment_that_others_could_write_is_made_again(uv_log: Path) -> None:
    environment = Installation(("a==1",))
    make(environment)
    (environment.folder / "planted").touch()
    environment.folder.chmod(0o777)
    make(environment)
    assert environment.is_ready
    assert not (environment.folder / "planted").exists()
