"""What a Python file loads other than by an import: files and folders that it names, and the lines that name none.

`exec(open("x").read())`, `import_module("x")`, `sys.path.insert(0, "lib")` are followed where the name is written out
and leads, from the file's own folder or the current one, to something. Others are told to whoever is asked for trust.
"""

from __future__ import annotations

import ast
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

# Functions that load code, by the last part of their names; those of MODULES by a module's name, as an import does.
FUNCTIONS = frozenset(
    "exec eval run_path spec_from_file_location SourceFileLoader load_source CDLL PyDLL LoadLibrary load_library "
    "addsitedir register_custom_ops_library".split()
)
MODULES = frozenset(("import_module", "__import__", "run_module"))
PATH = "sys.path"
_MARKS = (PATH, *FUNCTIONS, *MODULES)
MAX_NAME = 4096  # characters


class Loads(NamedTuple):
    """`places`: files and folders that a file names. `unknown`: `run.py line 3: exec(text)`, which name none."""

    places: tuple[Path, ...] = ()
    unknown: tuple[str, ...] = ()


def loads(file: Path) -> Loads:
    """What a Python file loads; nothing of one that cannot be read. Complexity: linear in its text."""
    try:
        stat = file.stat()
        return _loads(file, Path.cwd(), stat.st_size, stat.st_mtime_ns)
    except (OSError, ValueError):
        return Loads()


@lru_cache(1024)
def _loads(file: Path, here: Path, _size: int, _changed: int) -> Loads:
    text = file.read_bytes()
    if not any(mark.encode() in text for mark in _MARKS):
        return Loads()
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return Loads()
    places: dict[Path, None] = {}
    unknown = []
    for node in filter(_is_loader, ast.walk(tree)):
        named = [place for base in (file.parent, here) for place in _named(base, node)]
        places |= dict.fromkeys(named)
        if not named and not _is_written_out(node):
            unknown.append(f"{file.name} line {getattr(node, 'lineno', 0)}: {ast.unparse(node)[:60]}")
    return Loads(tuple(places), tuple(unknown))


def _is_loader(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=func):
            name = ast.unparse(func)
            return name.rpartition(".")[2] in FUNCTIONS | MODULES or name.startswith(f"{PATH}.")
        case ast.Assign(targets=[target, *_]) | ast.AugAssign(target=target):
            return ast.unparse(target).startswith(PATH)
    return False


def _named(base: Path, node: ast.AST) -> list[Path]:
    """What the texts in an expression lead to, all as one path or else each alone."""
    words = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    whole = _there(base, "/".join(words))
    return [whole] if whole else [place for word in words if (place := _there(base, word))]


def _there(base: Path, word: str) -> Path | None:
    """The file or folder of this name, if it is there."""
    place = base / word
    try:
        return place.resolve() if word and len(word) < MAX_NAME and place.exists() else None
    except (OSError, ValueError):
        return None


def _is_written_out(node: ast.AST) -> bool:
    """Is it a call with a text, of a module or of code itself?"""
    return isinstance(node, ast.Call) and bool(node.args) and isinstance(node.args[0], ast.Constant)
