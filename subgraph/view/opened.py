"""A model that a page shows, and whether the files that it was read from are still the same.

A file counts as another one as soon as its size, times or inode differ: an export that writes the
same bytes again only costs a reload, while an old network over a new file would be cut at other
nodes than the page shows.
"""

from __future__ import annotations

import contextlib
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from subgraph.errors import DataError, ModelError
from subgraph.graph.graph import Graph, load
from subgraph.graph.model_file import external_files

Stamp = tuple[int, ...] | None  # None: there is no such file


class ModelChanged(ModelError):
    """The model's file is not the one that the page shows."""


@dataclass(frozen=True)
class OpenedModel:
    """A graph and what its files were like before they were read; `key` is new for each reading."""

    graph: Graph
    stamps: dict[Path, Stamp]
    key: str = field(default_factory=lambda: secrets.token_hex(8))

    @property
    def is_current(self) -> bool:
        """Whether the files on disk are those that were read; a few calls of `stat`."""
        return all(_stamp(path) == stamp for path, stamp in self.stamps.items())

    def require(self, key: object) -> None:
        """
        Raises:
            ModelChanged: the files have changed, or the asking page shows another reading of them.
        """
        if key != self.key or not self.is_current:
            raise ModelChanged(
                f"{self.graph.path.name} has changed on disk",
                "reload the page; nothing was run",
                code="model.changed",
            )


def open_model(path: Path) -> OpenedModel:
    """Read a model; its stamps are older than the graph, so that a change meanwhile is noticed.

    Raises:
        ModelError: as `load`.
    """
    stamp = _stamp(path)
    graph = load(path)
    stamps = {path: stamp}
    with contextlib.suppress(
        DataError
    ):  # such a model can be looked at, and its runs say what is missing
        stamps |= {file: _stamp(file) for file in external_files(graph).values()}
    return OpenedModel(graph, stamps)


def _stamp(path: Path) -> Stamp:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino
