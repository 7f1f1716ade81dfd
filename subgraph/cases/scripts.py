"""What a candidate's commands name -> files that go along with a case, and the same commands, which find them there.

A file goes along by itself where it lies in the project's folder; others only where they are given. In the bundle
commands run in `candidate_files/`, so a path in the project's folder stays as it is.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from subgraph.cases.layout import CANDIDATE_FILES
from subgraph.cases.redact import Redactor, joined
from subgraph.cases.zip_archive import name_problem
from subgraph.errors import InputError, UsageError
from subgraph.runtime.candidate import COMMANDS
from subgraph.text import clean

MOST = 64 << 20  # bytes of a file that goes along without being asked for
SYSTEM = ("/bin/", "/usr/", "/opt/", "/lib/", "/sbin/", f"{sys.prefix}/")  # what stands there, a receiver has as well
HIDDEN = ("__pycache__",)


@dataclass
class Scripts:
    """Files that go along: `files` has their names below `candidate_files/`.

    Attributes:
        bases: folders that files may lie in to go along by themselves, and that relative names are looked up in.
        left: files that a command names and that stay here, and why.
    """

    private: Redactor
    bases: Sequence[Path] = ()
    files: dict[str, Path] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    _names: dict[Path, str] = field(default_factory=dict)

    def give(self, path: Path) -> None:
        """A file or a folder that the user wants to go along.

        Raises:
            UsageError: it is not there, or holds a secret. InputError: its name cannot be used.
        """
        if not path.exists():
            raise UsageError(f"--candidate-files {clean(str(path))}: no such file", "name a file or a folder")
        for file in _inside(path):
            name = self._name(file.resolve()) or (Path(path.name) / file.relative_to(path)).as_posix()
            if kinds := self._holds(file):
                raise UsageError(f"{clean(str(file))} holds {kinds[0]}", "take it out of there before it is sent")
            self._take(name.removesuffix("/."), file.resolve())

    def of(self, around: Mapping[str, Any]) -> dict[str, Any]:
        """What a case was found with, so that it can be run where these files are in `candidate_files/`."""
        request = around["request"]
        identity, name = request["identity"], str(request["candidate"])
        options = dict(identity["options"])
        folder = str(options.pop("folder", "")) if identity["backend"] == "cmd" else ""
        places = [Path(folder)] if folder else list(self.bases)
        known = dict(identity.get("files") or {})
        find = _Finder(places, known)
        if identity["backend"] == "cmd":
            for step in COMMANDS:
                for word in _words(str(options.get(step) or "")):
                    self._along(find(word), known.get(word))
            options |= {step: self._command(str(options[step]), find) for step in COMMANDS if options.get(step)}
        else:
            for word in (str(identity["backend"]), *map(str, options.values())):
                self._along(find(word) if word.endswith(".py") or word in known else None, known.get(word))
            options = {k: self._whole(v, find) for k, v in options.items()}
        own = {
            **identity,
            "backend": self._whole(identity["backend"], find),
            "options": options,
            "files": {self._word(word, find): digest for word, digest in known.items()},
        }
        cleared: dict[str, Any] = self.private.document({**around, "request": {**request, "identity": own}})
        moved = {k: v for k, v in options.items() if k in COMMANDS or str(v).startswith(f"{CANDIDATE_FILES}/")}
        told = cleared["request"]["identity"]  # a file that goes along keeps its name, whatever it says
        told["options"] |= moved
        told["backend"] = own["backend"] if str(own["backend"]).startswith(f"{CANDIDATE_FILES}/") else told["backend"]
        cleared["request"]["candidate"] = self._spec(name, find)
        return cleared

    # ------------------------------------------------------------------------------------------------ files

    def _along(self, file: Path | None, digest: str | None) -> None:
        """Take a file that a command names, where it lies in the project's folder."""
        if file is None or file.resolve() in self._names:
            return
        shown = self.private.text(str(file))
        name = self._name(file.resolve())
        if not name:
            if not str(file.resolve()).startswith(SYSTEM) and not str(file).startswith(SYSTEM):
                self.left[shown] = "it lies outside the project's folder"
        elif file.stat().st_size > MOST:
            self.left[shown] = f"it has {file.stat().st_size:,} bytes"
        elif kinds := self._holds(file):
            self.left[shown] = f"it holds {kinds[0]}"
        elif why := name_problem(f"{CANDIDATE_FILES}/{name}"):
            self.left[shown] = f"its name cannot be used: {why}"
        else:
            self._take(name, file.resolve())
            if digest and hashlib.sha256(file.read_bytes()).hexdigest() != digest:
                self.left[shown] = "it changed since the case was found: it goes along as it is now"

    def _take(self, name: str, file: Path) -> None:
        if why := name_problem(f"{CANDIDATE_FILES}/{name}"):
            raise InputError(f"{clean(str(file))}: its name cannot be used: {why}", "rename it")
        if self.files.setdefault(name, file) != file:
            raise InputError(f"{clean(str(file))} and {clean(str(self.files[name]))} would be one file", "rename one")
        self._names[file] = name

    def _name(self, file: Path) -> str:
        base = next((b.resolve() for b in self.bases if file.is_relative_to(b.resolve())), None)
        return file.relative_to(base).as_posix() if base else ""

    def _holds(self, file: Path) -> list[str]:
        """Secrets in a file; a home path is no reason to keep it."""
        try:
            data = file.read_bytes()
        except OSError as e:
            raise InputError(f"cannot read {clean(str(file))}: {e.strerror or e}", "make it readable") from e
        return [kind for kind in self.private.found(data) if "secret" in kind or "token" in kind]

    # ------------------------------------------------------------------------------------------------ words

    def _spec(self, spec: str, find: _Finder) -> str:
        head, sep, rest = spec.partition(":")
        if head == "cmd":
            return f"{head}{sep}{self._command(rest, find)}"
        if head.endswith(".py"):
            return f"{self._word(head, find)}{sep}{self.private.text(rest)}"
        return self.private.text(spec)

    def _command(self, line: str, find: _Finder) -> str:
        try:
            words = shlex.split(line)
        except ValueError:
            return self.private.text(line)
        cleared = shlex.split(self.private.command(line))
        return joined(self._moved(word, find) or plain for word, plain in zip(words, cleared, strict=True))

    def _moved(self, word: str, find: _Finder) -> str:
        """The word with which a file that goes along is found in `candidate_files/`; "" for another word."""
        file = find(word)
        if file is not None and (name := self._names.get(file.resolve())):
            same = os.path.normpath(word) == os.path.normpath(name)
            return word if same else name if "/" in name else f"./{name}"
        option, sep, value = word.partition("=")
        moved = self._moved(value, find) if value else ""
        return f"{option}{sep}{moved}" if moved else ""

    def _word(self, word: str, find: _Finder) -> str:
        return self._moved(word, find) or self.private.text(word)

    def _whole(self, value: Any, find: _Finder) -> Any:
        """The path of a file that goes along, from the bundle's folder; another value as it is."""
        file = find(value) if isinstance(value, str) else None
        name = self._names.get(file.resolve()) if file is not None else None
        return f"{CANDIDATE_FILES}/{name}" if name else value


class _Finder:
    """Word → the file that it names. Where several folders have one, that whose contents are those of the case."""

    def __init__(self, places: Sequence[Path], known: Mapping[str, str]) -> None:
        self.places, self.known = places, known

    def __call__(self, word: str) -> Path | None:
        found = [path for place in self.places if _is_file(path := place / word)]
        digest = self.known.get(word)
        same = (p for p in found if digest and hashlib.sha256(p.read_bytes()).hexdigest() == digest)
        return next(same, found[0] if found else None)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file() and os.access(path, os.R_OK)
    except (OSError, ValueError):  # a name that is too long, or a NUL
        return False


def _words(command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError:
        return []
    return [part for word in words for part in (word, word.partition("=")[2]) if part]


def _inside(path: Path) -> Iterator[Path]:
    """A file, or the files of a folder; no hidden ones, no links."""
    if path.is_file():
        yield path
        return
    for folder, folders, files in os.walk(path):
        folders[:] = sorted(f for f in folders if not f.startswith(".") and f not in HIDDEN)
        for file in sorted(files):
            found = Path(folder, file)
            if not file.startswith(".") and found.is_file() and not found.is_symlink():
                yield found
