"""Folders in the user's cache, for what is kept from one command to the next and may be deleted at any time."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import tempfile
from pathlib import Path

from subgraph.system import cache_home


def cache_folder(name: str) -> Path:
    """`~/.cache/subcut/NAME` (Linux), made where it is missing; a temporary folder where nothing can be written."""
    if home := cache_home():
        folder = home / "subcut" / name
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            if os.access(folder, os.W_OK):
                return folder
    return _temporary(name)


@functools.cache
def _temporary(name: str) -> Path:
    folder = Path(tempfile.mkdtemp(prefix=f"subcut-{name}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
