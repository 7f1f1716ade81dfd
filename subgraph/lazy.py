"""Libraries that are loaded when they are first used, so that a command that needs none of them
starts at once."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = [
    "LazyModule",
    "connections",
    "ctypes",
    "difflib",
    "metadata",
    "ml_dtypes",
    "np",
    "onnx",
    "ort",
    "pickletools",
    "platform",
    "tomllib",
]


class LazyModule:
    """A module that is imported when one of its names is first read."""

    def __init__(self, name: str) -> None:
        self._module = name

    def __getattr__(self, name: str) -> Any:
        value = getattr(import_module(self._module), name)
        setattr(self, name, value)
        return value


if TYPE_CHECKING:
    import ctypes
    import difflib
    import pickletools
    import platform
    import tomllib
    from importlib import metadata
    from multiprocessing import connection as connections

    import ml_dtypes
    import numpy as np
    import onnx
    import onnxruntime as ort
else:
    connections = LazyModule("multiprocessing.connection")
    ctypes = LazyModule("ctypes")
    difflib = LazyModule("difflib")
    metadata = LazyModule("importlib.metadata")
    ml_dtypes = LazyModule("ml_dtypes")
    np = LazyModule("numpy")
    onnx = LazyModule("onnx")
    ort = LazyModule("onnxruntime")
    pickletools = LazyModule("pickletools")
    platform = LazyModule("platform")
    tomllib = LazyModule("tomllib")
