"""The words after `-i` → samples: which file is which input, with which shape; random values for
all other inputs.

Planned in the main process, without numpy and without opening a file. A planned `Sample` goes to
the child process as JSON; there `load_inputs` reads the files, checks them against the input's type
and shape, and draws random values.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from subgraph.errors import InputError, UnknownName, UsageError, explain_os_error, name_setting
from subgraph.graph import protobuf
from subgraph.graph.nested import get_attribute
from subgraph.graph.properties import PICKS, REARRANGES
from subgraph.graph.quantization import find_tensor_scales, read_constant_scale
from subgraph.graph.value_types import find_declared_types, read_type
from subgraph.iterables import flatten, ungroup
from subgraph.log import log
from subgraph.runtime import datasets
from subgraph.storage import dtypes
from subgraph.storage.dtypes import Scale
from subgraph.storage.file_kinds import recognize
from subgraph.storage.folders import make_safe_name
from subgraph.storage.tensors import Records, format_shape
from subgraph.text import clean, count, find_free_name, find_nearest
from subgraph.types import Shapes, StringMap, Strings, frozen

if TYPE_CHECKING:
    from subgraph.graph.graph import Graph


IMAGES = frozenset(
    (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
)
RAW = frozenset((".bin", ".raw"))
ARRAYS = RAW | {".npy", ".npz", ".pb"}
# Operators that pass an index on unchanged, on its way to the table.
CARRIERS = REARRANGES | PICKS | {"Cast", "Concat"}


# The name of the input, if the user names one; then the path, `NOTHING` or `=NUMBERS`.
InputFile = tuple[str | None, str]
LabeledFiles = tuple[str, list[InputFile]]  # of a sample, with its label
Range = tuple[float, float]  # the least and the greatest of some values
NOTHING = ""  # instead of a file: an empty sequence or optional
NUMBERS = "="  # instead of a file, this and the numbers
ARRAY_FOLDER = "subcut-inputs"  # begins the name of the folder for arrays of a Python program
NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
# The name in messages of each way to draw floats. The later ones are tried if the first one causes
# outputs without information.
DRAWS = {
    "normal": "normal noise",
    "bars": "dark bars on a light ground, -1 to 1",
    "unit": "uniform noise, 0 to 1",
    "pixels": "uniform noise, 0 to 255",
    "small": "normal noise times 0.1",
}


@frozen
class InputSpec:
    """One model input that a run needs.

    Attributes:
        name: The name of the input.
        form: As of `storage.tensors.Record`.
        dtype: As of `storage.tensors.Record`.
        dims: The declared shape: numbers, names of symbols, None for unknown sizes; None for an
            unknown rank.
        high: Random integers are drawn from [0, high); None for the default range of the type.
        why: The source of `high`, for people.
        reach: Least and greatest value that the model quantizes this input to, if it does.
        scale: The scale of the codes that the input takes, if it takes codes of one scale.
    """

    name: str
    form: str
    dtype: str
    dims: list[int | str | None] | None
    high: int | None
    why: str
    reach: Range | None = None
    scale: Scale | None = None


class OriginKind(StrEnum):
    """The kind of source of the value of a model input."""

    FILE = "file"
    RANDOM = "random"
    EMPTY = "empty"  # an optional or a sequence that holds nothing
    COMPUTED = "computed"  # by the reference, what a Loop feeds its body for example


@frozen
class InputOrigin:
    """The source of the value of a model input.

    Attributes:
        kind: The kind of the source.
        text: The source, for people.
        conversion: The conversion of the value's type; "" without one.
        range: Least and greatest value of floats from a file; None of other values.
    """

    kind: OriginKind
    text: str
    conversion: str = ""
    range: Range | None = None

    def __str__(self) -> str:
        if self.conversion:
            return f"{self.text} ({self.conversion})"
        return self.text


@frozen
class ImageOptions:
    """The transformation of an image into a tensor: y = (x − mean) · scale, x in 0…255, channels
    RGB unless `bgr`.

    `mean` and `scale` hold one number, or one per channel.
    """

    mean: tuple[float, ...] = (0.0,)
    scale: tuple[float, ...] = (1.0,)
    bgr: bool = False


@frozen
class Sample:
    """One set of inputs, planned: files for some inputs, seeded random values for the others.

    Attributes:
        label: Its name; empty if there is only one sample.
        files: The files, not opened yet. A file without an input's name goes by its own name, or to
            the only input.
        specs: The inputs that the run needs.
        names: All inputs of the model, in order: a file may be for one that this run does not need.
        seed: The seed of random values.
        picture: The transformation of images.
        origin: The source of the values in the files, for people; "" if their names are enough.
        setting: As of `Feeding`.
        draw: A key of `DRAWS`.
    """

    label: str
    files: list[InputFile]
    specs: list[InputSpec]
    names: list[str]
    seed: int
    picture: ImageOptions = field(default_factory=ImageOptions)
    origin: str = ""
    setting: str = ""
    draw: str = "normal"


@frozen
class FeedingOptions:
    """The inputs that the user's options name, as requests and manifests keep them.

    Attributes:
        inputs: The arguments of `-i`: FILE, NAME=FILE, or a folder of samples, which may be
            NAME=FOLDER. A single file goes into every sample.
        shapes: Shapes by input, which replace the declared ones; a symbol has the same size in all
            inputs.
        seed: The seed of random values.
        picture: The transformation of images.
    """

    inputs: Strings = ()
    shapes: Shapes = field(default_factory=dict)
    seed: int = 0
    picture: ImageOptions = field(default_factory=ImageOptions)


@frozen
class Feeding(FeedingOptions):
    """The inputs that the user feeds a model. `plan` makes samples of it.

    Attributes:
        records: Input values that are on disk already, with absolute paths, per sample. They are
            fed instead of `inputs`, which then only names them in requests and manifests. A
            sequence is a file per element.
        origins: The source of the values of each sample of `records`, for people.
        labels: The name of each sample of `records`.
        setting: The settings of a project file that name the inputs, for errors; "" without one.
    """

    records: tuple[Records, ...] = ()
    origins: Strings = ()
    labels: Strings = ()
    setting: str = ""

    def __post_init__(self) -> None:
        """Check the seed.

        Raises:
            UsageError: The seed is negative.
        """
        if self.seed < 0:
            raise UsageError(
                f"seed {self.seed}: expected a number from 0 on",
                "seed = 0, or --seed 0",
                code="option.out-of-range",
            )

    @property
    def is_default(self) -> bool:
        """Whether there are neither inputs nor shapes."""
        return not self.inputs and not self.shapes

    @property
    def options(self) -> FeedingOptions:
        """Everything but the records."""
        return FeedingOptions(self.inputs, self.shapes, self.seed, self.picture)

    def plan(self, graph: Graph, names: Iterable[str]) -> list[Sample]:
        """Return the samples to run, at least one; each feeds these inputs of the model.

        Raises:
            InputError: A file or folder does not exist or is of no known kind, or a shape
                contradicts the model.
            UnknownName: The model has no input of that name.
        """
        has_shapes_of_file = "shape" in self.setting.partition(" of ")[0]
        with name_setting(self.setting if has_shapes_of_file else ""):
            sizes = self.find_symbol_sizes(graph)
            specs = [_make_spec(graph, name, self.shapes, sizes) for name in names]
        numbers = range(len(self.records))
        labels = self.labels or ([f"sample_{k}" for k in numbers] if len(numbers) > 1 else [""])
        recorded: list[LabeledFiles] = [
            (label, [*ungroup((n, r.files or (NOTHING,)) for n, r in sample.items())])
            for label, sample in zip(labels, self.records, strict=False)
        ]
        with name_setting(self.setting):
            samples = recorded or _list_files_per_sample(graph, self.inputs)
        origins = self.origins or [""] * len(samples)
        return [
            Sample(
                label,
                files,
                specs,
                list(graph.inputs),
                self.seed,
                self.picture,
                origin,
                self.setting,
            )
            for (label, files), origin in zip(samples, origins, strict=True)
        ]

    def find_symbol_sizes(self, graph: Graph) -> dict[str, int]:
        """Return the sizes that the shapes give the symbols in the inputs' declared dimensions.

        A shape of one number may name a symbol in place of an input.

        Raises:
            InputError: A shape contradicts the model.
            UnknownName: The model has no input and no symbol of that name.
        """
        dims = {name: read_type(value.type)[2] or [] for name, value in graph.inputs.items()}
        symbols = {dim for dim in flatten(dims.values()) if isinstance(dim, str)}
        sizes = {}
        for name, shape in self.shapes.items():
            declared: list[Any] | None = [name]
            if name not in symbols or name in dims:
                _require_input(graph, name, symbols)
                declared = read_type(graph.inputs[name].type)[2]
            sizes.update(_find_symbol_sizes(name, declared, list(shape)))
        return sizes


def _list_files_per_sample(graph: Graph, words: Sequence[str]) -> list[LabeledFiles]:
    """Return label and files of each sample. The k-th sample has the k-th files of each folder."""
    common = []
    folders = []
    for word in words:
        if numbers := _read_numbers(graph, word):
            common.append(numbers)
            continue
        name, path = _split(graph, word)
        if not path.is_dir():
            _require_kind(path)
            common.append((name, str(path)))
            continue
        inner = path / "inputs"
        if (path / "manifest.json").is_file() and inner.is_dir():  # a case that `subcut cut` wrote
            path = inner
        if datasets.is_dataset(path):
            names = [name] if name else graph.inputs
            ranks = ((n, len(read_type(graph.inputs[n].type)[2] or ())) for n in names)
            path = datasets.unpack(path, tuple(ranks))
        what = f"cannot read the folder {path}"
        with explain_os_error(InputError, what, "check its permissions", code="file.unreadable"):
            folders.append(_list_samples(path, name, map_stems(list(graph.inputs))))
    if not folders:
        return [("", common)]
    if len(counts := {len(samples) for samples in folders}) > 1:
        raise InputError(
            f"the folders given hold different numbers of samples: {sorted(counts)}",
            code="input.sample-counts",
        )
    rows = list(zip(*folders, strict=True))
    labels = ["+".join(dict.fromkeys(label for label, _ in row)) for row in rows]
    taken = set(labels)
    files = {}
    for label, row in zip(labels, rows, strict=True):
        own = find_free_name(label, taken, "~") if label in files else label
        taken.add(own)
        files[own] = common + list(flatten(of for _, of in row))
    return list(files.items())


def _read_numbers(graph: Graph, word: str) -> InputFile | None:
    """Return the input and the numbers of `NAME=16000` or `NAME=1,2,3`; None for another word.

    Only a scalar or a vector takes numbers, and a file of that name comes first.
    """
    name, sign, text = word.rpartition("=")
    is_list = re.fullmatch(rf"{NUMBER}(?:,{NUMBER})*", text)
    is_text = is_list and not os.path.exists(text)  # noqa: PTH110
    if not sign or not is_text or name not in graph.inputs or os.path.exists(word):  # noqa: PTH110
        return None
    if not _takes_numbers(graph, name):
        raise InputError(
            f"-i {word}: only a scalar or a vector takes numbers; input '{name}' is neither",
            f"-i {name}=FILE.npy",
            code="input.takes-no-numbers",
        )
    return name, f"{NUMBERS}{text}"


def _takes_numbers(graph: Graph, name: str) -> bool:
    """Return whether an input is a scalar or a vector, as far as declared."""
    return len(read_type(graph.inputs[name].type)[2] or ()) < 2


def _split(graph: Graph, word: str) -> tuple[str | None, Path]:
    """Return the name and the file of `NAME=FILE` or `FILE`.

    Both may hold `=`: an input's name wins, then a file that exists.
    """
    named = max((n for n in graph.inputs if word.startswith(f"{n}=")), key=len, default=None)
    before, sep, after = (
        word.partition("=") if named is None else (named, "=", word[len(named) + 1 :])
    )
    is_named = sep and not os.path.exists(word)  # noqa: PTH110
    name, file = (before, after) if is_named else (None, word)
    if name is not None:
        _require_input(graph, name)
    if not os.path.exists(file):  # noqa: PTH110
        takes_numbers = name is not None and _takes_numbers(graph, name)
        raise InputError(
            f"no input file or folder '{file}'",
            f"-i {name}=FILE, -i {name}=1, or -i {name}=1,2,3"
            if takes_numbers
            else "check the path given with -i",
            code="file.not-found",
        )
    return name, Path(file)


def _require_input(graph: Graph, name: str, others: Collection[str] = ()) -> None:
    if name in graph.inputs:
        return
    if name in graph.weights:
        raise InputError(
            f"'{name}' is a weight of the model: subcut keeps it constant",
            "only inputs can be fed, and weights that the model lists among its inputs",
            code="input.is-weight",
        )
    raise UnknownName(
        f"the model has no input '{name}'",
        nearest=find_nearest(name, [*graph.inputs, *others]),
        code="input.unknown",
    )


def _require_kind(path: Path) -> None:
    if not path.is_file():  # reading a pipe would wait for ever
        raise InputError(
            f"{path} is not a regular file",
            "save its contents into a file",
            code="file.not-regular",
        )
    if path.suffix.lower() not in ARRAYS | IMAGES:
        kinds = " ".join(sorted(ARRAYS | IMAGES))
        kind = recognize(path)
        what = f"{kind.name}, " if kind else ""
        raise InputError(
            f"{path}: {what}not a kind of file that can be fed",
            f"known: {kinds}",
            code="input.unknown-kind",
        )


def _list_samples(folder: Path, name: str | None, stems: StringMap) -> list[LabeledFiles]:
    """Return the samples in a folder: sub-folders, one of files named after inputs, or files.

    Raises:
        InputError: The folder is empty, or only some of its files are named after inputs.
    """
    inside = sorted(
        (p for p in folder.iterdir() if not p.name.startswith(".")), key=_make_natural_key
    )
    folders = [p for p in inside if p.is_dir() and _list_input_files(p.iterdir())]
    if folders:
        return [(p.name, [(name, str(f)) for f in _list_input_files(p.iterdir())]) for p in folders]
    files = _list_input_files(inside)
    twins = [p for p in inside if p.suffix.lower() in RAW and p.with_suffix(".npy") in files]
    is_case = (folder.parent / "manifest.json").is_file()  # in it both are the same tensor
    if twins and not is_case:
        log.warning("%s is not read: the folder has a .npy of the same name", clean(str(twins[0])))
    if not files:
        raise InputError(
            f"no inputs in folder {folder}",
            f"it may hold {' '.join(sorted(ARRAYS))} or images",
            code="input.empty-folder",
        )
    named = {stems[f.stem] for f in files if f.stem in stems}
    if name is None and named and len(set(stems.values())) > 1:
        if len(named) != len(files):
            other = next((f for f in files if f.stem not in stems), files[-1])
            raise InputError(
                f"{folder} mixes files of {count(named, 'input')} with others, such as"
                f" {other.name}",
                "put the files of each sample into a separate folder, each named after its input",
                code="input.mixed-folder",
            )
        return [(folder.name, [(None, str(f)) for f in files])]
    counts = Counter(f.stem for f in files)
    return [(f.stem if counts[f.stem] == 1 else f.name, [(name, str(f))]) for f in files]


def _list_input_files(paths: Iterable[Path]) -> list[Path]:
    """Return the files that can be fed, in order.

    Omitted are the outputs in ONNX's own test folders, and raw files with a .npy of the same name:
    `subcut cut` writes each tensor in both formats.
    """
    files = [
        p
        for p in paths
        if p.suffix.lower() in ARRAYS | IMAGES
        and p.is_file()
        and not re.fullmatch(r"\..*|output_\d+\.pb", p.name)
    ]
    stems = {p.stem for p in files if p.suffix.lower() == ".npy"}
    readable = (p for p in files if p.suffix.lower() not in RAW or p.stem not in stems)
    return sorted(readable, key=_make_natural_key)


def _make_natural_key(path: Path) -> list[Any]:
    """Return a sort key that puts sample_2 before sample_10: texts and numbers alternate."""
    return [int(w) if i % 2 else w for i, w in enumerate(re.split(r"([0-9]+)", path.name))]


def map_stems(names: Sequence[str]) -> StringMap:
    """Return input names by the stem of a file for them; an input's own name goes first."""
    stems = {name: name for name in names}
    for position, name in enumerate(names):
        for stem in (make_safe_name(name), f"input_{position}", f"input_{name}"):
            stems.setdefault(stem, name)
    return stems


