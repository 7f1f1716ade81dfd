"""What the user feeds: files, images, folders of samples, or seeded random values that respect the model.

`plan` turns words into samples: which file is which input, which shape, which range. That is done in the main
process, without numpy; the files are read elsewhere, by `feeds`.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from subgraph.errors import InputError, UnknownName
from subgraph.graph import protobuf
from subgraph.graph.types import declared_type
from subgraph.storage import dtypes
from subgraph.storage.folders import safe_name
from subgraph.storage.tensors import Record, shape_text

if TYPE_CHECKING:
    from subgraph.graph.graph import Graph

IMAGES = frozenset((".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"))
ARRAYS = frozenset((".npy", ".npz", ".bin", ".raw", ".pb"))
# Ops that hand an integer on unchanged on its way to the table that it indexes.
CARRIERS = frozenset(
    "Cast Identity Reshape Squeeze Unsqueeze Flatten Transpose Concat Slice Expand Split Tile Gather Clip Pad".split()
)


@dataclass(frozen=True)
class InputSpec:
    """One model input that a run needs.

    Attributes:
        dims: its declared shape; a number, a symbol's name, or None where nothing is known. None instead of a list
            where even the rank is unknown.
        high: integers are drawn from [0, high), `why`; None for the type's own default.
    """

    name: str
    form: str
    dtype: str
    dims: list[Any] | None
    high: int | None
    why: str


@dataclass(frozen=True)
class ImageOptions:
    """How an image becomes a tensor: y = (x − mean) · scale, x in 0…255, channels RGB unless `bgr`."""

    mean: tuple[float, ...] = (0.0,)
    scale: tuple[float, ...] = (1.0,)
    bgr: bool = False


@dataclass(frozen=True)
class Sample:
    """One set of inputs: files for some, seeded random values for the others.

    Attributes:
        files: (input name or None, path).
        specs: the inputs that the run needs.
        names: all inputs of the model, in order, so that a file for another one is known as such.
    """

    label: str
    files: list[tuple[str | None, str]]
    specs: list[InputSpec]
    names: list[str]
    seed: int
    picture: ImageOptions = field(default_factory=ImageOptions)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Sample:
        """The sample whose `to_json` was sent to the child process."""
        image = data["picture"]
        return cls(
            data["label"],
            [(name, file) for name, file in data["files"]],
            [InputSpec(**spec) for spec in data["specs"]],
            data["names"],
            data["seed"],
            ImageOptions(tuple(image["mean"]), tuple(image["scale"]), image["bgr"]),
        )


class FeedingOptions(TypedDict):
    """The part of a `Feeding` that the user's options say; requests and manifests keep it."""

    inputs: tuple[str, ...]
    shapes: Mapping[str, Sequence[int]]
    seed: int
    picture: ImageOptions


@dataclass(frozen=True)
class Feeding:
    """What the model is fed, as in `inputs.plan`.

    Attributes:
        records: per sample, input values that lie on disk already, with absolute paths. They are fed instead of
            `inputs`, which then only names them in requests and manifests.
    """

    inputs: tuple[str, ...] = ()
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    seed: int = 0
    picture: ImageOptions = field(default_factory=ImageOptions)
    records: tuple[Mapping[str, Record], ...] = ()

    @property
    def is_default(self) -> bool:
        """Did the user say nothing about the inputs?"""
        return not self.inputs and not self.shapes

    @property
    def options(self) -> FeedingOptions:
        """Everything but the records."""
        return FeedingOptions(inputs=self.inputs, shapes=self.shapes, seed=self.seed, picture=self.picture)

    def plan(self, graph: Graph, names: Iterable[str]) -> list[Sample]:
        """The samples, with values for these inputs.

        Raises:
            UnknownName, InputError: as `inputs.plan`.
        """
        words = () if self.records else self.inputs
        samples = plan(graph, names, words, shapes=self.shapes, seed=self.seed, picture=self.picture)
        files = [[(name, file) for name, record in fed.items() for file in record.files] for fed in self.records]
        labels = [""] if len(files) == 1 else [f"sample_{k}" for k in range(len(files))]
        recorded = [replace(samples[0], label=label, files=[*f]) for label, f in zip(labels, files, strict=True)]
        return recorded or samples


