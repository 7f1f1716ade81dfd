"""What a user does first, on Windows: the commands of the README, with the numbers that Linux
gives.

`make test-windows` runs it under wine. `EXCHANGE` names a folder: what Linux wrote there is read,
and the other way round.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable  # noqa: F401
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from subgraph.system import interrupt
from tests.helpers.facts import has_line
from tests.helpers.process_backends import until
from tests.helpers.run_command import Done, finish, start, subcut

pytestmark = pytest.mark.skipif(sys.platform != "win32", reason="the other tests do this elsewhere")
EXCHANGE = os.environ.get("EXCHANGE", "")
MOMENTS = 10
OWN = {"COLUMNS": "100"}  # an environment of its own: then the command is a process


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("with space") / "d"
    assert subcut("demo", folder, cwd=folder.parent, env=OWN).code == 0
    done = subcut("bisect", "model.onnx", "-c", "wrong.py", "-q", cwd=folder, env=OWN)
    assert done.code == 1, done
    for words in (
        "2 of 28 nodes: stem/pad, stem/pool",
        "expected 0.5535859, got 1.245568",
        "113 of 512 values differ",
    ):
        assert words in done.out
    return folder


def test_help_and_doctor(tmp_path: Path) -> None:
    assert "bisect" in subcut("--help", cwd=tmp_path, env=OWN).out
    done = subcut("doctor", cwd=tmp_path, env=OWN)
    assert done.code == 0 and re.search(r"^ort +ok", done.out, re.MULTILINE)


def test_cut(demo: Path) -> None:
    done = subcut("--start", "stem/pad", "--end", "stem/pool", "-o", "cut", cwd=demo, env=OWN)
    assert done.code == 0 and "bit-identical" in done.out
    files = json.loads(
        (demo / "cut/stem_pad__stem_pool/manifest.json").read_text(encoding="utf-8")
    )["files"]
    assert not [name for name in files if "\\" in name]


def test_compare(demo: Path) -> None:
    done = subcut("compare", "model.onnx", "-c", "wrong.py", cwd=demo, env=OWN)
    assert done.code == 1 and has_line(done.out, "25 of 28 wrong")


COMMAND = """
import json, sys, pathlib, numpy, onnxruntime
model, inputs, outputs = map(pathlib.Path, sys.argv[1:])
session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
feeds = {i.name: numpy.load(next(inputs.glob("*.npy"))) for i in session.get_inputs()}
for k, (name, value) in enumerate(zip([o.name for o in session.get_outputs()], session.run(None, feeds))):
    numpy.save(outputs / f"{name}.npy", value)
