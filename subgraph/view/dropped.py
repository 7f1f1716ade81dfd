"""A file that was dropped onto the page -> what it holds, in a line, before anything runs on it."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np

from subgraph.errors import InputError
from subgraph.storage.tensors import read_npy, shape_text
from subgraph.text import clean, count

if TYPE_CHECKING:
    from subgraph.types import Array

BLOCK = 1 << 22  # elements that are looked at together
MAX_LISTED = 6  # arrays of an .npz


def looked_at(path: Path, suffix: str) -> str:
    """`float32 1×3×224×224, -2.1 … 2.6`, with counts of NaN and Inf; of an image its size and
    channels.

    Complexity: one pass over the values; of an image only the head is read.

    Raises:
        InputError: it is no such file, or damaged.
    """
    if suffix == ".npy":
        try:
            return _array(read_npy(path, mapped=True))
        except InputError as e:
            raise InputError(
                "not an .npy file without Python objects",
                "write it with numpy.save",
                code="tensor.unreadable",
            ) from e
    return _archive(path) if suffix == ".npz" else _image(path)


def _array(array: Array) -> str:

    told = f"{array.dtype} {shape_text(array.shape)}"
    if array.dtype.kind not in "biuf" or not array.size:
        return told
    nan = inf = 0
    least = np.inf
    most = -np.inf
    flat = array.reshape(-1)
    for k in range(0, flat.size, BLOCK):
        block = flat[k : k + BLOCK]
        fine = block[np.isfinite(block)]
        nan += int(np.isnan(block).sum())
        inf += int(np.isinf(block).sum())
        if fine.size:
            least, most = min(least, float(fine.min())), max(most, float(fine.max()))
    parts = [told, *([f"{least:.4g} … {most:.4g}"] if least <= most else [])]
    return ", ".join([*parts, *(f"{n:,} {what}" for n, what in ((nan, "NaN"), (inf, "Inf")) if n)])


def _archive(path: Path) -> str:

    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.endswith(".npy")]
            told = []
            for name in names[:MAX_LISTED]:
                with archive.open(name) as file:
                    head = np.lib.format.read_array_header_1_0 if _version(file) == (1, 0) else None
                    shape, _, dtype = (
                        head(file) if head else np.lib.format.read_array_header_2_0(file)
                    )
                told.append(f"{clean(name.removesuffix('.npy'))}: {dtype} {shape_text(shape)}")
    except (OSError, ValueError, RuntimeError, EOFError, zipfile.BadZipFile) as e:
        raise InputError(
            f"not an .npz file: {clean(str(e))}",
            "write it with numpy.savez",
            code="tensor.unreadable",
        ) from e
    more = len(names) - MAX_LISTED
    return (
        "; ".join([*told, *([f"and {count(more, 'array')} more"] if more > 0 else [])])
        or "no array"
    )


def _version(file: IO[bytes]) -> tuple[int, int]:

    found: tuple[int, int] = np.lib.format.read_magic(file)
    return found


def _image(path: Path) -> str:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            return f"image {image.width}×{image.height}, {image.mode}"
    except (OSError, UnidentifiedImageError, ValueError, Image.DecompressionBombError) as e:
        raise InputError(
            "not an image that can be read",
            "give a .png, .jpg or .bmp",
            code="input.unreadable-image",
        ) from e
