"""A folder with files named as modules: no Python that subcut starts imports them. Covers
`environments`."""

from __future__ import annotations

import shlex
import signal
import sys
from importlib import util
from pathlib import Path

import numpy as np
import pytest

from fixtures import toy_releases
from subgraph.cli import COMMANDS
from subgraph.commands.manage import demo
from subgraph.environments import installation, releases
from subgraph.environments.installation import Installation, make
from tests.helpers.run_command import environment, finish, start, subcut

WRONG = "../tools/wrong.py"  # the user's own code, which may import what lies beside it
LINES = {
    "bisect": f"model.onnx -c {WRONG}",
    "blame": f"model.onnx -c {WRONG}",
    "compare": f"model.onnx -c {WRONG}",
    "manual": "start model.onnx",
    "plan": "model.onnx --to fp16 --max-time 2s",
    "sweep": f"-c {WRONG} --only Abs",
    "report": "FOUND -f html -o r",
    "cut": "model.onnx -s stem/pad -e stem/pool",
    "bundle": "subcut_out/stem_pad__stem_pool -o case.zip",
    "replay": "case.zip -c ort",
    "replace": (
        "model.onnx -s stem/pad -e stem/pool --by subcut_out/stem_pad__stem_pool -o replaced.onnx"
    ),
    "remove": "model.onnx --from head/softmax -o head.onnx --tail tail.onnx",
    "merge": "head.onnx tail.onnx -o whole.onnx",
    "convert": "net.pb -o made.onnx --no-check --with 'cp model.onnx {output} --suffix {model}'",
    "inspect": "model.onnx",
    "lint": "model.onnx -c tract",
    "known": "--runtime tract",
    "draw": "model.onnx -o drawn.svg",
    "view": "model.onnx --no-browser",
    "dump": "model.onnx --all",
    "export": "input.npy -o exported --format bin",
    "demo": "another",
    "backends": "",
    "doctor": "",
}
NAMES = [
    *sys.stdlib_module_names,
    *"pip sitecustomize usercustomize subgraph packaging numpy onnx".split(),
]


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the user stands: each of these modules would leave a mark. The model lies there as
    well."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")  # without uv
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    toy_releases.releases(tmp_path / "wheels", {"1.0": "w", "1.1": "r"})
    folder = tmp_path / "here"
    folder.mkdir()
    toy_releases.model(folder)
    for name in NAMES:
        (folder / f"{name}.py").write_text("open(__file__ + '.ran', 'w').close()\n")
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.slow
def test_of_every_command(hostile: Path) -> None:
    assert LINES.keys() == set(COMMANDS)
    demo(folder=str(hostile / "demo"))
    (hostile.parent / "tools").mkdir()
    for path in (hostile / "demo").iterdir():
        path.rename(
            hostile.parent / "tools/wrong.py" if path.name == "wrong.py" else hostile / path.name
        )
    (hostile / "net.pb").write_bytes(b"\x0a\x00")
    for command, words in LINES.items():
        found = next(hostile.glob("subcut_out/bisect-*"), hostile)
        process = start(
            command,
            *shlex.split(words.replace("FOUND", str(found))),
            cwd=hostile,
            env=environment(),
        )
        if command == "view":
            assert process.stderr and "127.0.0.1" in process.stderr.readline()
            process.send_signal(signal.SIGINT)
        done = finish(process)
        assert done.code in (0, 1, 5, 130), (command, done)
        assert imported(hostile) == [], (command, done)


def imported(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*.ran"))


@pytest.mark.slow
def test_of_a_release_that_is_installed_and_run(hostile: Path) -> None:
    done = subcut(
        "compare", "toy.onnx", "-i", "toy.npy", "-c", "../wheels/toy.py==1.1", cwd=hostile, env={}
    )
    assert (done.code, imported(hostile)) == (0, []), done.err


@pytest.mark.rare
@pytest.mark.slow
def test_of_releases_that_are_tried_one_by_one(hostile: Path) -> None:
    np.save(hostile / "toy.npy", np.ones((2, 3), np.float32))
    words = ("-i", "toy.npy", "-c", "../wheels/toy.py==1.0", "--versions", "..")
    done = subcut("blame", "--json", "toy.onnx", *words, cwd=hostile, env={})
    assert (done.document["versions"]["first_right"], imported(hostile)) == ("1.1", []), done.err


@pytest.mark.slow
def test_of_a_pip_in_an_environment_of_its_own(
    hostile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where subcut's own environment has no pip."""
    monkeypatch.setattr(util, "find_spec", lambda name: None)
    made = make(Installation(("toyruntime==1.1",), alone=True))
    assert (made.is_file(), imported(hostile)) == (True, [])
    monkeypatch.setattr(installation, "make", lambda environment: made)
    assert releases.find_published("../wheels/toy.py") == ["1.0", "1.1"]
    assert imported(hostile) == []