"""  # noqa: E501


def test_command_with_a_path_of_windows(demo: Path) -> None:
    r"""Its `\` stay."""
    (demo / "my runner").mkdir()
    (demo / "my runner/run.py").write_text(COMMAND, encoding="utf-8")
    line = rf'cmd:"{sys.executable}" "{demo}\my runner\run.py" {{model}} {{inputs}} {{outputs}}'
    done = subcut("compare", "model.onnx", "-c", line, "--no-nodes", cwd=demo, env=OWN)
    if done.code == 2 and "--no-nodes" in done.err:
        done = subcut("bisect", "model.onnx", "-c", line, cwd=demo, env=OWN)
    assert done.code == 0, done


def test_replay_and_the_script_of_a_case(demo: Path) -> None:
    culprit = "subcut_out/bisect-wrong.py/culprit"
    assert subcut("replay", culprit, "-c", "wrong.py", cwd=demo, env=OWN).code == 1
    script = subprocess.run(
        [sys.executable, f"{culprit}/repro.py"],
        cwd=demo,
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    assert "bit-identical" in script.stdout


def test_blame(demo: Path) -> None:
    done = subcut("blame", "subcut_out/bisect-wrong.py", "--trust", cwd=demo, env=OWN)
    assert done.code in (0, 1) and "stem/p" in done.out, done


@pytest.mark.slow
def test_sweep(tmp_path: Path) -> None:
    done = subcut("sweep", "-c", "onnx-reference", "--only", "relu", cwd=tmp_path, env=OWN)
    assert done.code == 0 and "2 right" in done.out


def test_recording(demo: Path) -> None:
    """The reference's own values, of which one is made wrong."""
    dumped = subcut("dump", "model.onnx", "--all", "-o", "dumped", cwd=demo, env=OWN)
    assert dumped.code == 0, dumped
    done = subcut("compare", "model.onnx", "--recorded", "dumped", cwd=demo, env=OWN)
    assert done.code in (0, 5), done
    file = next((demo / "dumped").rglob("*stem_pool*.npy"))
    np.save(file, np.load(file) + 1)
    done = subcut("compare", "model.onnx", "--recorded", "dumped", cwd=demo, env=OWN)
    assert done.code == 1 and "stem/pool" in done.out, done


def test_bundle_has_no_home(demo: Path, tmp_path: Path) -> None:
    done = subcut(
        *"bundle subcut_out/bisect-wrong.py --candidate-files wrong.py -o".split(),
        tmp_path / "b.zip",
        cwd=demo,
        env=OWN,
    )
    assert done.code == 0, done
    found = subcut("replay", tmp_path / "b.zip", "-c", demo / "wrong.py", cwd=tmp_path, env=OWN)
    assert found.code == 1
    if EXCHANGE:
        shutil.copy(tmp_path / "b.zip", Path(EXCHANGE, "windows.zip"))


@pytest.mark.skipif(not EXCHANGE, reason="nothing came from Linux")
def test_folder_written_on_linux_is_read(tmp_path: Path) -> None:
    linux = tmp_path / "linux"
    shutil.copytree(Path(EXCHANGE, "linux"), linux)
    (tmp_path / "other").mkdir()
    zipped = (linux / "linux.zip", "-c", linux / "wrong.py")
    assert subcut("replay", *zipped, cwd=tmp_path / "other", env=OWN).code == 1
    culprit = "subcut_out/bisect-wrong.py/culprit"
    assert subcut("replay", culprit, "-c", "wrong.py", cwd=linux, env=OWN).code == 1
    # with its store
    assert subcut("compare", "model.onnx", "-c", "wrong.py", cwd=linux, env=OWN).code == 1


def test_the_page_and_runs_started_and_stopped_from_it(demo: Path) -> None:
    view = start("view", "model.onnx", "-c", "wrong.py", "--no-browser", cwd=demo)
    assert view.stderr
    try:
        address = next(
            filter(
                None,
                (re.search(r"http://127\.0\.0\.1:(\d+)/\S*?([\w-]{16,})", s) for s in view.stderr),
            )
        )
        port = int(address[1])
        token = address[2]

        def ask(method: str, path: str, asked: Any = None) -> Any:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=100)
            connection.request(method, path, json.dumps(asked).encode(), {"X-Subcut-Token": token})
            reply = connection.getresponse()
            text = reply.read()
            connection.close()
            assert reply.status == 200, (path, reply.status, text)
            return text

        assert b"<html" in ask("GET", "/")
        shown = {"model": json.loads(ask("GET", f"/api/model?token={token}"))["key"]}
        ask("POST", "/api/run", shown | {"kind": "cut", "start": "stem/pad", "end": "stem/pool"})
        until(lambda: list(demo.glob("subcut_out/stem_pad__stem_pool/manifest.json")))
        until(lambda: not json.loads(ask("POST", "/api/stop", {}))["stopped"])  # the cut has ended
        below = psutil.Process(view.pid).children
        before = set(below(recursive=True))
        ask("POST", "/api/run", shown | {"kind": "bisect", "candidate": "wrong.py"})
        until(lambda: set(below(recursive=True)) - before)
        started = set(below(recursive=True)) - before
        assert json.loads(ask("POST", "/api/stop", {}))["stopped"]
        until(lambda: not [process for process in started if process.is_running()])
    finally:
        interrupt(view)
        view.communicate(timeout=100)


def children_of(pid: int) -> list[psutil.Process]:
    """Those of an ended process too: each keeps the number of its parent."""
    return [process for process in psutil.process_iter(["ppid"]) if process.info["ppid"] == pid]


@pytest.mark.slow
def test_killed_at_ten_moments(demo: Path, tmp_path: Path) -> None:
    """The same command goes on, and gives the same answer; nothing is left running."""
    shutil.copytree(demo, tmp_path / "d", ignore=shutil.ignore_patterns("subcut_out"))
    words = ("bisect", "model.onnx", "-c", "wrong.py", "-q")

    def run() -> Done:
        return finish(start(*words, cwd=tmp_path / "d"))

    killed = 0
    for moment in range(MOMENTS):
        process = start(*words, cwd=tmp_path / "d")
        time.sleep(0.5 + moment)
        running = process.poll() is None
        below = psutil.Process(process.pid).children(recursive=True) if running else []
        killed += running
        process.kill()
        process.communicate()
        until(
            lambda b=below, p=process.pid: not [c for c in [*b, *children_of(p)] if c.is_running()]  # type: ignore[misc]
        )
    assert killed
    done = run()
    assert done.code == 1 and has_line(done.out, "2 of 28", "stem/pad, stem/pool")
    hidden = [
        p.name
        for p in (tmp_path / "d/subcut_out").iterdir()
        if p.name.endswith((".subcut-new", ".subcut-old"))
    ]
    assert not hidden
