"""A Hugging Face data set on disk, as `save_to_disk` writes it -> a folder of samples.

Its rows lie in files of Apache Arrow, which pyarrow reads. A column feeds the input of its name;
the only picture, or the only column of numbers, needs no name. A row lacks the axis of the batch.
A path in a row is not followed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from subgraph.errors import InputError, NotInstalled, explain_os_error
from subgraph.log import log
from subgraph.storage import folders
from subgraph.text import clean
from subgraph.types import StringMap
from subgraph.version import make_install_command

if TYPE_CHECKING:
    import pyarrow

INFO = "dataset_info.json"
STATE = "state.json"
SPLITS = "dataset_dict.json"
MAX_ROWS = 32  # each is a run of the model


def is_dataset(folder: Path) -> bool:
    """Return whether a folder holds a data set."""
    return (folder / INFO).is_file() or (folder / SPLITS).is_file()


def unpack(folder: Path, inputs: tuple[tuple[str, int], ...]) -> Path:
    """Write the first rows of a data set into a folder of samples, which exists until the process
    ends.

    Args:
        folder: The data set.
        inputs: The names of the model's inputs, and how many axes each has.

    Raises:
        NotInstalled: pyarrow is not installed.
        InputError: The folder holds several splits, or rows that are indexed, or no column fits.
    """
    if (folder / SPLITS).is_file():
        splits = ", ".join(sorted(p.parent.name for p in folder.glob(f"*/{INFO}")))
        raise InputError(
            f"{folder} holds a data set with the splits {clean(splits)}",
            "name the folder of one of them",
            code="dataset.splits",
        )
    state = folder / STATE  # `save_to_disk` writes it again
    written_at = state.stat().st_mtime_ns if state.is_file() else 0
    what = f"cannot unpack the data set {folder}"
    hint = "free space in the folder for temporary files, or set TMPDIR"
    with explain_os_error(InputError, what, hint, code="dataset.not-unpacked"):
        return _unpack_once(folder.resolve(), inputs, written_at)


@cache
def _unpack_once(folder: Path, inputs: tuple[tuple[str, int], ...], written_at: int) -> Path:
    """Unpack a data set as it was at a time, in nanoseconds; once per process."""
    table = _read(folder)
    ranks = dict(inputs)
    columns = _choose(table, [*ranks], folder)
    rows = min(len(table), MAX_ROWS)
    if rows < len(table):
        log.info("%s: the first %d of %d rows are fed", clean(str(folder)), rows, len(table))
    samples = folders.make_lasting("subcut-dataset")
    for k in range(rows):
        place = samples / f"row_{k}"
        place.mkdir()
        for column, name in columns.items():
            _write(table[column], k, ranks[name], place / folders.make_safe_name(name))
    return samples


def _read(folder: Path) -> pyarrow.Table:
    try:
        import pyarrow
    except ImportError as e:
        raise NotInstalled(
            "pyarrow is not installed", make_install_command("arrow"), code="package.not-installed"
        ) from e
    try:
        state = json.loads((folder / STATE).read_text(encoding="utf-8"))
        names = [Path(file["filename"]).name for file in state["_data_files"]]
        parts = [
            pyarrow.ipc.open_stream(pyarrow.memory_map(str(folder / name))).read_all()
            for name in names
        ]
        table = pyarrow.concat_tables(parts)
    except (OSError, ValueError, LookupError, TypeError, pyarrow.ArrowException) as e:
        raise InputError(
            f"cannot read the data set {folder}: {e}",
            "write it again with save_to_disk",
            code="dataset.damaged",
        ) from e
    if state.get("_indices_files"):
        raise InputError(
            f"the rows of {folder} are chosen by indices",
            "write it with flatten_indices().save_to_disk(…)",
            code="dataset.indexed",
        )
    return table


def _choose(table: pyarrow.Table, inputs: Sequence[str], folder: Path) -> StringMap:
    """Return the columns that are fed, with the inputs that they feed."""
    named = {column: column for column in table.column_names if column in inputs}
    if named:
        return named
    kinds = {field.name: str(field.type) for field in table.schema}
    pictures = [name for name, kind in kinds.items() if kind.startswith("struct<bytes")]
    numbers = [name for name, kind in kinds.items() if "list" in kind and "string" not in kind]
    for columns in (pictures, numbers):
        if len(columns) == 1 and len(inputs) == 1:
            return {columns[0]: inputs[0]}
    raise InputError(
        f"{folder}: no column is named as an input; it has {clean(', '.join(kinds))}",
        f"rename_column to {clean(', '.join(inputs))}, and write it again",
        code="dataset.no-column",
    )


def _write(column: Any, k: int, rank: int, place: Path) -> None:
    """Write an element as `place` with .png or .npy added to its name."""
    import numpy as np

    value = column[k].as_py()
    if isinstance(value, dict):
        if not value.get("bytes"):
            raise InputError(
                f"row {k} holds the path of a picture, not the picture",
                "write the data set with embedded pictures",
                code="dataset.not-embedded",
            )
        place.with_name(place.name + ".png").write_bytes(value["bytes"])
        return
    kind = column.type
    while hasattr(kind, "value_type"):
        kind = kind.value_type
    try:
        array = np.array(value, kind.to_pandas_dtype())
    except (TypeError, ValueError) as e:
        raise InputError(
            f"row {k} is no tensor: {e}", "make all its lists as long", code="dataset.no-tensor"
        ) from e
    if array.ndim == rank - 1:
        array = array[np.newaxis]
    np.save(place.with_name(place.name + ".npy"), array, allow_pickle=False)
