"""Folders in the user's cache, for what is kept from one command to the next and may be deleted at any time."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile
from pathlib import Path


def cache_folder(name: str) -> Path:
    """`~/.cache/subcut/NAME`, made where it is missing; a temporary folder where nothing can be written there."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    home = Path("~").expanduser()
    folder = (named if named.is_absolute() else home / ".cache") / "subcut" / name
    try:
        if named.is_absolute() or home.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    return _temporary(name)


@functools.cache
def _temporary(name: str) -> Path:
    folder = Path(tempfile.mkdtemp(prefix=f"subcut-{name}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
