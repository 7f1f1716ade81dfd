"""Kills, full disks, concurrent runs, crashing runtimes, hostile files: results are whole, and
nothing hangs.

Every run is a process of its own. Its workers inherit a mark in the environment, by which survivors
are found.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import subgraph
from tests.helpers import text_models
from tests.helpers.chain_models import chain
from tests.helpers.disks import fill, limit_files, read_only
from tests.helpers.process_backends import MARK, all_gone, until
from tests.helpers.run_command import NO_BYTECODE, PATIENCE, finish, manifest, start, subcut, tree

PACKAGE = Path(subgraph.__file__).parent.parent
EDGE = ("-s", "pool1", "-e", "res2a_relu")
PLACE = "subcut_out/pool1__res2a_relu"


def told(folder: Path) -> dict[str, bytes]:
    """A result's files, all but the log, which has times in it."""
    manifest(folder)
    return {name: data for name, data in tree(folder).items() if name != "log.txt"}


def expected(folder: Path, *words: str) -> dict[str, bytes]:
    """What an undisturbed run of these words leaves."""
    aside = f"expected_{len(list(folder.iterdir()))}"
    assert subcut(*EDGE, *words, "-o", aside, cwd=folder).code == 0
    found = told(folder / aside / "pool1__res2a_relu")
    shutil.rmtree(folder / aside)
    return found


def fake(folder: Path, body: str) -> dict[str, str]:
    """An environment in which the process that runs the model does `body` when asked to run."""
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(
        "import os, signal, sys, time\n"
        "if sys.argv[0] == '-m':\n"
        "    import subgraph.runtime.backends.ort as ort\n"
        "    def run(self, feeds):\n"
        f"        {body}\n"
        "    ort._Session.__call__ = run\n"
    )
    return {"PYTHONPATH": f"{folder}{os.pathsep}{PACKAGE}"}


# ------------------------------------------------------------ kills


def undisturbed(here: Path) -> float:
    """Seconds that a run takes."""
    begin = time.monotonic()
    assert subcut(*EDGE, cwd=here).code == 0
    return time.monotonic() - begin


def inode(path: Path) -> int | None:
    return path.stat().st_ino if path.exists() else None


def kill_all_along(here: Path, moments: int, mark: dict[str, str]) -> list[str]:
    """Kill first runs and replacing runs at moments spread over a run; say what was left each time.

    The last of either kind are killed when their result has appeared: no clock knows that moment.
    """
    old = expected(here)
    new = expected(here, "--seed", "1")
    last = undisturbed(here) * 1.1
    left = []
    for k in range(moments):
        replaces = k % 2 == 1
        shutil.rmtree(here / "subcut_out", ignore_errors=True)
        if replaces:
            assert subcut(*EDGE, cwd=here).code == 0
        before = inode(here / PLACE)
        run = start(*EDGE, "--seed", "1", "--force", cwd=here, env=mark)
        if k < moments - 2:
            time.sleep(last * k / moments)
        else:
            until(lambda: inode(here / PLACE) not in (None, before))  # noqa: B023
        run.kill()
        finish(run)
        if (here / PLACE).exists():
            found = told(here / PLACE)
            assert found in ((old, new) if replaces else (new,))
            left.append("old" if found == old else "new")
        else:
            assert not replaces
            left.append("nothing")
        if k % 4 > 1:  # the next run sweeps
            assert subcut(*EDGE, "--seed", "1", "--force", cwd=here).code == 0
            assert [p.name for p in (here / "subcut_out").iterdir()] == ["pool1__res2a_relu"]
            assert told(here / PLACE) == new
    return left


@pytest.mark.slow
@pytest.mark.timeout(900)  # each run to another moment
def test_kill_9_leaves_the_old_result_or_the_new_one(here: Path, mark: dict[str, str]) -> None:
    assert {"nothing", "old", "new"} <= set(kill_all_along(here, 28, mark))


