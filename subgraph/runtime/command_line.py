"""A command line: its words, the places that are put into it, and the code that it reaches. Nothing is run.

What a command line reaches is known only in part: files and programs among its words, `-m MODULE`, words and shell
scripts that are command lines of their own (`sh -c '…'`), and modules beside a Python file that it imports. What else
its answers depend on is named by `depends` in the project file, or noticed when an answer is repeated.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from subgraph.errors import UnknownName
from subgraph.plugins import HOME
from subgraph.text import nearest

PLACES = {"convert": ("model", "converted", "host"), "run": ("model", "converted", "inputs", "outputs", "host")}
CODE = (".py", ".sh", ".so", ".dll", ".dylib", ".pl", ".js", ".lua", ".rb")  # ends of names that a program may load
MOST_FILES = 500  # that a command line reaches: reading and parsing them takes a second
MOST_TEXT = 1 << 18  # bytes of a script that is looked into
MOST_HASHED = 64 << 20  # bytes; of larger files size and time are compared
_PLACE = re.compile(r"\{\{([A-Za-z_]\w*)\}\}|(?<![{$])\{([A-Za-z_]\w*)\}")
_TOKEN = re.compile(r"[\w.+@%~/-]+")
_MODULE = re.compile(r"(?:^|\s)-[A-Za-z]*m\s*([A-Za-z_][\w.]*)")
_LIBRARIES = ("site-packages", "dist-packages")

# ---------------------------------------------------------------------------------------------------- places


def check_places(where: str, step: str, command: str) -> None:
    """
    Raises:
        UnknownName: the command names a place that its step (`convert` or `run`) does not have.
    """
    for m in _PLACE.finditer(command):
        if m[2] and m[2] not in PLACES[step]:
            close = nearest(m[2], PLACES[step])[0]
            known = ", ".join(f"{{{place}}}" for place in PLACES[step])
            hint = f"did you mean {{{close}}}? {step} has {known}; {{{{{m[2]}}}}} stands for {{{m[2]}}} itself"
            raise UnknownName(f"{where}: {step} has no place {{{m[2]}}}", hint, [close])


def fill(word: str, places: Mapping[str, str]) -> str:
    """A word with all its places filled at once, so that a `{…}` in a path stays; `{{x}}` becomes `{x}`.

    >>> fill("--in={inputs} {{x}} ${HOME}", {"inputs": "/tmp/in"})
    '--in=/tmp/in {x} ${HOME}'
    """
    return _PLACE.sub(lambda m: f"{{{m[1]}}}" if m[1] else places.get(m[2], m[0]), word)


# ---------------------------------------------------------------------------------------------------- code


def words_and_values(command: str) -> list[str]:
    """The words of a command line, and the parts behind a `=` in them: `--config=net.json`."""
    try:
        words = shlex.split(command)
    except ValueError:
        return [command]
    return [part for word in words for part in (word, word.partition("=")[2]) if part]


def code_of_command(command: str, folder: str = "") -> list[Path]:
    """The files of code that a command line reaches when it runs in `folder`, as far as that can be known, sorted."""
    base = Path(folder or ".").absolute()
    named = (base / word for word in words_and_values(command))
    return _closure([*filter(is_file, named), *_code_in(command, [base])], base)


def code_of_python(file: Path) -> list[Path]:
    """A Python file and the modules beside it, or on $PYTHONPATH, that it imports, sorted."""
    return _closure([file], Path.cwd())


def contents(path: Path) -> str:
    """What tells a file's contents from others: its SHA-256, of a very large file size and time; "" without a file."""
    try:
        stat = path.stat()
        return _contents(path, stat.st_size, stat.st_mtime_ns) if path.is_file() else ""
    except (OSError, ValueError):  # ValueError: a NUL
        return ""


@lru_cache(1024)
def _contents(path: Path, size: int, changed: int) -> str:
    if size > MOST_HASHED:
        return f"{size} bytes, changed at {changed} ns"
    return hashlib.sha256(path.read_bytes()).hexdigest()


def installed(files: Iterable[Path]) -> list[str]:
    """The packages, with their versions, that are installed for the Python interpreters among these files, sorted."""
    homes = {home for f in files if re.match(r"python[\d.]*$", f.name) for home in (f.parent, f.resolve().parent)}
    libraries = {
        library
        for home in homes
        for name in _LIBRARIES
        for library in home.parent.glob(f"lib/python3*/{name}")
    }  # fmt: skip
    return sorted(
        info.stem for library in libraries for end in ("dist", "egg") for info in library.glob(f"*.{end}-info")
    )


def imported() -> dict[str, str]:
    """The files, with their contents' digests, of all modules that this process has imported from outside subcut,
    Python and the installed packages. Unlike `code_of_python` this sees also what code finds out while it runs."""
    names = {getattr(module, "__file__", None) or "" for module in list(sys.modules.values())}
    own = sorted(Path(name).absolute() for name in filter(None, names) if is_users(name))
    return {str(path): contents(path) for path in own if is_file(path)}


def is_users(name: str) -> bool:
    """Is it the name of a file of code outside subcut, Python and the installed packages?"""
    others = ("<", str(HOME), str(HOME.resolve()), str(Path(os.__file__).parent))
    return not name.startswith(others) and not any(word in name for word in _LIBRARIES)


