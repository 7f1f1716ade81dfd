"""What the page says of a file as soon as it is dropped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

from subgraph.errors import InputError
from subgraph.types import Array
from subgraph.view import dropped
from tests.helpers.facts import has_line
from tests.helpers.refusals import raises


@pytest.mark.parametrize(
    ("array", "told"),
    [
        (
            np.array([[1, np.nan, np.inf], [-np.inf, -2.5, np.nan]], np.float32),
            "float32 2×3, -2.5 … 1, 2 NaN, 2 Inf",
        ),
        (np.arange(6, dtype=np.uint8), "uint8 6, 0 … 5"),
        (np.zeros((0, 3), np.float16), "float16 0×3"),
        (np.full(3, np.nan), "float64 3, 3 NaN"),
        (np.array(["a"]), "<U1 1"),
    ],
)
def test_array_is_read_from_a_page_or_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, array: Array, told: str
) -> None:
    np.save(tmp_path / "x.npy", array)
    assert dropped.looked_at(tmp_path / "x.npy", ".npy") == told
    monkeypatch.setattr(dropped, "BLOCK", 2)  # a block may hold nothing but NaN
    assert dropped.looked_at(tmp_path / "x.npy", ".npy") == told


def test_archive_and_image_are_read(tmp_path: Path) -> None:
    arrays: dict[str, Any] = {f"a{k}": np.zeros((k, 2), np.float32) for k in range(8)}
    np.savez(tmp_path / "x.npz", **arrays)
    told = dropped.looked_at(tmp_path / "x.npz", ".npz")
    assert told.startswith("a0: float32 0×2; a1: float32 1×2; ") and has_line(told, "2 arrays")
    PIL.Image.new("RGB", (40, 30)).save(tmp_path / "x.png")
    assert dropped.looked_at(tmp_path / "x.png", ".png") == "image 40×30, RGB"


@pytest.mark.parametrize(
    ("suffix", "code"),
    [
        (".npy", "tensor.unreadable"),
        (".npz", "tensor.unreadable"),
        (".png", "input.unreadable-image"),
    ],
)
@pytest.mark.parametrize("data", [b"", b"12", b"\x93NUMPY\x01\x00", b"PK\x03\x04nothing"])
def test_file_of_another_kind_than_its_name_is_refused(
    tmp_path: Path, suffix: str, code: str, data: bytes
) -> None:
    (tmp_path / "x").write_bytes(data)
    with raises(InputError, code):
        dropped.looked_at(tmp_path / "x", suffix)


def test_objects_are_not_unpickled(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([{}], object), allow_pickle=True)
    with raises(InputError, "tensor.unreadable"):
        dropped.looked_at(tmp_path / "x.npy", ".npy")
