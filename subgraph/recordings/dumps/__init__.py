"""One file per format in which tools and devices leave tensors: `detect`, `entries` and, where users need it, `write`.

    detect(files: Files) -> int                             NONE, BARE, TYPED or MARKED: how surely it is this format
    entries(files: Files, known: Known) -> Iterable[Entry]  what it holds; no values are read yet
    plain(name: str) -> str                                 optional: a name as this tool writes it; twice is as once
    write(tensors: Tensors, folder: Path) -> None           optional; HOLDS: the element types that come back unchanged

A format opens files through `Files` only, which keeps to the folder and checks sizes before memory is taken. What is
damaged ends in an InputError; what one entry lacks (a type that nobody said) stands in its `lacks`, and the others are
still read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Protocol

from subgraph.errors import InputError
from subgraph.recordings.files import Files, possible
from subgraph.storage import dtypes, layouts
from subgraph.storage.folders import safe_name

if TYPE_CHECKING:
    import numpy as np

    from subgraph.types import Array

NONE = 0  # not this format
BARE = 1  # bytes or numbers that could be many a thing
TYPED = 2  # each file says what it holds
MARKED = 3  # names, a list or a magic number that one tool alone leaves


@dataclass(frozen=True)
class TensorSpec:
    """What a model or a manifest says of a tensor that its file does not.

    Attributes:
        dtype: numpy's or ml_dtypes' name; "" where nothing is said.
        shape: None where nothing is said; a dimension is None where it is open.
        layout: of the file, if not the model's.
        aligned: the file's shape, with the rows padded that the device aligns.
        strides: in bytes, where the rows are padded otherwise.
        offset: of the first byte in the file.
    """

    dtype: str = ""
    shape: tuple[int | None, ...] | None = None
    layout: str = ""
    aligned: tuple[int, ...] | None = None
    strides: tuple[int, ...] | None = None
    offset: int = 0


@dataclass(frozen=True)
class DumpHints:
    """What is known from elsewhere: types and shapes by the model's names; the layout of files that say nothing."""

    specs: Mapping[str, TensorSpec] = field(default_factory=dict)
    layout: str = ""
    _written: dict[Callable[[str], str], dict[str, list[TensorSpec]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def find(self, name: str, plain: Callable[[str], str]) -> TensorSpec:
        """What is said of a name as a tool wrote it; nothing where several tensors would be written so."""
        if name in self.specs:
            return self.specs[name]
        if plain not in self._written:
            written: dict[str, list[TensorSpec]] = {}
            self._written[plain] = written
            for own, spec in self.specs.items():
                for form in {plain(own), plain(safe_name(own))}:
                    written.setdefault(form, []).append(spec)
        hits = self._written[plain].get(plain(name), [])
        return hits[0] if len(hits) == 1 else TensorSpec()


@dataclass(frozen=True)
class DumpEntry:
    """One tensor of a recording; its values stay in the file until `read`.

    Attributes:
        file: where it lies, relative to the folder.
        stem: what a converted file would be called, without its end.
        dtype: numpy's or ml_dtypes' name.
        shape: as stored; None where nobody says.
        layout: as stored; "" where it is the model's, or nobody says.
        tensor, node: the names as the tool spelled them; "" where it names the other only.
        role, index: the node's output or input, and which.
        originals: names in the model, where the recording itself says them: of a tensor or a node.
        original_index: the output of that node.
        fused: names of all the model's nodes that the device made one.
        original_shape, original_layout: of the tensor in the model; None and "" where the recording does not say.
        side: which of several recordings in one folder: golden, simulator, a sample, a runner.
        step: what the last printed digit is worth; 0 where values are exact.
        note: what a reader should know: inserted by the toolkit, say.
        lacks: why it cannot be read; "" where it can.
    """

    file: str
    load: Callable[[], Array] = field(repr=False, compare=False)
    dtype: str = "float32"
    shape: tuple[int, ...] | None = None
    layout: str = ""
    tensor: str = ""
    node: str = ""
    role: str = "output"
    index: int = 0
    originals: tuple[str, ...] = ()
    original_index: int = 0
    fused: tuple[str, ...] = ()
    original_shape: tuple[int, ...] | None = None
    original_layout: str = ""
    side: str = ""
    step: float = 0.0
    note: str = ""
    lacks: str = ""
    stem: str = ""

    @property
    def name(self) -> str:
        """What to call it: the tensor, or the node and which of its outputs."""
        return self.tensor or f"{self.node}:{self.role}:{self.index}"

    @property
    def target(self) -> str:
        """What a converted file is called, without its end: a path relative to the folder."""
        return self.stem or PurePosixPath(self.file).with_suffix("").as_posix()

    def raw(self) -> Array:
        """The values as stored.

        Raises:
            InputError: they cannot be read, or are not what the header says.
        """
        if self.lacks:
            raise InputError(f"cannot read {self.name} in {self.file}: {self.lacks}")
        return self.load()

    def read(self) -> Array:
        """The values in the model's layout.

        Raises:
            InputError: as `raw`; or the layout is unknown or does not fit.
        """
        if not possible(self.original_shape or ()):
            raise InputError(f"cannot read {self.file}: no tensor has the shape {list(self.original_shape or ())}")
        try:
            return layouts.to_model(self.raw(), self.layout, self.original_shape, self.original_layout)
        except InputError as e:
            raise InputError(e.what if self.file in e.what else f"cannot read {self.file}: {e.what}", e.hint) from e


class DumpFormat(Protocol):
    """What a module in this folder offers."""

    def detect(self, files: Files) -> int:
        """How surely these files are of this format."""

    def entries(self, files: Files, known: DumpHints) -> Iterable[DumpEntry]:
        """What they hold."""


def same(name: str) -> str:
    """The `plain` of a format that keeps names."""
    return name


def dtype_of(array_dtype: np.dtype[Any]) -> str:
    """The element type's name as we know it; "" where ONNX has none such.

    >>> import numpy as np
    >>> dtype_of(np.dtype(">f4")), dtype_of(np.dtype("S3"))
    ('float32', '')
    """
    name = "string" if array_dtype.kind == "U" else array_dtype.name
    return name if name in dtypes.TYPE_NUMBERS else ""