def place_of(error: BaseException) -> str:
    """` (FILE, line N)`: where the user's own code was last when it raised; "" if it was not there."""
    traceback, place = error.__traceback__, ""
    while traceback:
        file = traceback.tb_frame.f_code.co_filename
        place = f" ({Path(file).name}, line {traceback.tb_lineno})" if is_users(file) else place
        traceback = traceback.tb_next
    return place


def own_interpreter() -> Path:
    """The interpreter that runs backends."""
    return Path(sys.executable)


def _closure(files: Iterable[Path], base: Path) -> list[Path]:
    """These files and all that they lead to, without subcut itself: its version stands beside."""
    waiting, found = list(files), set[Path]()
    python_path = (Path(word).absolute() for word in os.environ.get("PYTHONPATH", "").split(os.pathsep) if word)
    roots = [base, *(f.parent for f in waiting if _is_python(f)), *python_path]
    roots = [folder for folder in dict.fromkeys(roots) if folder.name not in _LIBRARIES]
    while waiting and len(found) < MOST_FILES:
        file = waiting.pop(0)
        if file not in found:
            found.add(file)
            waiting += (path for path in _leads_to(file, roots) if HOME not in path.parents)
    return sorted(found)


def _leads_to(file: Path, roots: Sequence[Path]) -> Iterator[Path]:
    text = _text(file)
    folders = list(dict.fromkeys([file.parent, *roots]))
    if _is_python(file):
        yield from _imported(text, folders)
        yield from _called(text, folders)
    elif file.suffix == ".sh" or re.match(r"#!.*sh\b", text):
        yield from _code_in(text, folders)


def _is_python(file: Path) -> bool:
    return file.suffix == ".py" or bool(re.match("#!.*python", _text(file)))


def _text(file: Path) -> str:
    """A script's text; "" for a large or binary file."""
    try:
        with file.open("rb") as stream:
            data = stream.read(MOST_TEXT + 1)
    except OSError:
        return ""
    return "" if len(data) > MOST_TEXT or b"\0" in data else data.decode(errors="replace")


def _code_in(text: str, folders: Sequence[Path]) -> Iterator[Path]:
    """Scripts, programs and modules that a command line, or a shell script, names: no other files, for it may write
    them (a log)."""
    words = [*words_and_values(text), *_TOKEN.findall(text)]
    for word in dict.fromkeys(words):
        ends = [word, *(word[m.end() :] for m in re.finditer("/+", word))]  # "$HERE"/run.py
        yield from (path for folder in folders for end in ends if _is_code(path := folder / end))
        program = shutil.which(word) if "/" not in word else None
        if program:
            yield Path(program).absolute()
        if "import" in word:  # python -c '…'
            yield from _imported(word, folders)
    for m in _MODULE.finditer(text):
        yield from _modules([m[1], f"{m[1]}.__main__"], folders)


def _is_code(path: Path) -> bool:
    return is_file(path) and (os.access(path, os.X_OK) or path.suffix in (".py", ".sh") or _text(path).startswith("#!"))


def is_file(path: Path) -> bool:
    """Is it a file? False for what cannot be a path."""
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name that is too long, or a NUL
        return False


def _imported(text: str, folders: Sequence[Path]) -> Iterator[Path]:
    """The files in these folders of modules that Python code imports, anywhere in it; the first folder is its own."""
    for level, module, names in _imports_and_texts(text)[0]:
        places = [folders[0], *folders[0].parents][level - 1 : level] if level else folders
        before = [module] if module else []
        yield from _modules([*before, *(".".join([*before, name]) for name in names)], places)


def _called(text: str, folders: Sequence[Path]) -> Iterator[Path]:
    """The scripts, programs and libraries in these folders that texts in Python code name: `run(["./tool.sh"])`."""
    texts = _imports_and_texts(text)[1]
    for word in dict.fromkeys(word for text in texts for word in (text, *_TOKEN.findall(text))):
        for path in (folder / word for folder in folders):
            if is_file(path) and (path.suffix in CODE or os.access(path, os.X_OK)):
                yield path


@lru_cache(1024)
def _imports_and_texts(text: str) -> tuple[list[tuple[int, str, list[str]]], list[str]]:
    """What Python code imports (level, module, names in it) and the texts in it; nothing where it does not parse."""
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return [], []
    imports = [(0, "", [alias.name for alias in n.names]) for n in nodes if isinstance(n, ast.Import)]
    imports += [
        (n.level, n.module or "", [alias.name for alias in n.names if alias.name != "*"])
        for n in nodes
        if isinstance(n, ast.ImportFrom)
    ]
    return imports, [n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)]


def _modules(names: Iterable[str], folders: Sequence[Path]) -> Iterator[Path]:
    """The files in these folders that importing modules runs: of a dotted name its packages' as well."""
    parents = dict.fromkeys(".".join(name.split(".")[:k]) for name in names for k in range(1, name.count(".") + 2))
    for stem in (folder.joinpath(*name.split(".")) for name in parents for folder in folders):
        yield from (path for path in (Path(f"{stem}.py"), stem / "__init__.py") if is_file(path))
        yield from stem.parent.glob(f"{stem.name}.*.so") if stem.parent.is_dir() else ()
