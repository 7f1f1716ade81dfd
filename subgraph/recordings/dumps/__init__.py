"""One file per format in which tools and devices leave tensors: `detect` and `entries`.

    detect(files: Files) -> int
        NONE, BARE, TYPED or MARKED: how surely the files are of this format
    entries(files: Files, hints: DumpHints) -> Iterable[DumpEntry]
        the tensors; no values are read yet
    plain(name: str) -> str
        optional: a name as this tool writes it; idempotent
    HALF = True
        optional: it computes floats in float16, whatever it writes

A format opens files through `Files` only, which stays in the folder and checks sizes before memory
is taken. A damaged file raises InputError. An entry that cannot be read, because of an unknown type
for example, has the reason in `missing`; the others are still read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, replace
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from subgraph.errors import InputError
from subgraph.recordings.dump_files import is_possible_shape
from subgraph.storage import dtypes, layouts
from subgraph.storage.dtypes import Scale
from subgraph.storage.folders import make_safe_name
from subgraph.types import Array, Shape, Strings, frozen

NONE = 0  # not this format
BARE = 1  # bytes or numbers that could be of many formats
TYPED = 2  # each file stores type and shape
MARKED = 3  # names, a list or a magic number that only one tool leaves
NO_SHAPE = "its shape is not known"


@frozen
class TensorSpec:
    """Facts from a model or a manifest about a tensor whose file does not store them.

    Attributes:
        dtype: numpy's or ml_dtypes' name; "" if unknown.
        shape: None if unknown; a dimension is None if it is open.
        layout: of the file, if not the model's.
        aligned: the shape in the file, with rows padded to the device's alignment.
        stored: the shape in the file in its layout; None: it follows from `shape`.
        offset: of the first byte in the file.
        scale: of 8-bit codes.
        guessed: a hint, taken because the file has the name of the model's tensor.
    """

    dtype: str = ""
    shape: tuple[int | None, ...] | None = None
    layout: str = ""
    aligned: Shape | None = None
    offset: int = 0
    scale: Scale | None = None
    guessed: bool = False
    stored: Shape | None = None

    @property
    def closed_shape(self) -> Shape | None:
        """The shape; None if it is unknown or a dimension is open."""
        if self.shape is None or None in self.shape:
            return None
        return tuple(d for d in self.shape if d is not None)


class WrittenNames:
    """A model's names, found by the forms in which a tool, or subcut, writes them (`plain`)."""

    def __init__(self, names: Iterable[str], plain: Callable[[str], str]) -> None:
        self.names = dict.fromkeys(names)
        self.plain = plain
        self._written: dict[str, list[str]] = {}
        for name in self.names:
            for form in dict.fromkeys((plain(name), plain(make_safe_name(name)))):
                self._written.setdefault(form, []).append(name)

    def find(self, recorded: str) -> list[str]:
        """Find the same name; else the names that have this written form, in the model's order.

        subcut writes `same~2` for `same` if there is `Same`: some systems do not distinguish them.
        """
        if recorded in self.names:
            return [recorded]
        forms = (self.plain(form) for form in (recorded, recorded.rpartition("~")[0] or recorded))
        return next(filter(None, (self._written.get(form) for form in forms)), [])

    def find_alike(self, name: str) -> list[str]:
        """Return the names, this one among them, that subcut and the tool write in the same way."""
        return self._written.get(self.plain(make_safe_name(name)), [])

    def find_meant(self, entry: DumpEntry) -> list[str]:
        """Return the names that an entry can mean: of the recording, its tensor, its node.

        Inputs of a node mean nothing unless the tensor is named. After fusion a node can hold
        another tensor than that of its name.
        """
        originals = [name for name in entry.originals if name in self.names]
        recorded = (entry.tensor, entry.node if entry.role == "output" else "")
        return originals or next(filter(None, (self.find(name) for name in recorded if name)), [])


@frozen
class DumpHints:
    """Facts about the tensors from other sources than their files.

    Attributes:
        specs: by the model's names.
        layout: of files that do not store it.
        flat_if_misfit: whether a headerless file whose size does not fit its tensor is read as a
            flat array. After fusion it holds another tensor.
        narrow: the type of floats in headerless files whose size does not fit the model's type.
    """

    specs: Mapping[str, TensorSpec] = field(default_factory=dict)
    layout: str = ""
    flat_if_misfit: bool = False
    narrow: str = ""
    _written: dict[Callable[[str], str], WrittenNames] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def find(self, name: str, plain: Callable[[str], str]) -> TensorSpec:
        """Find the spec of a name as a tool wrote it; an empty one if several specs fit."""
        if plain not in self._written:
            self._written[plain] = WrittenNames(self.specs, plain)
        specs = {self.specs[n] for n in self._written[plain].find(name)}
        if len(specs) == 1:
            return replace(specs.pop(), guessed=True)
        return TensorSpec()


