"""Models converted to ONNX, kept in the user's cache folder for the next command.

An ONNX file has the name of what it was made from, in a folder named after its content, so messages
name what the user typed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from subgraph.storage import folders
from subgraph.storage.cache import cache_folder
from subgraph.storage.digest import Part, digest
from subgraph.version import __version__

LIMIT = 4 << 30  # bytes of converted models


def converted(depends: Sequence[Part], name: str, write: Callable[[Path], None]) -> Path:
    """The ONNX file of that name that is kept for what it `depends` on; else `write` makes it.

    Raises:
        OutputError: it can be written nowhere. What `write` raises.
    """
    place = cache_folder("converted") / digest(__version__, *depends)[:20]
    target = place / name
    if target.is_file():
        os.utime(place)
        return target
    with folders.aside(place) as work:
        write(work / name)
    _evict(place)
    return target


def _evict(newest: Path) -> None:
    """Remove the models that were not used for longest, beyond `LIMIT` bytes."""
    kept = [p for p in newest.parent.iterdir() if p != newest and not p.name.startswith(".")]
    left = LIMIT - _size(newest)
    for folder in sorted(kept, key=lambda p: -p.stat().st_mtime):
        left -= _size(folder)
        if left < 0:
            shutil.rmtree(folder, ignore_errors=True)


def _size(folder: Path) -> int:
    return sum(p.stat().st_size for p in folder.iterdir())
