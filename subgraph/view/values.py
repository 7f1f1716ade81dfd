"""Values of a tensor in a run or a case -> numbers, pictures and worst elements for the page; and
whether the files of its model are still those that were read.

A file counts as another one as soon as its size, times or inode differ: an export that writes the
same bytes again only costs a reload, while an old network over a new file would be cut at other
nodes than the page shows.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Collection, Sequence
from dataclasses import field
from functools import partial
from pathlib import Path

from subgraph.cases.evidence import list_case_values
from subgraph.documents import to_json
from subgraph.drawing import tensor as drawn
from subgraph.errors import DataError, InputError, ModelError, UsageError
from subgraph.graph.graph import Graph, load
from subgraph.graph.model_file import find_external_files
from subgraph.iterables import flatten, ungroup
from subgraph.storage.tensors import format_shape
from subgraph.storage.value_pairs import is_saved, load_pair, read_pairs
from subgraph.types import Array, JsonObject, frozen

RECORD = "the device's record"
MAX_DRAWN = 1 << 23  # elements; of a larger tensor one plane is drawn
MAX_LISTED = 4096  # planes with their errors


@frozen
class ShownValue:
    """A tensor of one sample, read when it is shown.

    Attributes:
        source: The candidate or recording whose value is shown with the reference's.
        place: The case that holds both; "" for a run.
        load: Returns the reference's value and the other one.
        alone: The case holds only the reference's.
        recorded: The other one is a device's record in a case, whose reference was fed the
            device's earlier records.
    """

    tensor: str
    sample: str
    source: str
    place: str
    load: Callable[[], tuple[Array, Array | None]]
    alone: bool = False
    recorded: bool = False


def list_run_values(folder: Path, tensors: Collection[str]) -> list[ShownValue]:
    """Return the values of tensors that `subcut compare --save` wrote.

    Raises:
        InputError: the folder is damaged.
    """
    # each of several candidates has a folder
    places = [folder] if is_saved(folder) else sorted(folder.iterdir())
    pairs = ungroup((place, read_pairs(place)) for place in places)
    return [
        ShownValue(p.tensor, p.sample, p.source, "", partial(load_pair, at, p))
        for at, p in pairs
        if p.tensor in tensors
    ]


def list_shown_case_values(folder: Path, tensors: Sequence[str], place: str) -> list[ShownValue]:
    """Return the values of tensors in a case; [] for a damaged one."""
    try:
        found = list(flatten(list_case_values(folder, name) for name in tensors))
    except InputError:
        return []
    return [
        ShownValue(
            v.tensor, v.sample, v.source or RECORD, place, v.load, v.given is None, not v.source
        )
        for v in found
    ]


def describe_tensor(values: Sequence[ShownValue], number: int, plane: int | None) -> JsonObject:
    """Return one of the values as plain data, some 600 kB at most.

    Args:
        values: The values; without any, the document has only `pairs`.
        number: The position of the value.
        plane: The number of the map; None for that which differs most.

    Raises:
        UsageError: there is no such value or plane.
        InputError: its files are damaged.
    """
    if not values:
        return {"pairs": []}
    if not 0 <= number < len(values):
        raise UsageError("there is no such tensor", code="view.unknown-values")
    value = values[number]
    reference, given = value.load()
    notes = _list_notes(value, reference, given)
    if given is not None and given.shape != reference.shape:
        given = None
    shape = reference.shape
    dtype = str(reference.dtype)
    if not reference.size:
        reference = reference.reshape(0)
        given = None if given is None else given.reshape(0)
    planes = drawn.count_planes(reference.shape)
    large = reference.size > MAX_DRAWN
    errors = None if given is None or large else drawn.compute_plane_errors(reference, given)
    if plane is None:
        plane = errors.index(max(errors)) if errors else 0
    if not 0 <= plane < planes:
        raise UsageError(f"channels are 0 to {planes - 1}", code="view.unknown-values")
    shown = plane
    if large:
        notes.append(
            f"a large tensor: numbers and pictures are of channel {plane} alone, of its first"
            " elements"
        )
        reference = _select_plane(reference, planes, plane)
        shown = 0
        given = None if given is None else _select_plane(given, planes, plane)
    return {
        "pairs": to_json(
            [
                {"tensor": v.tensor, "sample": v.sample, "source": v.place or v.source}
                for v in values
            ]
        ),
        "source": value.source,
        "stored": bool(value.place),
        "shape": list(shape),
        "dtype": dtype,
        "notes": notes,
        "planes": planes,
        "plane": plane,
        "statistics": {
            "reference": to_json(drawn.compute_statistics(reference)),
            "given": None if given is None else to_json(drawn.compute_statistics(given)),
        },
        "errors": None if errors is None else to_json(errors[:MAX_LISTED]),
        "cells": to_json(drawn.map_cells(reference, given, shown)),
        "worst": [] if given is None else to_json(drawn.find_worst_elements(reference, given)),
    }


def _list_notes(value: ShownValue, reference: Array, given: Array | None) -> list[str]:
    """Return notes on the origin of a value, and on the lack of one to compare."""
    notes = [f"stored in {value.place}"] if value.place else []
    if given is None:
        lack = "" if value.alone else "no value of this tensor"
    else:
        lack = f"another shape, {format_shape(given.shape)}" * (given.shape != reference.shape)
    if lack:
        notes.append(f"{value.source} gave {lack}: only the reference is shown")
    elif given is not None and value.recorded:
        notes[0] += f": {RECORD}, with the reference for the inputs that the device recorded"
    elif given is not None and value.place:
        notes[0] += f", where {value.source} ran this piece alone"
    return notes


def _select_plane(values: Array, planes: int, plane: int) -> Array:
    """Return one plane of a large tensor as a matrix of at most `MAX_DRAWN` elements.

    Nothing else of a mapped file is read.
    """
    matrix: Array = values.reshape(planes, -1, values.shape[-1])[plane][:, :MAX_DRAWN]
    part: Array = matrix[: max(1, MAX_DRAWN // matrix.shape[1])]
    return part


Stamp = tuple[int, ...] | None  # None: there is no such file


class ModelChanged(ModelError):
    """The model's file is not the one that the page shows."""


@frozen
class OpenedModel:
    """A graph and the state of its files before they were read.

    Attributes:
        key: A text that is new for each reading.
    """

    graph: Graph
    stamps: dict[Path, Stamp]
    key: str = field(default_factory=lambda: secrets.token_hex(8))

    @property
    def is_current(self) -> bool:
        """Whether the files on disk are those that were read; a few calls of `stat`."""
        return all(_stamp(path) == stamp for path, stamp in self.stamps.items())

    def require(self, key: object) -> None:
        """Require that the page shows the files as they are.

        Raises:
            ModelChanged: the files have changed, or the page shows another reading of them.
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
    with contextlib.suppress(DataError):  # the page shows such a model, and runs raise the error
        stamps |= {file: _stamp(file) for file in find_external_files(graph).values()}
    return OpenedModel(graph, stamps)


def _stamp(path: Path) -> Stamp:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino
