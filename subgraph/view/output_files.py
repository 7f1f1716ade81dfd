"""Files in the output folder: results to which the page leads, and inputs dropped onto the page."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path
from typing import Protocol

from subgraph.errors import InputError, UsageError
from subgraph.storage.folders import make_safe_name
from subgraph.text import is_text
from subgraph.types import frozen

DROPPED = "view_inputs"  # in the output folder: files that were dropped onto the page
FILE_KINDS = (".npy", ".npz", ".png", ".jpg", ".jpeg", ".bmp")
CHUNK = 1 << 20


class ByteSource(Protocol):
    """Something to read bytes from."""

    def read(self, size: int, /) -> bytes: ...


@frozen
class OutputFiles:
    """The output folder, as the page sees it: by names in the folder.

    Attributes:
        folder: The folder, without links.
    """

    folder: Path

    def drop(self, name: str, data: ByteSource, size: int) -> dict[str, str]:
        """Store a file that was dropped onto the page, and return its name in the output folder.

        Raises:
            InputError: it is of another kind, or ends too soon.
        """
        suffix = Path(name).suffix.lower()
        if suffix not in FILE_KINDS:
            raise InputError(
                f"{name}: the page takes {', '.join(FILE_KINDS)}",
                "name others with -i FILE",
                code="input.unknown-kind",
            )
        folder = self.folder / DROPPED
        folder.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256()
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as out:
            left = size
            while left and (chunk := data.read(min(CHUNK, left))):
                out.write(chunk)
                digest.update(chunk)
                left -= len(chunk)
        if left:
            Path(out.name).unlink()
            raise InputError(
                f"{name} ended {left} bytes too soon",
                "drop it again",
                code="view.upload-cut-short",
            )
        stored = f"{digest.hexdigest()[:8]}-{make_safe_name(Path(name).stem)[:60]}{suffix}"
        Path(out.name).replace(folder / stored)
        return {"file": stored}

    def find(self, name: str) -> Path:
        """Return the path of a file or folder in the output folder.

        Raises:
            UsageError: the name does not exist, or leads elsewhere.
        """
        path = (self.folder / name).resolve() if name and "\0" not in name else self.folder
        if not path.is_relative_to(self.folder) or path == self.folder or not path.exists():
            raise UsageError("there is no such file in the output folder", code="view.unknown-file")
        return path

    def find_name(self, path: str | None) -> str:
        """Return the name of a file or folder in the output folder; "" for others."""
        if path and is_text(path):
            full = Path(path).resolve()
            if full.is_relative_to(self.folder) and full.exists():
                return full.relative_to(self.folder).as_posix()
        return ""