def plan(
    graph: Graph,
    names: Iterable[str],
    given: Sequence[str] = (),
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    seed: int = 0,
    picture: ImageOptions | None = None,
) -> list[Sample]:
    """The samples to run, at least one.

    `given` are the words after `-i`: FILE, NAME=FILE, or a folder of samples. `shapes` replaces declared shapes; a
    symbol that gets a size by that has it in all inputs.

    Raises:
        InputError: a file or folder that is not there, or of no known kind.
        UnknownName: an input of that name does not exist.
    """
    sizes: dict[str, int] = {}
    for name, shape in (shapes or {}).items():
        _require_input(graph, name)
        sizes.update(_sizes(name, declared_type(graph.inputs[name].type)[2], list(shape)))
    specs = [_spec(graph, name, shapes or {}, sizes) for name in names]
    common: list[tuple[str | None, str]] = []
    sets: list[list[tuple[str, list[tuple[str | None, str]]]]] = []
    stems = inputs_by_stem(list(graph.inputs))
    for word in given:
        target, path = _split(graph, word)
        if path.is_dir():
            try:
                sets.append(_samples(path, target, stems))
            except OSError as e:
                raise InputError(f"cannot read the folder {path}: {e.strerror or e}", "check its permissions") from e
        else:
            _require_kind(path)
            common.append((target, str(path)))
    counts = {len(s) for s in sets}
    if len(counts) > 1:
        raise InputError(f"the folders given hold different numbers of samples: {sorted(counts)}")
    rows = [("", list[tuple[str | None, str]]())] if not sets else [
        ("+".join(dict.fromkeys(row[k][0] for row in sets)), [f for row in sets for f in row[k][1]])
        for k in range(counts.pop())
    ]  # fmt: skip
    look = picture or ImageOptions()
    labels = _distinct([label for label, _ in rows])
    return [
        Sample(label, common + files, specs, list(graph.inputs), seed, look)
        for label, (_, files) in zip(labels, rows, strict=True)
    ]


def _distinct(labels: Sequence[str]) -> list[str]:
    """The labels, with ~2, ~3 … after one that was there before."""
    taken, counts = set(labels), Counter[str]()
    out: list[str] = []
    for label in labels:
        counts[label] += 1
        own = label
        while counts[label] > 1 and (own := f"{label}~{counts[label]}") in taken:
            counts[label] += 1
        taken.add(own)
        out.append(own)
    return out


def _split(graph: Graph, word: str) -> tuple[str | None, Path]:
    """NAME=FILE or FILE. A file whose own name holds '=' wins if it exists, and so does an input's name."""
    named = max((n for n in graph.inputs if word.startswith(f"{n}=")), key=len, default=None)
    before, sep, after = word.partition("=") if named is None else (named, "=", word[len(named) + 1 :])
    name, file = (before, after) if sep and not os.path.exists(word) else (None, word)  # noqa: PTH110 - never raises
    if name is not None:
        _require_input(graph, name)
    if not os.path.exists(file):  # noqa: PTH110
        raise InputError(f"no input file or folder '{file}'", "check the path given with -i")
    return name, Path(file)


def _require_input(graph: Graph, name: str) -> None:
    if name in graph.inputs:
        return
    if name in graph.weights:
        raise InputError(f"'{name}' is a weight of the model: subcut keeps it constant", "only inputs can be fed")
    from subgraph.text import nearest

    raise UnknownName(f"the model has no input '{name}'", nearest=nearest(name, graph.inputs))


def _require_kind(path: Path) -> None:
    if not path.is_file():  # reading a pipe would wait for ever
        raise InputError(f"{path} is no regular file", "save what it gives into a file")
    if path.suffix.lower() not in ARRAYS | IMAGES:
        known = " ".join(sorted(ARRAYS | IMAGES))
        raise InputError(f"{path}: not a kind of file that can be fed", f"known: {known}")


def _samples(
    folder: Path, name: str | None, stems: Mapping[str, str]
) -> list[tuple[str, list[tuple[str | None, str]]]]:
    """The samples in a folder: its sub-folders, or one if its files are named after several inputs, or its files."""
    inside = sorted((p for p in folder.iterdir() if not p.name.startswith(".")), key=_natural)
    folders = [p for p in inside if p.is_dir() and _fit(p.iterdir())]
    if folders:
        return [(p.name, [(name, str(f)) for f in _fit(p.iterdir())]) for p in folders]
    files = _fit(inside)
    if not files:
        raise InputError(f"no inputs in folder {folder}", f"it may hold {' '.join(sorted(ARRAYS))} or images")
    named = {stems[f.stem] for f in files if f.stem in stems}
    if name is None and len(named) == len(files) and len(set(stems.values())) > 1:
        return [(folder.name, [(None, str(f)) for f in files])]
    counts = Counter(f.stem for f in files)
    return [(f.stem if counts[f.stem] == 1 else f.name, [(name, str(f))]) for f in files]