def refuse_reading() -> Array:
    """Refuse to read an entry: its `load` if it cannot be read."""
    raise AssertionError("an entry that cannot be read is not loaded")


@frozen
class EncodedTensor:
    """A tensor as a file of a recording holds it.

    Attributes:
        file: relative to the folder.
        load: reads the values as stored.
        dtype: numpy's or ml_dtypes' name.
        shape: as stored; None if unknown.
        layout: as stored; "" if it is the model's or unknown.
        original_shape: the tensor's shape in the model; None if the recording does not have it.
        original_layout: the tensor's layout in the model; "" if the recording does not have it.
        step: the value of one unit of the last printed digit; 0 if values are exact.
        scale: of 8-bit codes, if the recording has it.
        guessed: whether the shape is a hint because the file stores none.
        computed: the precision in which the device computed it, if the file holds another type; ""
            if it is that of `dtype`.
        missing: why it cannot be read; "" if it can.
    """

    file: str
    load: Callable[[], Array] = field(default=refuse_reading, repr=False, compare=False)
    dtype: str = "float32"
    shape: Shape | None = None
    layout: str = ""
    original_shape: Shape | None = None
    original_layout: str = ""
    step: float = 0.0
    scale: Scale | None = None
    guessed: bool = False
    computed: str = ""
    missing: str = ""


@frozen
class DumpEntry(EncodedTensor):
    """A tensor of a recording, with the names by which the tool and the model know it.

    Its values stay in the file until `read`.

    Attributes:
        tensor: the tensor's name as the tool spelled it; "" if it names only the node.
        node: the node's name as the tool spelled it; "" if it names only the tensor.
        role: "output" or "input" of the node.
        index: the position among the node's outputs or inputs.
        originals: names in the model, of a tensor or a node, if the recording itself has them.
        original_index: the output of that node.
        mapped: whether `originals` is the user's option.
        fused: names of all nodes of the model that the device fused into the node.
        side: which of several recordings in one folder: golden, simulator, a sample, a runner.
        note: for readers, such as "inserted by the toolkit".
        stem: of the file that it is converted to.
    """

    tensor: str = ""
    node: str = ""
    role: str = "output"
    index: int = 0
    originals: Strings = ()
    original_index: int = 0
    mapped: bool = False
    fused: Strings = ()
    side: str = ""
    note: str = ""
    stem: str = ""

    @property
    def name(self) -> str:
        """The tensor's name; without one, the node and which of its outputs or inputs."""
        return self.tensor or f"{self.node}:{self.role}:{self.index}"

    @property
    def label(self) -> str:
        """The name that the tool wrote, of the tensor or the node."""
        return self.tensor or self.node

    @property
    def target(self) -> str:
        """Path of a converted file, without its suffix, relative to the folder."""
        return self.stem or PurePosixPath(self.file).with_suffix("").as_posix()

    def read(self) -> Array:
        """Return the values in the model's layout.

        Raises:
            InputError: they cannot be read, contradict the header, or do not fit the layout.
        """
        if self.missing:
            what = f"cannot read {self.name} in {self.file}: {self.missing}"
            raise InputError(what, code="recording.unreadable")
        shape = self.original_shape
        if not is_possible_shape(shape or ()):
            what = f"cannot read {self.file}: no tensor has the shape {list(shape or ())}"
            raise InputError(what, code="recording.wrong-shape")
        try:
            return layouts.to_model(self.load(), self.layout, shape, self.original_layout)
        except InputError as e:
            what = e.what if self.file in e.what else f"cannot read {self.file}: {e.what}"
            raise InputError(what, e.hint, code=e.code) from e


def replace_characters(pattern: str, *, strip: bool = False) -> Callable[[str], str]:
    """Return the `plain` of a tool that writes `_` for these characters of a name.

    Args:
        pattern: The characters, as a regular expression.
        strip: Whether those at the ends are omitted.
    """
    characters = re.compile(pattern)

    def plain(name: str) -> str:
        written = characters.sub("_", name)
        return written.strip("_") if strip else written

    return plain


def parse_pairs(text: str) -> dict[str, str]:
    """Return a table of words: of each two, the first is the key of the second."""
    words = text.split()
    return dict(zip(words[::2], words[1::2], strict=True))


def find_element_type(array_dtype: np.dtype[Any]) -> str:
    """Find ONNX's element type by numpy's or ml_dtypes' name; "" if ONNX has none.

    >>> find_element_type(np.dtype(">f4")), find_element_type(np.dtype("S3"))
    ('float32', '')
    """
    name = "string" if array_dtype.kind == "U" else array_dtype.name
    return name if name in dtypes.TYPE_NUMBERS else ""
