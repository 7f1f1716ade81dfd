"""Result folders appear whole or not at all; file names are safe for any name of a tensor."""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from subgraph.errors import OutputError
from subgraph.storage import folders
from subgraph.storage.folders import (
    NEW,
    OLD,
    make_safe_name,
    make_safe_names,
    make_scratch,
    remove_leftovers,
    write_aside,
)
from subgraph.system import Lock
from tests.helpers.chain_models import chain
from tests.helpers.facts import has_line
from tests.helpers.refusals import raises
from tests.helpers.run_command import manifest, run_program, subcut, tree

NAMES = [
    *"/layer1/a:0 layer1/a:0 layer1_a_0 ../../etc/passwd .. . / : // ~ -rf".split(),
    " ",
    "a b",
    "x" * 300,
    "x" * 299 + "y",
    "red\x1b[31m\x07\n",
    "\u202eevil",
    "ünïcodé",
    "名前",
    "名字",
    *"Same same SAME con CON.txt nul lpt1 trailing. .hidden".split(),
    "tab\there",
    "*?<>|\"'\\",
    "$(touch pwned)",
    *"%s 100 manifest.json model.onnx".split(),
    "\ud800",
]
DEVICES = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)


class Terminated(BaseException):
    """What our handler of SIGTERM raises."""


def is_safe(name: str) -> bool:
    """For Linux, macOS and Windows, for shells, and for tools that know only ASCII."""
    plain = bool(re.fullmatch(r"[A-Za-z0-9_@+~][A-Za-z0-9._@+~-]*", name))
    return plain and len(name) <= 125 and not name.endswith(".") and not DEVICES.fullmatch(name)


# ------------------------------------------------------------ names


@pytest.mark.parametrize("name", ["pool1", "res2a@bn2a", "a.b-c_d+e", "conv1_relu", "x" * 120])
def test_plain_name_stays(name: str) -> None:
    assert make_safe_name(name) == name


@pytest.mark.parametrize(
    ("name", "short"), [("/layer1/conv", "layer1_conv"), ("conv:0", "conv_0"), ("a/b", "a_b")]
)
def test_path_becomes_a_name(name: str, short: str) -> None:
    assert make_safe_name(name) == short


def test_odd_names_become_safe_and_distinct() -> None:
    files = make_safe_names(NAMES)
    assert list(files) == NAMES
    for name, file in files.items():
        assert is_safe(file), (name, file)
    assert len({file.lower() for file in files.values()}) == len(NAMES)


@given(st.lists(st.text(), unique=True))
def test_any_names_become_safe_and_distinct(names: list[str]) -> None:
    files = make_safe_names(names)
    assert list(files) == names
    assert all(map(is_safe, files.values()))
    assert len({file.lower() for file in files.values()}) == len(names)


@given(st.text(alphabet="aA_/:.~2-", min_size=1, max_size=4))
def test_file_name_does_not_depend_on_its_neighbors(name: str) -> None:
    assert (
        make_safe_names([name])[name]
        == make_safe_names([name, "q", "r"])[name]
        == make_safe_name(name)
    )


def test_real_cut_with_odd_names(tmp_path: Path) -> None:
    """Node and tensor names at once, through the command, with every tensor on disk, and the script
    after it."""
    odd = [n for n in NAMES if n != "\ud800"]  # protobuf holds no lone surrogates
    nodes = [*odd, "last"]
    chain(tmp_path / "odd.onnx", nodes, odd, source="in put/0:0\n", sink="out put")
    done = subcut("-s", odd[0], "-e", "last", "--dump", "all", cwd=tmp_path)
    assert done.code == 0, done.err
    (place,) = (tmp_path / "subcut_out").iterdir()
    assert is_safe(place.name)
    told = manifest(place)
    assert [t["name"] for t in told["dump_data"]] == [*odd, "out put"]
    files = {t["name"]: t["samples"][0]["files"][0]["file"] for t in told["dump_data"]}
    assert len({file.lower() for file in files.values()}) == len(files)
    for name, file in files.items():
        assert is_safe(Path(file).name), (name, file)
        assert np.load(place / file).shape == (1, 3)
    for line in (place / "log.txt").read_text(encoding="utf-8").splitlines():
        assert re.match(
            r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (Command|Model File|Input|Output|Dump|Export|Check)",
            line,
        )
    run = run_program([sys.executable, place / "repro.py"])
    said = run.stderr.replace("Failed to create DXGI factory.\n", "")  # onnxruntime, under wine
    assert (run.returncode, said) == (0, "")
    assert run.stdout.startswith("out put: bit-identical\n")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["odd.onnx", "subcut_out"]


def quick_or_slow(names: list[str], quick: set[str]) -> list[Any]:
    """Each is a run of the command; a few of them stand for all where time matters."""
    return [
        name if name in quick else pytest.param(name, marks=[pytest.mark.slow, pytest.mark.rare])
        for name in names
    ]


@pytest.mark.parametrize(
    "name",
    quick_or_slow(
        [n for n in NAMES if n != "\ud800"],
        {"../../etc/passwd", "x" * 300, "con", "$(touch pwned)"},
    ),
)
def test_each_odd_name_alone_names_a_folder(name: str, tmp_path: Path) -> None:
    chain(tmp_path / "odd.onnx", ["first", name, "last"])
    done = subcut("-s", name, "-e", "last", "--no-capture", "--json", cwd=tmp_path)
    assert done.code == 0, done.out
    (place,) = (tmp_path / "subcut_out").iterdir()
    assert is_safe(place.name)
    assert manifest(place)["region"]["start"] == [name]


# ------------------------------------------------------------ folders


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where a result goes."""
    return tmp_path / "parent" / "place"


def write(place: Path, text: str, fails: type[BaseException] | None = None) -> None:
    """A result of two files; broken off between them by `fails`."""
    with write_aside(place) as work:
        (work / "a").write_text(text)
        if fails:
            raise fails
        (work / "b").write_text(text)


def only(place: Path, text: str) -> bool:
    return tree(place.parent) == {
        f"{place.name}/a": text.encode(),
        f"{place.name}/b": text.encode(),
    }


def test_result_appears_and_is_replaced(place: Path) -> None:
    write(place, "old")
    assert only(place, "old")
    write(place, "new")
    assert only(place, "new")
    assert [p.name for p in place.parent.iterdir()] == ["place"]


@pytest.mark.posix("permissions of Windows are others")
def test_result_has_the_users_permissions(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write(tmp_path / "place", "x")
    finally:
        os.umask(before)
    assert (tmp_path / "place").stat().st_mode & 0o777 == 0o750


@pytest.mark.parametrize("fails", [ValueError, KeyboardInterrupt, SystemExit])
def test_failure_leaves_the_old_result_or_nothing(fails: type[BaseException], place: Path) -> None:
    with pytest.raises(fails):
        write(place, "new", fails)
    assert not place.parent.exists()
    write(place, "old")
    with pytest.raises(fails):
        write(place, "new", fails)
    assert only(place, "old")
    assert len(list(place.parent.iterdir())) == 1


@pytest.mark.parametrize(
    ("number", "raises"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)]
)
@pytest.mark.posix("Windows has no SIGTERM for others")
def test_signal_waits_until_all_is_cleared(
    number: int, raises: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = shutil.rmtree

    def slow(path: Path, ignore_errors: bool = False) -> None:
        signal.raise_signal(number)
        real(path, ignore_errors)
        done.append(path)

    def terminate(*_: object) -> None:
        raise Terminated

    done: list[Path] = []
    write(tmp_path / "place", "old")
    monkeypatch.setattr(shutil, "rmtree", slow)
    before = signal.signal(signal.SIGTERM, terminate)
    try:
        with pytest.raises(raises):
            write(tmp_path / "place", "new")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert done
    assert only(tmp_path / "place", "new")


def test_parents_made_for_nothing_go_again(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^$"), make_scratch(tmp_path / "a/b/c"):
        raise ValueError
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "a").mkdir()
    with pytest.raises(ValueError, match=r"^$"), make_scratch(tmp_path / "a/b"):
        raise ValueError
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_rename_that_fails_puts_the_old_result_back(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(place, "old")
    real = Path.rename

    def rename(self: Path, target: Path) -> Path:
        if self.name.endswith(NEW):
            raise OSError(errno.EIO, "Input/output error")
        return real(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    with raises(OutputError, "output.unwritable", "Input/output error"):
        write(place, "new")
    assert only(place, "old")


def test_kill_between_two_steps_is_mended_by_the_next_run(tmp_path: Path) -> None:
    place = tmp_path / "my.place"
    write(place, "old")
    place.rename(tmp_path / f".my.place.abcd1234{OLD}")
    remove_leftovers(tmp_path)
    assert only(place, "old")
    (tmp_path / f".my.place.abcd1234{OLD}").mkdir()
    remove_leftovers(tmp_path)
    assert only(place, "old")
    assert len(list(tmp_path.iterdir())) == 1


def test_sweep_takes_only_what_killed_runs_left(tmp_path: Path) -> None:
    mine = [".config.old", ".thing.partial", ".git", f"x{NEW}"]
    for name in (*mine, f".a.1{NEW}", f".b.2{NEW}"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("mine")
    (tmp_path / f".file{NEW}").write_text("mine")
    with held(tmp_path / f".b.2{NEW}"):
        remove_leftovers(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(
        [*mine, f".b.2{NEW}", f".file{NEW}"]
    )
    remove_leftovers(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([*mine, f".file{NEW}"])


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Locked, as by a run that lives."""
    with Lock(path):
        yield


def test_run_is_not_swept_by_another(tmp_path: Path) -> None:
    with write_aside(tmp_path / "place") as work:
        (work / "a").write_text("x")
        remove_leftovers(tmp_path)
        with make_scratch(tmp_path):
            pass
        assert (work / "a").exists()


def test_folder_that_others_take_away_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another run's sweep, or its tidying of an empty parent, may come between making and
    locking."""
    real = Lock
    turns = iter(range(3))

    def lock(path: Path, *, wait: bool = True) -> Lock:
        if wait and next(turns, None) is not None:
            path.rmdir()
            path.parent.rmdir()
        return real(path, wait=wait)

    monkeypatch.setattr(folders, "Lock", lock)
    write(tmp_path / "parent/place", "x")
    assert only(tmp_path / "parent/place", "x")


@pytest.mark.posix("it takes flock away")
def test_without_locks_it_works_and_sweeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS locks no folders."""

    def flock(handle: int, what: int) -> None:
        raise OSError(errno.EBADF, "Bad file descriptor")

    monkeypatch.setattr("fcntl.flock", flock)
    (tmp_path / f".x.1{NEW}").mkdir()
    write(tmp_path / "place", "old")
    write(tmp_path / "place", "new")
    assert only(tmp_path / "place", "new")
    assert (tmp_path / f".x.1{NEW}").exists()


@pytest.mark.parametrize(
    ("parent", "code", "about"),
    [
        ("file", "output.not-folder", "in file:"),
        ("file/below", "output.not-folder", "file/below"),
        ("x" * 300, "output.unwritable", "too long"),
        ("/proc/nowhere", "output.unwritable", "in /proc/nowhere"),
        ("/proc", "output.unwritable", "in /proc"),
    ],
)
@pytest.mark.posix("places in /proc, and Linux's words")
def test_place_that_cannot_be(
    parent: str, code: str, about: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    with raises(OutputError, code, about) as e:
        write(Path(parent) / "place", "x")
    assert "-o" in e.value.hint
    assert not has_line(e.value.hint, "free some")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_full_disk_says_so(number: int, tmp_path: Path) -> None:
    with (
        pytest.raises(OutputError, match=os.strerror(number)) as e,
        write_aside(tmp_path / "place"),
    ):
        raise OSError(number, os.strerror(number))
    assert has_line(e.value.hint, "free some")
    assert list(tmp_path.iterdir()) == []


def test_numbered_folders_are_new_and_counted(tmp_path: Path) -> None:
    (tmp_path / "a" / "run1").mkdir(parents=True)
    made = [folders.make_numbered_folder(tmp_path / "a", "run") for _ in range(3)]
    assert [m.name for m in made] == ["run0", "run2", "run3"] and all(m.is_dir() for m in made)


def test_path_that_is_too_long_for_the_system_is_named_as_that(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(folders, "LONGEST_PATH", 259)
    error = folders.make_write_error(tmp_path / ("d" * 200), OSError(errno.ENOENT, "no such path"))
    assert has_line(error.what, f"{len(str(tmp_path)) + 201}", "characters")
    assert "LongPathsEnabled" in error.hint
    assert (
        "characters"
        not in folders.make_write_error(Path("d"), OSError(errno.EACCES, "denied")).what
    )