def test_kill_9_in_the_middle_of_the_models_run_ends_the_worker(
    here: Path, tmp_path: Path, mark: dict[str, str]
) -> None:
    run = start(
        *EDGE, cwd=here, env=mark | fake(tmp_path / "fake", "open('running', 'w'); time.sleep(600)")
    )
    wait_for(here / "running", run)
    run.kill()
    finish(run)
    all_gone(mark[MARK])
    (here / "running").unlink()
    hidden = [p.name for p in (here / "subcut_out").iterdir()]
    assert len(hidden) == 1
    assert hidden[0].startswith(".")
    assert subcut("dump", "conv1", cwd=here).code == 0
    assert [p.name for p in (here / "subcut_out").iterdir()] == ["dump"]


def wait_for(path: Path, run: subprocess.Popen[str]) -> None:
    until(lambda: path.exists() or run.poll() is not None)
    assert run.poll() is None, finish(run)


@pytest.mark.turns(2)
@pytest.mark.parametrize(
    ("number", "group", "old", "code"),
    [
        (signal.SIGINT, False, True, 130),
        (signal.SIGINT, True, False, 130),
        (signal.SIGTERM, False, False, 143),
        (signal.SIGTERM, True, True, 143),
    ],
)
def test_signal_leaves_the_old_result_and_no_other_file(
    number: int, group: bool, old: bool, code: int, here: Path, tmp_path: Path, mark: dict[str, str]
) -> None:
    """`old`: there is an earlier result, which stays."""
    env = mark | fake(tmp_path / "fake", "open('running', 'w'); time.sleep(600)")
    if old:
        assert subcut(*EDGE, cwd=here).code == 0
    before = tree(here)
    run = start(*EDGE, "--seed", "1", "--force", cwd=here, env=env)
    wait_for(here / "running", run)
    (os.killpg if group else os.kill)(run.pid, number)
    done = finish(run)
    assert (done.code, done.out) == (code, "")
    said = done.err.splitlines()[1:]
    assert said == (["error: interrupted"] if number == signal.SIGINT else [])
    all_gone(mark[MARK])
    (here / "running").unlink()
    assert tree(here) == before
    assert (here / "subcut_out").exists() == old


def test_ctrl_c_with_json_is_one_document(here: Path, tmp_path: Path, mark: dict[str, str]) -> None:
    env = mark | fake(tmp_path / "fake", "open('running', 'w'); time.sleep(600)")
    run = start(*EDGE, "--json", cwd=here, env=env)
    wait_for(here / "running", run)
    run.send_signal(signal.SIGINT)
    done = finish(run)
    assert done.code == 130
    assert done.document["exit_code"] == 130
    assert done.document["error"]["kind"] == "Interrupted"


@pytest.mark.slow
@pytest.mark.parametrize("group", [False, True])
def test_ctrl_c_at_any_moment_leaves_a_whole_result_or_none(
    group: bool, here: Path, mark: dict[str, str]
) -> None:
    """Before Python has read our code it ends in its own way: mostly by the signal, which a shell
    calls 130 too."""
    new = expected(here)
    last = undisturbed(here)
    for k in range(12):
        shutil.rmtree(here / "subcut_out", ignore_errors=True)
        run = start(*EDGE, cwd=here, env=mark)
        time.sleep(last * k / 12)
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if group else os.kill)(run.pid, signal.SIGINT)
        # Python's own words before it has read our code may be a traceback
        _, err = run.communicate(timeout=PATIENCE)
        assert run.returncode in (130, -signal.SIGINT, 0) or "KeyboardInterrupt" in err, err
        if (here / "subcut_out").exists():
            assert told(here / PLACE) == new
            assert [p.name for p in (here / "subcut_out").iterdir()] == ["pool1__res2a_relu"]
        else:
            assert run.returncode != 0


# ------------------------------------------------------------ full disks


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [EDGE, (*EDGE, "--no-capture"), ("dump", "--all"), ("export", "case")]
)
def test_full_disk_is_exit_74_and_leaves_nothing(
    words: tuple[str, ...], here: Path, disk: Callable[[str], Path], mark: dict[str, str]
) -> None:
    assert subcut(*EDGE, "-o", ".", "--dump", "all", cwd=here).code == 0
    (here / "pool1__res2a_relu").rename(here / "case")
    codes = []
    for size in (4, 24, 64, 128, 192):  # KiB
        root = disk(f"size={size}k")
        done = subcut(*words, "-o", root / "out/x", "--json", cwd=here, env=mark)
        codes.append(done.code)
        if done.code:
            assert (done.code, done.problem) == (74, "output.unwritable")
        assert [p.name for p in root.iterdir()] == ([] if done.code else ["out"])
        shutil.rmtree(root / "out", ignore_errors=True)
    assert codes[0] == 74


