"""A candidate's commands -> the files that they name, which a bundle takes along, and the commands rewritten for them.

A file in the project's folder is taken by itself; other files only where the user adds them. In the bundle commands run
in `candidate_files/`, so a path relative to the project's folder does not change.
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
from subgraph.cases.redact import REMOVED, Redactor, joined
from subgraph.cases.zip_archive import name_problem
from subgraph.errors import InputError, UsageError
from subgraph.runtime.backends import capabilities
from subgraph.runtime.candidate import COMMANDS, RUN
from subgraph.text import clean

MAX_BYTES = 64 << 20  # of a file that the user did not add
SYSTEM = ("/bin/", "/usr/", "/opt/", "/lib/", "/sbin/", f"{sys.prefix}/")  # a receiver has these files as well
HIDDEN = ("__pycache__",)


@dataclass
class Scripts:
    """The files that a bundle takes along.

    Attributes:
        bases: folders whose files are taken by themselves, and in which relative names are looked up.
        files: name below `candidate_files/` → file.
        left: files that a command names and that are not taken, and why.
    """

    redactor: Redactor
    bases: Sequence[Path] = ()
    files: dict[str, Path] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    _names: dict[Path, str] = field(default_factory=dict)

    def add(self, path: Path) -> None:
        """Take a file or a folder that the user added.

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

    def collect(self, evidence: Mapping[str, Any]) -> dict[str, Any]:
        """Take the files of the candidate in a manifest; return it redacted, naming the files in `candidate_files/`."""
        request = evidence["request"]
        identity, name = request["identity"], str(request["candidate"])
        options = dict(identity["options"])
        runs_commands = any(step in options for step in capabilities(str(identity["backend"])).commands)
        folder = str(options.pop("folder", "")) if runs_commands else ""
        digests = dict(identity.get("files") or {})
        find = _Finder([Path(folder)] if folder else list(self.bases), digests)
        if runs_commands:
            for step in COMMANDS:
                for word in _words(str(options.get(step) or "")):
                    self._take_named(find(word), digests.get(word))
            options |= {step: self._command(str(options[step]), find) for step in COMMANDS if options.get(step)}
        else:
            for word in (str(identity["backend"]), *map(str, options.values())):
                self._take_named(find(word) if word.endswith(".py") or word in digests else None, digests.get(word))
            options = {k: self._whole(v, find) for k, v in options.items()}
        rewritten = {
            **identity,
            "backend": self._whole(identity["backend"], find),
            "options": options,
            "files": {self._word(word, find): digest for word, digest in digests.items()},
        }
        manifest = dict(self.redactor.document({**evidence, "request": {**request, "identity": rewritten}}))
        redacted = manifest["request"]["identity"]  # the name of a file that is taken is not redacted
        redacted["options"] |= {k: v for k, v in options.items() if k in COMMANDS or _is_taken(v)}
        redacted["backend"] = rewritten["backend"] if _is_taken(rewritten["backend"]) else redacted["backend"]
        manifest["request"]["candidate"] = self._spec(name, find)
        return manifest

    # ------------------------------------------------------------------------------------------------ files

    def _take_named(self, file: Path | None, digest: str | None) -> None:
        """Take a file that a command names, if it lies in the project's folder. `digest`: when the case was found."""
        if file is None or file.resolve() in self._names:
            return
        shown = clean(file.name)
        name = self._name(file.resolve())
        if not name:
            if not str(file.resolve()).startswith(SYSTEM) and not str(file).startswith(SYSTEM):
                self.left[shown] = "it lies outside the project's folder"
        elif file.stat().st_size > MAX_BYTES:
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
        """Kinds of secrets in a file; a home path is none."""
        try:
            data = file.read_bytes()
        except OSError as e:
            raise InputError(f"cannot read {clean(str(file))}: {e.strerror or e}", "make it readable") from e
        return [kind for kind in self.redactor.leaks(data) if "secret" in kind or "token" in kind]

    # ------------------------------------------------------------------------------------------------ words

    def _spec(self, spec: str, find: _Finder) -> str:
        head, sep, rest = spec.partition(":")
        if RUN in capabilities(head).commands:
            return f"{head}{sep}{self._command(rest, find)}"
        if head.endswith(".py"):
            return f"{self._moved(head, find) or self.redactor.spec(head)}{self.redactor.spec(f'x{sep}{rest}')[1:]}"
        return self.redactor.spec(spec)

    def _command(self, line: str, find: _Finder) -> str:
        try:
            words = shlex.split(line)
        except ValueError:
            return REMOVED
        redacted = shlex.split(self.redactor.command(line))
        return joined(self._moved(word, find) or plain for word, plain in zip(words, redacted, strict=True))

    def _moved(self, word: str, find: _Finder) -> str:
        """The word that names the same file in `candidate_files/`; "" for a word that names no file that is taken."""
        file = find(word)
        if file is not None and (name := self._names.get(file.resolve())):
            same = os.path.normpath(word) == os.path.normpath(name)
            return word if same else name if "/" in name else f"./{name}"
        option, sep, value = word.partition("=")
        moved = self._moved(value, find) if value else ""
        return f"{option}{sep}{moved}" if moved else ""

    def _word(self, word: str, find: _Finder) -> str:
        return self._moved(word, find) or self.redactor.command(shlex.quote(word))

    def _whole(self, value: Any, find: _Finder) -> Any:
        """The path, from the bundle's folder, of a file that is taken; another value unchanged."""
        file = find(value) if isinstance(value, str) else None
        name = self._names.get(file.resolve()) if file is not None else None
        return f"{CANDIDATE_FILES}/{name}" if name else value


class _Finder:
    """Word → the file that it names; of several folders the one whose file is the same as when the case was found."""

    def __init__(self, folders: Sequence[Path], digests: Mapping[str, str]) -> None:
        self.folders, self.digests = folders, digests

    def __call__(self, word: str) -> Path | None:
        files = [path for folder in self.folders if _is_file(path := folder / word)]
        digest = self.digests.get(word)
        same = (f for f in files if digest and hashlib.sha256(f.read_bytes()).hexdigest() == digest)
        return next(same, files[0] if files else None)


def _is_taken(value: object) -> bool:
    return str(value).startswith(f"{CANDIDATE_FILES}/")


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
    """A file, or the files of a folder; no hidden files, no links."""
    if path.is_file():
        yield path
        return
    for folder, folders, files in os.walk(path):
        folders[:] = sorted(f for f in folders if not f.startswith(".") and f not in HIDDEN)
        for file in sorted(files):
            inner = Path(folder, file)
            if not file.startswith(".") and inner.is_file() and not inner.is_symlink():
                yield inner
