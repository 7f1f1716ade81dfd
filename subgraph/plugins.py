"""Kind and name -> module. A plugin is a file in a folder of ours, a Python file by path, or an entry point.

Its file name is the word that the user types (`onnx_reference.py` is `onnx-reference`), its docstring's first line is
its help. Nothing registers: a new file is listed, documented and tested by being there.
"""

from __future__ import annotations

import ast
import sys
from importlib import import_module, util
from pathlib import Path
from types import ModuleType

from subgraph.errors import UnknownName, UsageError
from subgraph.text import nearest

HOME = Path(__file__).parent
KINDS = ("backends", "criteria", "metrics")


def names(kind: str) -> list[str]:
    """The names of one kind: ours, then those of installed packages (entry points `subcut.KIND`), each in order."""
    ours = sorted(_word(path) for path in (HOME / kind).glob("*.py") if not path.stem.startswith("_"))
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
    if stem.isidentifier() and not stem.startswith("_") and (HOME / kind / f"{stem}.py").is_file():
        return import_module(f"subgraph.{kind}.{stem}")
    found = _entry_points(kind)
    if name in found:
        return import_module(found[name])
    one = kind.removesuffix("s") if kind != "criteria" else "criterion"
    raise UnknownName(
        f"no {one} '{name}'", "" if nearest(name, names(kind)) else "give a path", nearest(name, names(kind))
    )


def help_of(kind: str, name: str) -> str:
    """The first line of a plugin's docstring, read without importing it."""
    path = HOME / kind / f"{name.replace('-', '_')}.py"
    if not path.is_file():
        return f"from {_entry_points(kind).get(name, name)}"
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.split("\n")[0]


def _word(path: Path) -> str:
    return path.stem.replace("_", "-")


def _entry_points(kind: str) -> dict[str, str]:
    """Name → module of what installed packages offer; nothing of theirs is imported."""
    from importlib.metadata import entry_points

    return {e.name: e.value for e in entry_points(group=f"subcut.{kind}")}


def _from_path(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"no file {path}", "a plugin is a Python file")
    spec = util.spec_from_file_location(f"subcut_plugin_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is no Python file")
    module = util.module_from_spec(spec)
    sys.modules[module.__name__] = module  # so that its dataclasses and pickles of its own find it
    try:
        spec.loader.exec_module(module)
    except Exception as e:
        raise UsageError(f"{path} fails while it is imported: {type(e).__name__}: {e}", "mend it first") from e
    return module