def _fit(paths: Iterable[Path]) -> list[Path]:
    """Files that can be fed, in order; ONNX's own test folders hold outputs as well, which are not."""
    kinds = ARRAYS | IMAGES
    files = [p for p in paths if p.suffix.lower() in kinds and p.is_file() and not p.name.startswith(".")]
    return sorted((p for p in files if not re.fullmatch(r"output_\d+\.pb", p.name)), key=_natural)


def _natural(path: Path) -> list[Any]:
    """Sorts sample_2 before sample_10: texts and numbers take turns."""
    return [int(w) if i % 2 else w for i, w in enumerate(re.split(r"([0-9]+)", path.name))]


def inputs_by_stem(names: Sequence[str]) -> dict[str, str]:
    """The input that a file is for, by the file's name without its ending: an input's own name before all others."""
    stems = {name: name for name in names}
    for position, name in enumerate(names):
        for stem in (safe_name(name), f"input_{position}", f"input_{name}"):
            stems.setdefault(stem, name)
    return stems


# ---------------------------------------------------------------------------------------------------- specs


def _spec(graph: Graph, name: str, shapes: Mapping[str, Sequence[int]], sizes: Mapping[str, int]) -> InputSpec:
    form, dtype, dims = declared_type(graph.inputs[name].type)
    if dtype not in dtypes.TYPE_NUMBERS:
        raise InputError(f"input '{name}' declares no element type that ONNX has", f"subcut inspect {graph.path.name}")
    if name in shapes:
        dims = list(shapes[name])
    elif dims is not None:
        dims = [sizes.get(d, d) for d in dims]
    high, why = _index_range(graph, name) if dtype in ("int32", "int64") else (None, "")
    return InputSpec(name, form, dtype, dims, high, why)


def _sizes(name: str, dims: list[Any] | None, shape: list[int]) -> dict[str, int]:
    """What `--shape` says of the symbols in an input's declared dimensions.

    Raises:
        InputError: it does not fit them.
    """
    if dims is not None and len(dims) != len(shape):
        raise InputError(f"--shape {name}={shape_text(tuple(shape))}: input '{name}' has {len(dims)} dimensions")
    for axis, (want, have) in enumerate(zip(dims or shape, shape, strict=True)):
        if isinstance(want, int) and want != have:
            raise InputError(f"--shape {name}: axis {axis} is {have}, the model fixes it at {want}")
    return {d: n for d, n in zip(dims or (), shape, strict=False) if isinstance(d, str)}


def _index_range(graph: Graph, name: str) -> tuple[int | None, str]:
    """How many rows the smallest table has that this integer input indexes, and which; (None, "") if none."""
    tables: list[tuple[int, str]] = []
    seen, stack = {name}, [name]
    unknown = ""
    while stack:
        tensor = stack.pop()
        for i in graph.readers.get(tensor, ()):
            node = graph.nodes[i]
            if node.op_type in ("Gather", "GatherElements") and list(node.input)[1:2] == [tensor]:
                size = _axis_size(graph, node)
                if size is None:
                    unknown = graph.label(i)
                else:
                    tables.append((size, str(node.input[0])))
            elif node.op_type in CARRIERS and tensor in list(node.input)[: None if node.op_type == "Concat" else 1]:
                fresh = [n for n in graph.makes[i] if n not in seen]
                seen.update(fresh)
                stack += fresh
    if unknown and not tables:
        return 1, f"indexes a table of unknown size ({unknown})"
    if not tables:
        return None, ""
    size, table = min(tables)
    return size, f"indexes '{table}' of {size} rows"


def _axis_size(graph: Graph, gather: protobuf.NodeProto) -> int | None:
    axis = next((int(a.i) for a in gather.attribute if a.name == "axis"), 0)
    table = str(gather.input[0])
    if table in graph.weights:
        dims: list[Any] | None = list(graph.weights[table].dims)
    else:
        known = graph.declared_types([table])
        dims = declared_type(known[table])[2] if table in known else None
    if dims is None or not -len(dims) <= axis < len(dims) or not isinstance(dims[axis], int):
        return None
    return max(int(dims[axis]), 1)
