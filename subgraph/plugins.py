"""Kind and name -> module. A plugin is a file in its kind's folder, a Python file by path, or an
entry point.

`FOLDERS` maps each kind to its folder; files that begin with `_` are shared parts, no plugins. The
`__init__.py` of a folder lists the names that a plugin of that kind must define. The file name is
the word that the user types: `onnx_reference.py` is `onnx-reference`; a metric keeps its `_`,
because its name occurs in formulas and is a key in JSON. The first line of the docstring is its
help. No list registers a plugin: a new file is listed, documented and tested because it exists.
Installed packages add plugins with entry points of the group `subcut.KIND`.
"""

from __future__ import annotations

import ast
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module, util
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from zlib import crc32

from subgraph.errors import UnknownName, UsageError
from subgraph.lazy import metadata
from subgraph.text import clean, find_nearest
from subgraph.types import StringMap

HOME = Path(__file__).parent
FOLDERS = {
    "backends": "runtime/backends",
    "criteria": "comparison/criteria",
    "dumps": "recordings/dumps",
    "executors": "runtime/executors",
    "lint": "inspection/lint",
    "makers": "questions/blame/makers",
    "metrics": "comparison/metrics",
    "plan-lists": "questions/planning/lists",
    "reports": "reports",
    "rewrites": "graph/rewrites",
    "scores": "comparison/scores",
}

_plugin_folders: list[str] = []  # the folders that `load` has added to `sys.path`


def takes(function: Callable[..., object], *arguments: object) -> bool:
    """Return whether a function of the user takes these arguments by position."""
    try:
        inspect.signature(function).bind(*arguments)
    except (TypeError, ValueError):  # ValueError: the function has no signature
        return False
    return True


def list_names(kind: str) -> list[str]:
    """Return the names of one kind: those of subcut's own files, then those of installed packages,
    each sorted."""
    own = list_own_names(kind)
    return own + sorted(set(_find_entry_points(kind)) - set(own))


def list_own_names(kind: str) -> list[str]:
    """Return the names of subcut's own files, sorted. Plugins of installed packages are left out,
    because to look for them takes 30 ms."""
    stems = sorted(
        path.stem for path in _find_folder(kind).glob("*.py") if not path.stem.startswith("_")
    )
    return [stem if kind == "metrics" else stem.replace("_", "-") for stem in stems]


def load(kind: str, name: str) -> ModuleType:
    """Load the module of a plugin; `name` ending in `.py` is a path.

    Raises:
        UnknownName: No plugin has that name. The error names the nearest.
        UsageError: The file cannot be read or fails while it is imported; names the line.
    """
    if name.endswith(".py"):
        path = Path(name)
        if not path.is_file():
            raise UsageError(f"no file {path}", "a plugin is a Python file", code="file.not-found")
        return _execute(path.resolve(), path.stat().st_mtime_ns)
    stem = name.replace("-", "_")
    if stem.isidentifier() and not stem.startswith("_"):
        own = f"subgraph.{FOLDERS[kind].replace('/', '.')}.{stem}"
        if own in sys.modules or (_find_folder(kind) / f"{stem}.py").is_file():
            return import_module(own)
    entry_points = _find_entry_points(kind)
    if name in entry_points:
        try:
            return import_module(entry_points[name])
        except (Exception, SystemExit) as e:
            raise UsageError(
                f"plugin '{name}': {entry_points[name]} fails while it is imported:"
                f" {_join_line(e)}",
                "reinstall it",
                code="plugin.import-failed",
            ) from e
    noun = {
        "criteria": "criterion",
        "dumps": "dump format",
        "lint": "lint rule",
        "rewrites": "rewriting",
    }.get(kind, kind.removesuffix("s"))
    close = find_nearest(name, list_names(kind))
    raise UnknownName(
        f"no {noun} '{name}'", "" if close else "give a path", close, code="plugin.unknown"
    )


def read_help(kind: str, name: str) -> str:
    """Return the first line of a plugin's docstring, read without importing it."""
    path = _find_file(kind, name)
    if not path.is_file():
        return f"from {_find_entry_points(kind).get(name, name)}"
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.split("\n")[0]