# ------------------------------------------------------------ specs


def _make_spec(graph: Graph, name: str, shapes: Shapes, sizes: Mapping[str, int]) -> InputSpec:
    form, dtype, dims = read_type(graph.inputs[name].type)
    if dtype not in dtypes.TYPE_NUMBERS:
        raise InputError(
            f"input '{name}' declares no element type that ONNX has",
            f"subcut inspect {graph.path.name}",
            code="input.no-type",
        )
    if name in shapes:
        dims = list(shapes[name])
    elif dims is not None:
        dims = [sizes.get(d, d) for d in dims]
    high, why = _find_index_range(graph, name) if dtype in ("int32", "int64") else (None, "")
    scale = find_tensor_scales(graph).get(name) if "int" in dtype else None
    if scale and len(scale.step) > 1:
        scale = None
    reach = _find_code_range(scale, dtype) if scale else _find_quantized_range(graph, name)
    return InputSpec(name, form, dtype, dims, high, why, reach, scale)


def _find_code_range(scale: Scale, dtype: str) -> Range:
    """Return the least and the greatest value of the codes of a type."""
    low, high = ((code - scale.zero[0]) * scale.step[0] for code in dtypes.find_code_range(dtype))
    return low, high


def _find_quantized_range(graph: Graph, name: str) -> Range | None:
    """Return the range of 8-bit codes of this input, if the model quantizes it by one constant
    scale."""
    for i in graph.readers.get(name, ()):
        node = graph.nodes[i]
        if node.op_type != "QuantizeLinear" or node.input[0] != name:
            continue
        zero = graph.constant(node.input[2]) if len(node.input) > 2 else None
        dtype = dtypes.name_of(zero.data_type) if zero is not None else "uint8"
        scale = read_constant_scale(graph, node, 1, 2)
        if scale and len(scale.step) == 1 and dtype in ("uint8", "int8"):
            return _find_code_range(scale, dtype)
    return None