def test_full_disk_keeps_the_old_result(here: Path, disk: Callable[[str], Path]) -> None:
    root = disk("size=250k")
    assert subcut(*EDGE, "-o", root, cwd=here).code == 0
    before = tree(root)
    fill(root / "ballast")
    os.truncate(root / "ballast", (root / "ballast").stat().st_size - (40 << 10))
    done = subcut(*EDGE, "-o", root, "--seed", "1", "--force", cwd=here)
    assert done.code == 74
    assert {k: v for k, v in tree(root).items() if k != "ballast"} == before
    assert sorted(p.name for p in root.iterdir()) == ["ballast", "pool1__res2a_relu"]


@pytest.mark.slow
@pytest.mark.parametrize("limit", [0, 100, 3000, 9000, 20000])
def test_limit_of_file_sizes_is_exit_74_and_leaves_nothing(
    limit: int, here: Path, mark: dict[str, str]
) -> None:
    done = subcut(*EDGE, cwd=here, env=mark | NO_BYTECODE, preexec_fn=limit_files(limit))
    assert (done.code, done.out) == (74, "")
    assert [p.name for p in here.iterdir()] == ["resnet50.onnx"]


@pytest.mark.parametrize("words", [EDGE, ("dump", "conv1")])
def test_read_only_output_is_exit_74(words: tuple[str, ...], here: Path, tmp_path: Path) -> None:
    with read_only(tmp_path / "shut") as shut:
        done = subcut(*words, "-o", shut / "x", cwd=here)
    assert (done.code, done.problem, done.out) == (74, "output.unwritable", "")


# ------------------------------------------------------------ two at once


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [(0, 1), (0, 1, 2, 3, 4), (0,) * 5], ids=str)
def test_runs_at_once_do_not_mix(seeds: tuple[int, ...], here: Path, mark: dict[str, str]) -> None:
    """With the same arguments, no run needs --force."""
    wholes = [expected(here, "--seed", str(seed)) for seed in {*seeds}]
    assert len({whole["outputs/res2a.npy"] for whole in wholes}) == len({*seeds})
    force = ("--force",) if len(wholes) > 1 else ()
    for _ in range(2):
        runs = [start(*EDGE, "--seed", str(s), *force, cwd=here, env=mark) for s in seeds]
        for done in map(finish, runs):
            assert done.code == 0, done.err
        assert told(here / PLACE) in wholes
        assert [p.name for p in (here / "subcut_out").iterdir()] == ["pool1__res2a_relu"]


@pytest.mark.slow
def test_without_force_the_first_result_stays(here: Path, mark: dict[str, str]) -> None:
    """Runs that find nothing at the start may all end well; whoever starts later is refused."""
    wholes = [expected(here, "--seed", str(seed)) for seed in range(3)]
    runs = [start(*EDGE, "--seed", str(s), cwd=here, env=mark) for s in range(3)]
    assert {done.code for done in map(finish, runs)} <= {0, 2}
    assert told(here / PLACE) in wholes


# ------------------------------------------------------------ crashing runtimes


@pytest.mark.parametrize(
    ("body", "code", "problem"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", 4, "worker.died"),
        ("os.abort()", 4, "worker.died"),
        ("raise KeyError('no such thing')", 3, "backend.run-failed"),
    ],
)
def test_crash_of_the_reference_leaves_nothing(
    body: str, code: int, problem: str, here: Path, tmp_path: Path, mark: dict[str, str]
) -> None:
    done = subcut(*EDGE, "--json", cwd=here, env=mark | fake(tmp_path / "fake", body))
    assert (done.code, done.problem) == (code, problem)
    assert [p.name for p in here.iterdir()] == ["resnet50.onnx"]


# ------------------------------------------------------------ hostile files


