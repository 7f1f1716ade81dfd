"""The files of a dump, which are not trusted: none outside the folder, none beyond its own size."""

from __future__ import annotations

import errno
import json
import math
import os
import pickle
import re
import stat
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np

from subgraph.errors import InputError
from subgraph.storage.tensors import MIN_MAPPED
from subgraph.types import Array, Shape, Strings, frozen

MAX_RANK = 64  # dimensions; numpy's limit
MAX_TEXT = 256 << 20  # bytes of a list or a JSON; that of a model of 50,000 nodes has 100 MB
HEAD_BYTES = 4096  # read to recognize a file
# Errors of a file that contradicts its format: a list that lacks a key, text that is not a number,
# an archive that is damaged, encrypted, or of a kind that Python does not read.
FORMAT_ERRORS = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    OSError,
    RuntimeError,
    StopIteration,
    TypeError,
    ValueError,
    pickle.UnpicklingError,
    zipfile.BadZipFile,
    zlib.error,
)
ZIP = b"PK\x03\x04"
HINT = "check that it is complete, and of the format that was named"


class DamagedFile(InputError):
    """A file that contradicts its format; `file`: its name in the folder."""

    file = ""


@frozen
class Files:
    """Regular files below a folder, in natural order; hidden ones are omitted.

    Attributes:
        root: the folder.
        sizes: path relative to the folder -> bytes.
    """

    root: Path
    sizes: Mapping[str, int] = field(repr=False)

    @property
    def names(self) -> Strings:
        return tuple(self.sizes)

    def ending(self, *ends: str) -> list[str]:
        """Return the files with one of these ends."""
        return [n for n in self.sizes if n.lower().endswith(ends)]

    def path(self, name: str) -> Path:
        """Return the path of a listed file.

        Raises:
            InputError: it is not listed.
        """
        if name not in self.sizes:
            hint = "files outside the folder are not read"
            raise InputError(f"no file {name} in {self.root}", hint, code="recording.file-missing")
        return self.root / name

    def make_error(self, name: str, why: object, hint: str = HINT) -> InputError:
        """Make the error for a file that contradicts its format."""
        what = f"cannot read {self.root / name}: {why}"
        error = DamagedFile(what, hint, code="recording.damaged")
        error.file = name
        return error

    damaged = make_error  # its name in formats of users

    @contextmanager
    def reading(self, name: str, what: str = "", hint: str = HINT) -> Iterator[None]:
        """Turn an error of the block into the error for a file; `what` begins its text."""
        try:
            yield
        except FORMAT_ERRORS as e:
            why = str(e) if isinstance(e, ValueError) else f"{type(e).__name__} {e}"
            raise self.make_error(name, f"{what}{why}", hint) from e

    def head(self, name: str, count: int = HEAD_BYTES) -> bytes:
        """Return the first bytes."""
        return self.bytes(name, 0, min(count, self.sizes[name]))

    def read(self, name: str) -> bytes:
        """Return all bytes of a file, which is not large."""
        return self.bytes(name, 0, self.sizes.get(name, 0))

    def bytes(self, name: str, offset: int, count: int) -> bytes:
        """Return a part of a file.

        Raises:
            InputError: the file is shorter, or cannot be read.
        """
        path = self._require_part(name, offset, count)
        try:
            with path.open("rb") as file:
                file.seek(offset)
                data = file.read(count)
        except OSError as e:
            raise self.make_error(name, e.strerror or e) from e
        if len(data) != count:
            raise self.make_error(name, "it became shorter while it was read")
        return data

    def text(self, name: str) -> str:
        """Return a small file as text.

        Raises:
            InputError: it is too large, or not UTF-8.
        """
        if self.sizes.get(name, 0) > MAX_TEXT:
            raise self.make_error(name, f"{self.sizes[name]} bytes are too many for a list", "")
        with self.reading(name):
            return self.read(name).decode("utf-8-sig")

    def read_json_if_there(self, name: str) -> Any:
        """Return a small file's JSON; None if there is no such file, or it is not JSON.

        Raises:
            InputError: it cannot be read.
        """
        if self.sizes.get(name, MAX_TEXT + 1) > MAX_TEXT:
            return None
        data = self.read(name)
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            return None

    def reshape(self, name: str, array: Array, shape: Shape) -> Array:
        """Return a file's values in this shape.

        Raises:
            InputError: no array can have it (without values, the other dimensions may be of any
                size), or the file holds another number of values.
        """
        if not is_possible_shape(shape):
            raise self.make_error(name, f"no tensor has the shape {list(shape)}")
        if array.size != math.prod(shape):
            raise self.make_error(name, f"{array.size} values do not fill {list(shape)}")
        return array.reshape(shape)

    def _require_part(self, name: str, offset: int, count: int) -> Path:
        path = self.path(name)
        if offset < 0 or count < 0 or offset + count > self.sizes[name]:
            why = f"it has {self.sizes[name]} bytes where {offset + count} should be"
            raise self.make_error(name, why)
        return path

    shaped = reshape  # its name in formats of users

    def map_part(self, name: str, offset: int, count: int) -> Array:
        """Return a part of a file, memory-mapped if it is large.

        Writing to it does not change the file.

        A map keeps its file open until it is freed, so only large parts are mapped: few of them fit
        into a cache.

        Raises:
            InputError: the file is shorter, or cannot be read.
        """
        path = self._require_part(name, offset, count)
        if count < MIN_MAPPED:
            return np.frombuffer(bytearray(self.bytes(name, offset, count)), np.uint8)
        with self.reading(name):
            try:  # copy-on-write
                data = np.memmap(path, np.uint8, "c", offset, (count,))
            except OSError as e:
                if e.errno != errno.ENOMEM:
                    raise
                # The file exceeds the memory, which Linux would reserve.
                data = np.memmap(path, np.uint8, "r", offset, (count,))
            return data.view(np.ndarray)


