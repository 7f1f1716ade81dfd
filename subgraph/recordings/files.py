"""The files of a dump, not trusted: nothing outside the folder is read, no more memory taken than a file has bytes."""

from __future__ import annotations

import errno
import json
import math
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from subgraph.errors import InputError

if TYPE_CHECKING:
    from subgraph.types import Array

MAX_RANK = 64  # dimensions; what numpy has
MAX_TEXT = 256 << 20  # bytes of a list or a JSON that is read whole; one of a model of 50,000 nodes has 100 MB
HEAD = 4096  # bytes that tell what a file is
HINT = "is it complete, and of the format that was named?"


@dataclass(frozen=True)
class Files:
    """Regular files below a folder, by path relative to it, in natural order; hidden ones are left out.

    Attributes:
        root: the folder.
        sizes: path -> bytes.
        whole: False where the user named one file, not the folder.
    """

    root: Path
    sizes: Mapping[str, int] = field(repr=False)
    whole: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.sizes)

    def ending(self, *ends: str) -> list[str]:
        """The files with one of these ends."""
        return [n for n in self.sizes if n.lower().endswith(ends)]

    def path(self, name: str) -> Path:
        """Where a listed file is.

        Raises:
            InputError: it is not one of these.
        """
        if name not in self.sizes:
            raise InputError(f"no file {name} in {self.root}", "files outside the folder are not read")
        return self.root / name

    def damaged(self, name: str, why: object, hint: str = HINT) -> InputError:
        """What to say of a file that is not what it should be."""
        return InputError(f"cannot read {self.root / name}: {why}", hint)

    def head(self, name: str, count: int = HEAD) -> bytes:
        """The first bytes."""
        return self.bytes(name, 0, min(count, self.sizes[name]))

    def bytes(self, name: str, offset: int, count: int) -> bytes:
        """Bytes from anywhere in a file.

        Raises:
            InputError: it does not have as many, or cannot be read.
        """
        path = self.path(name)
        if offset < 0 or count < 0 or offset + count > self.sizes[name]:
            raise self.damaged(name, f"bytes {offset} to {offset + count} of {self.sizes[name]} are asked for")
        try:
            with path.open("rb") as file:
                file.seek(offset)
                data = file.read(count)
        except OSError as e:
            raise self.damaged(name, e.strerror or e) from e
        if len(data) != count:
            raise self.damaged(name, "it became shorter while it was read")
        return data

    def text(self, name: str) -> str:
        """A small file as text.

        Raises:
            InputError: it is too large, or no text.
        """
        if self.sizes.get(name, 0) > MAX_TEXT:
            raise self.damaged(name, f"{self.sizes[name]} bytes are too many for a list", "")
        try:
            return self.bytes(name, 0, self.sizes.get(name, 0)).decode("utf-8-sig")
        except UnicodeDecodeError as e:
            raise self.damaged(name, e) from e

    def json(self, name: str) -> Any:
        """A small file's JSON.

        Raises:
            InputError: it is none.
        """
        try:
            return json.loads(self.text(name))
        except (ValueError, RecursionError) as e:
            raise self.damaged(name, f"no JSON: {e}") from e

    def maybe_json(self, name: str) -> Any:
        """The same; None where it is none."""
        try:
            return self.json(name) if name in self.sizes else None
        except InputError:
            return None

    def shaped(self, name: str, array: Array, shape: tuple[int, ...]) -> Array:
        """A file's values, as many as they are, in this shape.

        Raises:
            InputError: no array has it; 0 values are of any size but in one dimension.
        """
        if not possible(shape):
            raise self.damaged(name, f"no tensor has the shape {list(shape)}")
        return array.reshape(shape)

    def mapped(self, name: str, offset: int, count: int) -> Array:
        """Bytes as an array, mapped and not read; writing to it changes no file.

        Raises:
            InputError: the file does not have as many, or cannot be read.
        """
        import numpy as np

        path = self.path(name)
        if offset < 0 or count < 0 or offset + count > self.sizes[name]:
            raise self.damaged(name, f"it has {self.sizes[name]} bytes where {offset + count} should be")
        if not count:
            return np.empty(0, np.uint8)
        try:
            return _map(path, offset, count)
        except (OSError, ValueError) as e:
            raise self.damaged(name, e) from e


def _map(path: Path, offset: int, count: int) -> Array:
    """A part of a file; not to be written to where it is larger than the memory, which Linux would have to promise."""
    import numpy as np

    try:
        found = np.memmap(path, np.uint8, "c", offset, (count,))
    except OSError as e:
        if e.errno != errno.ENOMEM:
            raise
        found = np.memmap(path, np.uint8, "r", offset, (count,))
    return found.view(np.ndarray)


def possible(shape: Sequence[int]) -> bool:
    """Can a tensor have this shape? numpy counts bytes in 64 bits, and takes dimensions of 0 for 1 where it does.

    >>> possible((0, 1 << 40)), possible((0, 1 << 40, 1 << 40)), possible((2, -1)), possible((1,) * 65)
    (True, False, False, False)
    """
    return len(shape) <= MAX_RANK and min(shape, default=0) >= 0 and math.prod(d or 1 for d in shape) < 1 << 58


def scan(place: Path) -> Files:
    """The files of a folder, or the one file that was named.

    Raises:
        InputError: there is nothing, or it cannot be listed.
    """
    try:
        if place.is_file():
            return Files(place.parent, {place.name: place.stat().st_size}, whole=False)
        if not place.is_dir():
            raise InputError(f"no folder {place}", "name the folder that the tool wrote, or one of its files")
        return Files(place, dict(_listed(place)))
    except OSError as e:
        raise InputError(f"cannot read {place}: {e.strerror or e}") from e


def _listed(root: Path) -> Iterator[tuple[str, int]]:
    """Regular files with their sizes; links only where they stay inside."""
    inside = root.resolve()
    for folder, below, names in os.walk(root):
        below[:] = sorted((d for d in below if not d.startswith(".")), key=_natural)
        for name in sorted(names, key=_natural):
            path = Path(folder) / name
            if name.startswith(".") or (path.is_symlink() and inside not in path.resolve().parents):
                continue
            try:
                status = path.stat()
            except OSError:
                continue
            if stat.S_ISREG(status.st_mode):
                yield path.relative_to(root).as_posix(), status.st_size


def _natural(name: str) -> tuple[tuple[bool, int, str], ...]:
    """`layer-2` before `layer-10`."""
    import re

    words = re.findall(r"[0-9]{1,18}|[^0-9]+|[0-9]+", name)
    return tuple((w.isascii() and w.isdigit(), int(w) if w.isascii() and w.isdigit() else 0, w) for w in words)