def outside(folder: Path, location: str, length: int = 16384) -> None:
    """Save a model whose weight is in the file `location`."""
    weight = TensorProto(name="w", dims=[length // 4], data_type=TensorProto.FLOAT)
    weight.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("length", str(length))):
        weight.external_data.add(key=key, value=value)
    size = f"float[{length // 4}]"
    model = text_models.model(
        f"g ({size} x) => ({size} y) {{ [relu] r = Relu (x) [add] y = Add (r, w) }}"
    )
    model.graph.initializer.append(weight)
    onnx.save(model, folder / "model.onnx")


HOSTILE = ["above", "absolute", "link", "link above", "fifo", "folder", "missing", "short", "empty"]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        *((kind, ("--dump", "all")) for kind in HOSTILE),
        ("above", ()),
        ("above", ("--no-capture",)),
        ("fifo", ()),
    ],
)
def test_hostile_weights_are_refused(kind: str, words: tuple[str, ...], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    secret = tmp_path / "secret"
    secret.write_bytes(np.ones(4096, np.float32).tobytes())
    location = {
        "above": "../secret",
        "absolute": str(secret),
        "link above": "sub/../link",
        "empty": "",
    }.get(kind, "data")
    if kind in ("link", "link above"):
        (folder / ("data" if kind == "link" else "link")).symlink_to(secret)
    elif kind == "fifo":
        os.mkfifo(folder / "data")
    elif kind == "folder":
        (folder / "data").mkdir()
    elif kind == "short":
        (folder / "data").write_bytes(bytes(100))
    outside(folder, location)
    before = sorted(p.name for p in folder.iterdir())
    done = subcut("model.onnx", "-s", "relu", "-e", "add", *words, cwd=folder)
    assert (done.code, done.out) == (3, ""), done
    assert re.match(r"error: .*'w'.*\n(  \S.*\n)?$", done.err), done.err
    assert sorted(p.name for p in folder.iterdir()) == before


def test_cases_manifest_may_not_reach_outside(here: Path, tmp_path: Path) -> None:
    """Cases are mailed: what a manifest names is read and written below its own folder only."""
    np.save(tmp_path / "secret.npy", np.ones(3, np.float32))
    for file in ("../../secret.npy", str(tmp_path / "secret.npy")):
        assert subcut("dump", "conv1", "-o", "case", "--force", cwd=here).code == 0
        text = (here / "case/manifest.json").read_text().replace('"conv1.npy"', f'"{file}"')
        (here / "case/manifest.json").write_text(text)
        done = subcut("export", "case", "-o", "out", cwd=here)
        assert (done.code, done.problem, done.out) == (2, "recording.file-missing", "")
        assert sorted(p.name for p in here.iterdir()) == ["case", "resnet50.onnx"]
    os.mkfifo(here / "case/pipe.npy")
    (here / "case/manifest.json").write_text(text.replace(file, "pipe.npy"))
    assert subcut("export", "case", "-o", "out", cwd=here).problem == "recording.file-missing"


def test_inputs_that_would_hang_or_fill_the_memory(here: Path) -> None:
    os.mkfifo(here / "pipe.npy")
    with (here / "huge.npy").open("wb") as file:
        header = (
            np.lib.format.magic(1, 0)
            + b"v\0{'descr': '<f4', 'fortran_order': False, 'shape': (4000000000000,), }".ljust(120)
            + b"\n"
        )
        file.write(header)
    for name in ("pipe.npy", "huge.npy"):
        done = subcut(*EDGE, "-i", name, cwd=here)
        assert (done.code, done.out) == (2, ""), done
        assert name in done.err


def test_names_that_look_like_paths_stay_below_the_result(tmp_path: Path) -> None:
    """Names that look like paths stay below the result's folder."""
    folder = tmp_path / "a/b"
    folder.mkdir(parents=True)
    chain(folder / "m.onnx", ["../../x", "/etc/x"], ["../../../t"], source="../in", sink="/abs/out")
    assert subcut("-s", "../../x", "-e", "/etc/x", "--dump", "all", cwd=folder).code == 0
    assert subcut("dump", "m.onnx", "--all", cwd=folder).code == 0
    assert subcut("export", "subcut_out/dump", "-o", "out", cwd=folder).code == 0
    assert sorted(p.name for p in folder.iterdir()) == ["m.onnx", "out", "subcut_out"]
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