def is_possible_shape(shape: Sequence[int]) -> bool:
    """Return whether a tensor can have this shape.

    numpy counts bytes in 64 bits, and counts dimensions of 0 as 1.

    >>> is_possible_shape((0, 1 << 40)), is_possible_shape((0, 1 << 40, 1 << 40))
    (True, False)
    >>> is_possible_shape((2, -1)), is_possible_shape((1,) * 65)
    (False, False)
    """
    is_small = len(shape) <= MAX_RANK and math.prod(d or 1 for d in shape) < 1 << 58
    return is_small and min(shape, default=0) >= 0


def fill_open_dimension(dims: Sequence[int | None], count: int) -> Shape | None:
    """Return the shape of `count` elements, with its one open dimension filled in.

    Returns None if they cannot have the shape.

    >>> fill_open_dimension((2, None), 6), fill_open_dimension((None, None), 6)
    ((2, 3), None)
    >>> fill_open_dimension((), 1)
    ()
    """
    fixed = math.prod(d for d in dims if d is not None)
    if sum(d is None for d in dims) > (fixed > 0) or (None in dims and count % fixed):
        return None
    return tuple(count // fixed if d is None else d for d in dims)


def scan(place: Path) -> Files:
    """Return the files of a folder; or the one file if `place` is one.

    Raises:
        InputError: there is nothing, or it cannot be listed.
    """
    try:
        if place.is_file():
            return Files(place.parent, {place.name: place.stat().st_size})
        if not place.is_dir():
            hint = "name the folder that the tool wrote, or one of its files"
            raise InputError(f"no folder {place}", hint, code="folder.not-found")
        return Files(place, dict(_iter_files(place)))
    except OSError as e:
        what = f"cannot read {e.filename or place}: {e.strerror or e}"
        raise InputError(what, code="file.unreadable") from e


def _iter_files(root: Path) -> Iterator[tuple[str, int]]:
    """Yield (relative path, bytes) of regular files; links only if they stay inside."""
    inside = root.resolve()

    def refuse(error: OSError) -> None:
        raise error

    for folder, below, names in os.walk(root, onerror=refuse):
        below[:] = sorted((d for d in below if not d.startswith(".")), key=split_numbers)
        for name in sorted(names, key=split_numbers):
            path = Path(folder) / name
            if name.startswith(".") or (path.is_symlink() and inside not in path.resolve().parents):
                continue
            status = path.stat()
            if stat.S_ISREG(status.st_mode):
                yield path.relative_to(root).as_posix(), status.st_size


def split_numbers(name: str) -> tuple[tuple[bool, int, str], ...]:
    """Return a sort key that puts `layer-2` before `layer-10`."""
    words = re.findall(r"[0-9]{1,18}|[^0-9]+|[0-9]+", name)
    return tuple(
        (w.isascii() and w.isdigit(), int(w) if w.isascii() and w.isdigit() else 0, w)
        for w in words
    )