def defines(kind: str, name: str, function: str) -> bool:
    """Return whether a plugin that is a file defines this function. It is read without importing
    it; False if it cannot be read."""
    return any(
        isinstance(node, ast.FunctionDef) and node.name == function
        for node in _read_body(kind, name)
    )


def read_constant(kind: str, name: str, constant: str) -> object:
    """Return the value to which a plugin that is a file sets a name; it is read without importing
    it, None if it is absent or no literal."""
    for node in _read_body(kind, name):
        if isinstance(node, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id == constant for t in node.targets
        ):
            try:
                return ast.literal_eval(node.value)
            except ValueError:
                return None
    return None


def _read_body(kind: str, name: str) -> list[ast.stmt]:
    """Return the statements of a plugin that is a file; none if it cannot be read."""
    file = _find_file(kind, name)
    try:
        return _read_statements(file, file.stat().st_mtime_ns)
    except (OSError, ValueError, SyntaxError, RecursionError):
        return []


@cache
def _read_statements(file: Path, _changed: int) -> list[ast.stmt]:
    """Return the statements of a file, parsed once for each time at which it was changed: 4 ms for
    onnxruntime's backend."""
    return ast.parse(file.read_bytes()).body


def _find_file(kind: str, name: str) -> Path:
    if name.endswith(".py"):
        return Path(name)
    return _find_folder(kind) / f"{name.replace('-', '_')}.py"


def _find_folder(kind: str) -> Path:
    return HOME / FOLDERS[kind]


def _find_entry_points(kind: str) -> StringMap:
    """Return the module of each plugin of installed packages by its name, without importing it."""
    return {e.name: e.value for e in metadata.entry_points(group=f"subcut.{kind}")}


class _FromSource(SourceFileLoader):
    """A loader that compiles a file at each load.

    Python's compiled copy of the file may be out of date: Python does not notice a change within a
    second that keeps the size of the file.
    """

    def get_code(self, fullname: str) -> CodeType:
        """Return the code of the file as it is now."""
        return self.source_to_code(self.get_data(self.path), self.path)


def make_user_spec(name: str, path: Path) -> ModuleSpec:
    """Return the module specification of a Python file that a user wrote."""
    spec = util.spec_from_file_location(name, path, loader=_FromSource(name, str(path)))
    assert spec
    return spec


@cache
def _execute(path: Path, _changed: int) -> ModuleType:
    """Run the file of a plugin, once for each time of change in nanoseconds; return the module."""
    # The checksum distinguishes files with the same name in different folders.
    name = f"subcut_plugin_{path.stem}_{crc32(os.fsencode(path)):08x}"
    if path.suffix != ".py":
        raise UsageError(f"{path} is not a Python file", code="plugin.not-python")
    spec = make_user_spec(name, path)
    module = util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickles of the module need this
    if str(path.parent) not in sys.path:
        # A plugin may import modules of its folder. Installed packages come first.
        sys.path.append(str(path.parent))
        _plugin_folders.append(str(path.parent))
    if _InstalledNamespaces not in sys.meta_path:
        sys.meta_path.insert(0, _InstalledNamespaces)
    try:
        assert spec.loader
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as e:
        del sys.modules[name]
        raise UsageError(
            f"{path} fails while it is imported: {_join_line(e)}",
            "correct that file first",
            code="plugin.import-failed",
        ) from e
    return module


class _InstalledNamespaces:
    """A finder of installed namespace packages, like `google` of protobuf.

    Without it, a module in a later folder of `sys.path` hides such a package.
    """

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the specification of a namespace package that has a package in it; None for other
        modules."""
        if path is not None:
            return None
        spec = PathFinder.find_spec(
            name, [place for place in sys.path if place not in _plugin_folders]
        )
        if spec is None or spec.loader is not None:
            return None
        has_package = any(
            any(Path(place).glob("*/__init__.py"))
            for place in spec.submodule_search_locations or ()
        )
        return spec if has_package else None


def _join_line(error: BaseException) -> str:
    return clean(f"{type(error).__name__}: {error}")
