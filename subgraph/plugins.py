"""Kind and name -> module. A plugin is a file in a folder of ours, a Python file by path, or an entry point.

Its file name is the word that the user types (`onnx_reference.py` is `onnx-reference`; a metric keeps its `_`, because
it stands in formulas and is a key in JSON), its docstring's first line is its help. Nothing registers: a new file is
listed, documented and tested by being there.
"""

from __future__ import annotations

import ast
import os
import sys
from functools import cache
from importlib import import_module, util
from pathlib import Path
from types import ModuleType
from zlib import crc32

from subgraph.errors import UnknownName, UsageError
from subgraph.text import clean, nearest

HOME = Path(__file__).parent
FOLDERS = {
    "backends": "runtime/backends",
    "criteria": "comparison/criteria",
    "dumps": "recordings/dumps",
    "lint": "inspection/lint",
    "metrics": "comparison/metrics",
    "reports": "reports",
}


def names(kind: str) -> list[str]:
    """The names of one kind: ours, then those of installed packages (entry points `subcut.KIND`), each in order."""
    ours = sorted(_word(kind, path.stem) for path in _folder(kind).glob("*.py") if not path.stem.startswith("_"))
    return ours + sorted(set(_entry_points(kind)) - set(ours))


def load(kind: str, name: str) -> ModuleType:
    """The module of a plugin; `name` ending in `.py` is a path.

    Raises:
        UnknownName: there is none of that name; carries the nearest.
        UsageError: the file cannot be read or fails while it is imported; says where.
    """
    if name.endswith(".py"):
        return _from_path(Path(name))
    stem = name.replace("-", "_")
    if stem.isidentifier() and not stem.startswith("_") and (_folder(kind) / f"{stem}.py").is_file():
        return import_module(f"subgraph.{FOLDERS[kind].replace('/', '.')}.{stem}")
    found = _entry_points(kind)
    if name in found:
        return _from_package(name, found[name])
    one = {"criteria": "criterion", "dumps": "dump format", "lint": "lint rule"}.get(kind, kind.removesuffix("s"))
    close = nearest(name, names(kind))
    raise UnknownName(f"no {one} '{clean(name)}'", "" if close else "give a path", close)


def help_of(kind: str, name: str) -> str:
    """The first line of a plugin's docstring, read without importing it."""
    path = Path(name) if name.endswith(".py") else _folder(kind) / f"{name.replace('-', '_')}.py"
    if not path.is_file():
        return f"from {_entry_points(kind).get(name, name)}"
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.split("\n")[0]


def _folder(kind: str) -> Path:
    return HOME / FOLDERS[kind]


def _word(kind: str, stem: str) -> str:
    return stem if kind == "metrics" else stem.replace("_", "-")


def _entry_points(kind: str) -> dict[str, str]:
    """Name → module of what installed packages offer; nothing of theirs is imported."""
    from importlib.metadata import entry_points

    return {e.name: e.value for e in entry_points(group=f"subcut.{kind}")}


def _from_package(name: str, module: str) -> ModuleType:
    try:
        return import_module(module)
    except (Exception, SystemExit) as e:
        raise UsageError(f"plugin '{name}': {module} fails while it is imported: {_said(e)}", "reinstall it") from e


def _from_path(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"no file {path}", "a plugin is a Python file")
    return _executed(path.resolve(), path.stat().st_mtime_ns)


@cache
def _executed(path: Path, _changed: int) -> ModuleType:
    """Run once, however often it is asked for; again where the file has changed since."""
    # two files of one name in two folders are two modules
    name = f"subcut_plugin_{path.stem}_{crc32(os.fsencode(path)):08x}"
    spec = util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is no Python file")
    module = util.module_from_spec(spec)
    sys.modules[name] = module  # so that its dataclasses and pickles of its own find it
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as e:
        del sys.modules[name]
        raise UsageError(f"{path} fails while it is imported: {_said(e)}", "mend it first") from e
    return module


def _said(error: BaseException) -> str:
    """Kind and text of somebody else's error, on one line."""
    return clean(f"{type(error).__name__}: {error}")
