"""The candidate's files that the user names -> the files below `candidate_files/` in a bundle, as
they are.

The receiver's commands run in `candidate_files/`, so a file keeps its path relative to the
project's folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from subgraph.cases.layout import CANDIDATE_FILES
from subgraph.cases.redact import Redactor
from subgraph.cases.zip_archive import name_problem
from subgraph.errors import InputError, UsageError

SKIPPED = ("__pycache__",)  # folders, besides hidden ones


def collect(paths: Sequence[Path], bases: Sequence[Path], redactor: Redactor) -> dict[str, Path]:
    """Name below `candidate_files/` -> file, of files and folders. Names are relative to the first
    of `bases` around.

    Raises:
        UsageError: a file is not there, or holds a secret. InputError: it cannot be read, or its
            name cannot be used.
    """
    files: dict[str, Path] = {}
    for path in paths:
        if not path.exists():
            raise UsageError(
                f"--candidate-files {path}: no such file",
                "name a file or a folder",
                code="file.not-found",
            )
        for file in map(Path.resolve, _files(path)):
            base = next(
                (b.resolve() for b in bases if file.is_relative_to(b.resolve())),
                path.resolve().parent,
            )
            name = file.relative_to(base).as_posix()
            if kinds := [
                kind for kind in redactor.leaks(_read(file)) if "secret" in kind or "token" in kind
            ]:
                raise UsageError(
                    f"{file} holds {kinds[0]}",
                    "take it out of there before it is sent",
                    code="bundle.secret",
                )
            if why := name_problem(f"{CANDIDATE_FILES}/{name}"):
                raise InputError(
                    f"{file}: its name cannot be used: {why}",
                    "rename it",
                    code="bundle.unsafe-name",
                )
            if files.setdefault(name, file) != file:
                raise InputError(
                    f"{file} and {files[name]} would be one file",
                    "rename one",
                    code="bundle.same-name",
                )
    return files


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as e:
        raise InputError(
            f"cannot read {file}: {e.strerror or e}",
            "make it readable",
            code="file.unreadable",
        ) from e


def _files(path: Path) -> Iterator[Path]:
    """A file, or the files of a folder; no hidden files, no links."""
    if path.is_file():
        yield path
        return
    for folder, folders, files in os.walk(path):
        folders[:] = sorted(f for f in folders if not f.startswith(".") and f not in SKIPPED)
        for file in sorted(files):
            inner = Path(folder, file)
            if not file.startswith(".") and inner.is_file() and not inner.is_symlink():
                yield inner
