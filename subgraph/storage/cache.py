"""Folders in the user's cache, for what is kept from one command to the next and may be deleted at
any time."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import tempfile
from pathlib import Path

from subgraph.log import log
from subgraph.system import cache_home, is_private
from subgraph.text import clean


def cache_folder(name: str) -> Path:
    """`~/.cache/subcut/NAME` (Linux), made where it is missing; a temporary folder where nothing
    can be written.

    A folder that another user can write is not used: what is in it may be run.
    """
    if home := cache_home():
        own = home / "subcut"
        folder = own / name
        with contextlib.suppress(OSError):
            home.mkdir(parents=True, exist_ok=True)
            for place in (own, folder):
                place.mkdir(0o700, exist_ok=True)
            if not is_private(folder, own, home):
                _warn(home)
            elif os.access(folder, os.W_OK):
                return folder
    return _make_temporary(name)


@functools.cache
def _warn(home: Path) -> None:
    what = (
        "%s is not used as a cache, because another user owns it or subcut/ in it, or can write"
        " there"
    )
    log.warning(
        f"{what}: chmod -R go-w, or set XDG_CACHE_HOME to a folder of yours", clean(str(home))
    )


@functools.cache
def _make_temporary(name: str) -> Path:
    folder = Path(tempfile.mkdtemp(prefix=f"subcut-{name}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