def _find_symbol_sizes(name: str, dims: list[Any] | None, shape: list[int]) -> dict[str, int]:
    """Return the sizes that `--shape` sets for the symbols of an input's declared dimensions.

    Raises:
        InputError: The shape contradicts them.
    """
    if dims is not None and len(dims) != len(shape):
        rank = count(dims, "dimension")
        raise InputError(
            f"--shape {name}={format_shape(tuple(shape))}: '{name}' has {rank}",
            code="shape.wrong-rank",
        )
    for axis, (dim, size) in enumerate(zip(dims or shape, shape, strict=True)):
        if isinstance(dim, int) and dim != size:
            raise InputError(
                f"--shape {name}: axis {axis} is {size}, the model fixes it at {dim}",
                code="shape.fixed-axis",
            )
    return {dim: size for dim, size in zip(dims or (), shape, strict=False) if isinstance(dim, str)}


def _find_index_range(graph: Graph, name: str) -> tuple[int | None, str]:
    """Return the rows of the smallest table that an integer input indexes, and its name."""
    tables = []
    seen = {name}
    stack = [name]
    unknown = ""  # a node that indexes a table of unknown size
    while stack:
        tensor = stack.pop()
        for i in graph.readers.get(tensor, ()):
            node = graph.nodes[i]
            if node.op_type in ("Gather", "GatherElements") and list(node.input)[1:2] == [tensor]:
                size = _find_axis_size(graph, node)
                if size is None:
                    unknown = graph.label(i)
                else:
                    tables.append((size, str(node.input[0])))
            elif (
                node.op_type in CARRIERS
                and tensor in list(node.input)[: None if node.op_type == "Concat" else 1]
            ):
                fresh = [n for n in graph.makes[i] if n not in seen]
                seen.update(fresh)
                stack += fresh
    if unknown and not tables:
        return 1, f"indexes a table of unknown size ({unknown})"
    if not tables:
        return None, ""
    size, table = min(tables)
    return size, f"indexes '{table}' of {size} rows"


def _find_axis_size(graph: Graph, gather: protobuf.NodeProto) -> int | None:
    axis = int(get_attribute(gather, "axis", 0))
    table = str(gather.input[0])
    dims = []
    if table in graph.weights:
        dims += graph.weights[table].dims
    elif table in (types := find_declared_types(graph, [table])):
        dims += read_type(types[table])[2] or ()
    if not -len(dims) <= axis < len(dims) or not isinstance(dims[axis], int):
        return None
    return max(int(dims[axis]), 1)
