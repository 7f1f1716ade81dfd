"""Files of a dump: none outside the folder is read, none takes more memory than its size."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from subgraph import plugins
from subgraph.errors import InputError
from subgraph.recordings import recording
from subgraph.recordings.dump_files import Files, scan
from subgraph.recordings.dumps import DumpHints, _npy
from tests.helpers.made_dumps import ONE, OURS
from tests.helpers.refusals import raises


@pytest.mark.posix("on Windows symbolic links need a privilege; there are no pipes among files")
def test_nothing_outside_the_folder_is_read(tmp_path: Path) -> None:
    (tmp_path / "secret.npy").write_bytes(b"x")
    folder = tmp_path / "dump"
    folder.mkdir()
    np.save(folder / "x.npy", ONE)
    (folder / "link.npy").symlink_to(tmp_path / "secret.npy")
    (folder / "up").symlink_to(tmp_path)
    (folder / "same.npy").symlink_to("x.npy")
    os.mkfifo(folder / "pipe.npy")
    assert [e.name for e in recording.open(folder)] == ["same", "x"]
    (folder / "manifest.json").write_text('{"tensors": [{"name": "s", "file": "../secret.bin"}]}')
    with raises(InputError, "recording.file-missing", "../secret.bin"):
        list(plugins.load("dumps", "raw").entries(scan(folder), DumpHints()))


def test_no_more_memory_than_the_file() -> None:
    files = Files(OURS, {"x": 10})
    for offset, count in ((0, 11), (11, 1), (-1, 1), (0, 1 << 60)):
        with pytest.raises(InputError):
            files.bytes("x", offset, count)
        with pytest.raises(InputError):
            files.map_part("x", offset, count)
    with raises(InputError, "recording.file-missing"):
        files.path("../README.md")
    with pytest.raises(_npy.HeaderError):
        _npy.parse(b"\x93NUMPY\x01\x00", 10)
