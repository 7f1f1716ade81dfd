"""onnxruntime-web for tests, which fetch nothing: `make test` has npm bring it into build/cache."""

from __future__ import annotations

import os
from importlib import util
from pathlib import Path

from subgraph.runtime.backends import web
from subgraph.storage.folders import find_cache_folder

FETCHED = Path(__file__).parents[2] / "build" / "cache" / "subcut" / "web"


def borrow_release() -> None:
    """Have the tests' own cache hold what make has fetched."""
    if FETCHED.is_dir() and hasattr(os, "symlink"):
        find_cache_folder("web").rmdir()
        find_cache_folder("").joinpath("web").symlink_to(FETCHED, target_is_directory=True)


def lacking() -> str:
    """Why onnxruntime-web cannot be run here without a network; "" if it can."""
    if util.find_spec("playwright") is None:
        return "the browser's driver is missing: pip install playwright"
    if not (FETCHED / f"{web.PACKAGE}-{web.NEWEST}").is_dir():
        return "onnxruntime-web is not there: `make build/cache/.web` has npm fetch it"
    return web.missing()
