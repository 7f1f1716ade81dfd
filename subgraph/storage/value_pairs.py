"""Values of tensors of the reference and of another source → a folder of .npy files, and back.

values.json        which file holds what
t0/0.reference.npy the first tensor of the first sample; t0/0.given.npy: the value of the candidate
                   or the device
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from subgraph.documents import read_document, to_json
from subgraph.errors import InputError, ResultExists
from subgraph.lazy import np
from subgraph.storage import folders, tensors
from subgraph.types import Array, frozen

SCHEMA = "subcut.values/1"
INDEX = "values.json"
HINT = "write it again with `subcut compare --save DIR`"


class ValuePair(NamedTuple):
    """A tensor of one sample; `given` is the value of `source`, None without one."""

    tensor: str
    sample: str
    source: str
    reference: Any
    given: Any


@frozen
class SavedPair:
    """The files of a `ValuePair`, relative to the folder."""

    tensor: str
    sample: str
    source: str
    reference: str
    given: str | None


@frozen
class SavedValues:
    """The list in the folder."""

    schema: str
    values: Sequence[SavedPair]


def save_values(pairs: Iterable[ValuePair], place: Path) -> int:
    """Write pairs of arrays into a folder, which is replaced at once; returns how many. Other
    values are omitted.

    Types that numpy lacks, such as bfloat16, are written as float32, which holds them.

    Raises:
        OutputError: the disk is full or not writable.
    """
    saved: list[SavedPair] = []
    numbers: dict[str, int] = {}
    with folders.write_aside(place) as work:
        for pair in pairs:
            if not isinstance(pair.reference, np.ndarray | np.generic):
                continue
            folder = f"t{numbers.setdefault(pair.tensor, len(numbers))}"
            (work / folder).mkdir(exist_ok=True)
            files: dict[str, str] = {}
            for side, value in (("reference", pair.reference), ("given", pair.given)):
                if isinstance(value, np.ndarray | np.generic):
                    array = np.asarray(value)
                    if array.dtype.isbuiltin != 1:
                        array = array.astype(np.float32)
                    files[side] = f"{folder}/{len(saved)}.{side}.npy"
                    np.save(work / files[side], array, allow_pickle=False)
            names = (files["reference"], files.get("given"))
            saved.append(SavedPair(pair.tensor, pair.sample, pair.source, *names))
        document = to_json(SavedValues(SCHEMA, saved))
        (work / INDEX).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return len(saved)


def require_free_folder(folder: str) -> Path:
    """Return a folder to write into: a new one, or one of `save_values`, which is replaced.

    Raises:
        ResultExists: something else is there.
    """
    path = Path(folder)
    if path.exists() and not is_saved(path) and not (path.is_dir() and not any(path.iterdir())):
        raise ResultExists(
            f"{path} holds something else",
            "name another folder with --save",
            code="output.not-ours",
        )
    return path


def is_saved(folder: Path) -> bool:
    """Return whether a folder is one of `save_values`, which puts it there when it is complete."""
    return (folder / INDEX).is_file()


def read_pairs(folder: Path) -> list[SavedPair]:
    """Return the pairs in a folder of `save_values`.

    Raises:
        InputError: It is not such a folder, or damaged.
    """
    return list(read_document(folder / INDEX, SavedValues, HINT).values)


def load_pair(folder: Path, pair: SavedPair) -> tuple[Array, Array | None]:
    """Return (reference, given); never a file outside the folder.

    Raises:
        InputError: a file is missing or damaged.
    """
    return _load(folder, pair.reference), None if pair.given is None else _load(folder, pair.given)


def _load(folder: Path, name: str) -> Array:
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise InputError(f"{name} leads out of {folder}", HINT, code="tensor.outside-folder")
    return tensors.read_npy(path, mapped=True)
