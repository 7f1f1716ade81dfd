"""`storage.watched`: what was written over since it was added."""

import os
from pathlib import Path

import pytest

from subgraph.runtime.reference_values import Watched


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "x.npy"
    path.write_bytes(b"abc")
    return path


def test_another_size_and_another_time_are_a_change(file: Path, tmp_path: Path) -> None:
    watched = Watched()
    watched.add([str(file)])
    assert watched.changed([str(file), str(tmp_path / "unknown")]) == ""
    before = file.stat()
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1000))
    assert watched.changed([str(file)]) == str(file)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert watched.changed([str(file)]) == ""
    file.write_bytes(b"abcd")
    watched.add([str(file)])  # it stays as it was
    assert watched.changed([str(file)]) == str(file)


def test_removed_process_is_none(file: Path) -> None:
    watched = Watched()
    watched.add([str(file), f"{file}.none"])
    file.unlink()
    assert watched.changed([str(file), f"{file}.none"]) == ""
