"""The check that code which a file names is shown, and runs only if the user trusts it.

Users trust the words that they type, on the command line or into the environment. The words in a
file may be those of somebody else: in a project file, in the state of a manual loop, in a case or a
bundle. They run only with `--trust`, which is remembered for exactly this code: the words of the
file, and the contents of the files that they are known to reach.

All files that code reaches cannot be known in general (`runtime.command_line`). The question names
this limit.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from subgraph.errors import UsageError
from subgraph.storage.digest import digest, digest_file
from subgraph.system import find_config_home, is_private
from subgraph.text import clean, count, list_some
from subgraph.types import frozen

MAX_SHOWN_FILES = 4  # files that the question names


@frozen
class NamedCode:
    """Code that a command would run.

    Attributes:
        role: The purpose of the code: "candidate npu", "criterion".
        shown: Its command lines, files and libraries; empty if it is not code.
        origin: The file that names the code; "" if the user typed it.
        files: The files of the code, and all files that it is known to reach.
        settings: The other values that it depends on, as JSON.
        complete: Whether `files` has all files around the code; False if these are too many.
    """

    role: str
    shown: Sequence[str]
    origin: str
    files: Sequence[Path] = ()
    settings: Any = None
    complete: bool = True

    @property
    def is_foreign(self) -> bool:
        """Whether a file names the code, and it is code to run."""
        return bool(self.origin and self.shown)


def require(code: NamedCode, trust: bool) -> str:
    """Return the code that will run, for the log; "" if a file names no code.

    Raises:
        UsageError: The code is not trusted.
    """
    if not code.is_foreign:
        return ""
    shown = "; ".join(map(clean, code.shown))
    if trust:
        remember(code)
    elif _digest(code) not in _read_remembered():
        raise UsageError(
            f"{code.role} would run code from {code.origin}: {shown}",
            f"to run it, give --trust once; a changed file needs it again."
            f" {_describe_extent(code)}",
            code="trust.required",
        )
    return shown


def remember(code: NamedCode) -> None:
    """Store that this code is trusted. If it cannot be stored, each run needs `--trust`."""
    file = _find_trusted_file()
    if not code.is_foreign or file is None or (digest := _digest(code)) in _read_remembered():
        return
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a", encoding="ascii") as out:
            out.write(f"{digest}\n")


def _describe_extent(code: NamedCode) -> str:
    """Return a sentence about the files that trust covers in addition to the shown code."""
    text = " ".join(code.shown)
    further = sorted({file.name for file in code.files if file.name not in text})
    some = list_some(list(map(clean, further)), MAX_SHOWN_FILES)
    if further:
        also = f"and {count(further, 'file')} of code around it ({some})"
    else:
        also = "in its present form"
    more = "" if code.complete else "; there are too many files around it to cover them all"
    return f"Trust covers this {also}, not what it loads in other ways{more}"


def _digest(code: NamedCode) -> str:
    contents = dict.fromkeys(map(str, sorted(code.files)), "")  # "" for an unreadable file
    for file in contents:
        with suppress(OSError):
            contents[file] = digest_file(Path(file))
    return digest(code.origin, list(code.shown), json.dumps(code.settings, default=str), contents)


# ------------------------------------------------------------ the memory


def _find_trusted_file() -> Path | None:
    home = find_config_home()
    return home / "subcut" / "trusted" if home else None


def _read_remembered() -> set[str]:
    file = _find_trusted_file()
    try:
        if file is None or not is_private(file, *file.parents[:2]):
            return set()
        return set(file.read_text(encoding="ascii").split())
    except (OSError, ValueError):
        return set()
