"""A command line: its words, the placeholders that are filled in, and the code that it reaches.
Nothing is run.

The reach of a command line is known only in part: the files and programs that it names, and all
code in the folders of its scripts and in the folder that it runs in. Other dependencies are noticed
when a run is repeated.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import traceback
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import product
from pathlib import Path

from subgraph import system
from subgraph.errors import UnknownName, UsageError
from subgraph.iterables import drop_repeats, flatten
from subgraph.plugins import HOME
from subgraph.text import find_nearest
from subgraph.types import StringMap, frozen

PLACES = {
    "convert": ("model", "converted", "keep", "host"),
    "run": ("model", "converted", "inputs", "outputs", "keep", "host"),
}
OWN_INTERPRETER = Path(sys.executable)  # runs the backends
SCRIPTS = (".py", ".sh", ".bat", ".cmd", ".ps1")
CODE = (*SCRIPTS, ".so", ".dll", ".dylib")  # ends of the names of files that a program may load
MAX_FILES = 500  # of code: reading them takes a second
MAX_FOLDERS = 1000  # that are searched for code
MAX_HASHED = 64 << 20  # bytes; of larger files size and time are compared
# Names of folders in which no code is searched.
LEFT_OUT = {"subcut_out", "__pycache__", "node_modules", "site-packages", "dist-packages"}
RESULTS = {"repro.py", "CACHEDIR.TAG"}  # files in folders that subcut and others have made
_PLACE = re.compile(r"\{\{([A-Za-z_]\w*)\}\}|(?<![{$])\{([A-Za-z_]\w*)\}")
_TOKEN = re.compile(r"[\w.+@%~/-]+")
_MODULE = re.compile(r"\s-[A-Za-z]*[mc]\b")  # `python -m MODULE`, `-c TEXT`
_LIBRARIES = ("site-packages", "dist-packages")

# ------------------------------------------------------------ places


def split_command(where: str, step: str, command: str) -> list[str]:
    """Return the words of a command line, whose places are known.

    Args:
        where: The candidate, for errors.
        step: `convert` or `run`.
        command: The command line.

    Raises:
        UsageError: It is empty, or has an open quote.
        UnknownName: It names a place that its step does not have.
    """
    try:
        words = system.split(command)
    except ValueError as e:
        raise UsageError(
            f"{where}: {command}: {e}", "quote it as for a shell", code="command.malformed"
        ) from e
    if not words:
        raise UsageError(
            f"{where} has no command",
            "-c 'cmd:./run.sh {model} {inputs} {outputs}'",
            code="command.missing",
        )
    for m in _PLACE.finditer(command):
        if m[2] and m[2] not in PLACES[step]:
            close = find_nearest(m[2], PLACES[step])[0]
            known = ", ".join(f"{{{place}}}" for place in PLACES[step])
            raise UnknownName(
                f"{where}: {step} has no place {{{m[2]}}}",
                f"did you mean {{{close}}}? {step} has {known}; {{{{{m[2]}}}}} stands for"
                f" {{{m[2]}}} itself",
                [close],
                code="command.unknown-place",
            )
    return words


def fill(word: str, places: StringMap) -> str:
    """Return a word with all its places filled at once, so that a `{…}` in a path stays.

    `{{x}}` becomes `{x}`.

    >>> fill("--in={inputs} {{x}} ${HOME}", {"inputs": "/tmp/in"})
    '--in=/tmp/in {x} ${HOME}'
    """
    return _PLACE.sub(lambda m: f"{{{m[1]}}}" if m[1] else places.get(m[2], m[0]), word)


# ------------------------------------------------------------ code


def split_values(command: str) -> list[str]:
    """Return the words of a command line, and the parts after a `=` in them: `--config=net.json`.

    A command line with an open quote is one word.
    """
    try:
        words = system.split(command)
    except ValueError:
        return [command]
    parts = flatten((word, word.partition("=")[2]) for word in words)
    return list(filter(None, parts))


@frozen
class Code:
    """Files of code.

    Attributes:
        files: The files, sorted.
        complete: Whether these are all.
    """

    files: tuple[Path, ...] = ()
    complete: bool = True

    def __add__(self, other: Code) -> Code:
        return Code(tuple(sorted({*self.files, *other.files})), self.complete and other.complete)


def list_command_code(command: str, folder: str) -> Code:
    """Return the files that a command line names, and the code in the folders of its scripts.

    Also the code in `folder`, in which it runs, or where Python looks for modules by itself.
    """
    base = Path(folder or ".").absolute()
    tokens = _TOKEN.findall(command)
    named = {path for word in split_values(command) if is_file(path := base / word)}
    for path in (base / word for word in tokens):  # of `sh -c`: it may write other files
        if is_file(path) and (os.access(path, os.X_OK) or path.suffix in CODE):
            named.add(path)
    programs = filter(None, (shutil.which(word) for word in tokens if "/" not in word))
    folders = [base] if folder or _MODULE.search(command) else []
    inner = _find_code([*folders, *(path.parent for path in named if _is_script(path))])
    return Code((*named, *(Path(program).absolute() for program in programs))) + inner


def list_python_code(file: Path) -> Code:
    """Return a Python file, and the code in its folder."""
    return Code((file.absolute(),)) + _find_code([file.absolute().parent])


def _find_code(roots: Sequence[Path]) -> Code:
    """Return the files of code in some folders, and the interpreters of environments there.

    Hidden folders are omitted, and subcut's own, whose version is known.
    """
    files: list[Path] = []
    waiting = drop_repeats(roots)
    folder_count = 0
    while waiting and folder_count < MAX_FOLDERS and len(files) <= MAX_FILES:
        folder = waiting.pop(0)
        folder_count += 1
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError:
            continue
        if folder == HOME or (
            folder not in roots and any(entry.name in RESULTS for entry in entries)
        ):
            continue
        files += (Path(e.path) for e in entries if e.name.endswith(CODE) and e.is_file())
        for inner in (Path(e.path) for e in entries if e.is_dir(follow_symlinks=False)):
            if (inner / "pyvenv.cfg").is_file():
                files += filter(is_file, [inner / system.PYTHON])
            elif not inner.name.startswith(".") and inner.name not in LEFT_OUT:
                waiting.append(inner)
    return Code(tuple(sorted(set(files[:MAX_FILES]))), not waiting and len(files) <= MAX_FILES)


def digest_contents(path: Path) -> str:
    """Return the SHA-256 of a file, of a very large file size and time; "" without a file."""
    try:
        stat = path.stat()
        if path.is_file():
            return _read_contents(path, stat.st_size, stat.st_mtime_ns)
        return ""
    except (OSError, ValueError):  # ValueError: a NUL
        return ""


@lru_cache(1024)
def _read_contents(path: Path, size: int, changed: int) -> str:
    if size > MAX_HASHED:
        return f"{size} bytes, changed at {changed} ns"
    import hashlib  # 3 ms, which a worker need not pay

    return hashlib.sha256(path.read_bytes()).hexdigest()


def find_packages(files: Iterable[Path]) -> list[str]:
    """Return the packages, with versions, of the Python interpreters among some files, sorted."""
    interpreters = [f for f in files if re.match(r"python[\d.]*(\.exe)?$", f.name)]
    homes = flatten((f.parent, f.resolve().parent) for f in interpreters)
    infos = set[Path]()
    for home, name in product(set(homes), _LIBRARIES):
        for place in ("lib/python3*", "Lib", f"{home.name}/Lib"):
            infos.update(home.parent.glob(f"{place}/{name}/*-info"))
    return sorted(info.stem for info in infos if info.suffix in (".dist-info", ".egg-info"))


def find_imports() -> dict[str, str]:
    """Return the files of all modules of the user that this process has imported, with digests."""
    names = {getattr(module, "__file__", None) or "" for module in list(sys.modules.values())}
    own = sorted(Path(name).absolute() for name in filter(None, names) if is_users(name))
    return {str(path): digest_contents(path) for path in own if is_file(path)}


def is_users(name: str) -> bool:
    """Return whether a file has code outside subcut, Python and the installed packages."""
    # Only Windows has the folder DLLs.
    others = (HOME, HOME.resolve(), Path(os.__file__).parent, Path(sys.base_prefix, "DLLs"))
    is_own = name.startswith(("<", *map(str, others)))
    return not is_own and not any(word in name for word in _LIBRARIES)


def place_of(error: BaseException) -> str:
    """Return ` (FILE, line N)`, the innermost line of the user's own code; "" without one."""
    place = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        if is_users(file):
            place = f" ({Path(file).name}, line {line})"
    return place


def _is_script(file: Path) -> bool:
    """Return whether a file is a text that a program runs."""
    try:
        with file.open("rb") as stream:
            return file.suffix in SCRIPTS or stream.read(2) == b"#!"
    except OSError:
        return False


def is_file(path: Path) -> bool:
    """Return whether a path is a file; False for a text that cannot be a path."""
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name that is too long, or a NUL
        return False
