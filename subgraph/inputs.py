"""What the user feeds: files, images, folders of samples, or seeded random values that respect the model.

Two halves. `plan` (in the main process, without numpy) turns words into samples: which file is which input, which
shape, which range. `realise` (in the process that runs the model) turns one sample into arrays, so that a hostile or
enormous file never meets the main process.
"""

from __future__ import annotations

import math
import os
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from subgraph import wire
from subgraph.errors import InputError, UnknownName
from subgraph.folder import safe_name
from subgraph.tensors import NOT_NUMPY, NPY_ERRORS, Tensors, Value, are_bits, from_bits, np_dtype, read_npy, shape_text

if TYPE_CHECKING:
    import numpy as np

    from subgraph.graph import Graph

IMAGES = frozenset((".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"))
ARRAYS = frozenset((".npy", ".npz", ".bin", ".raw", ".pb"))
MAX_RANDOM = 1 << 30  # bytes of one made-up input; beyond, a dimension is surely wrong
# Ops that hand an integer on unchanged on its way to the table that it indexes.
CARRIERS = frozenset(
    "Cast Identity Reshape Squeeze Unsqueeze Flatten Transpose Concat Slice Expand Split Tile Gather Clip Pad".split()
)


@dataclass(frozen=True)
class Spec:
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
class Picture:
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
    specs: list[Spec]
    names: list[str]
    seed: int
    picture: Picture = field(default_factory=Picture)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Feeding:
    """What the model is fed, as in `inputs.plan`."""

    inputs: tuple[str, ...] = ()
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    seed: int = 0
    picture: Picture = field(default_factory=Picture)

    @property
    def is_default(self) -> bool:
        """Did the user say nothing about the inputs?"""
        return not self.inputs and not self.shapes

    def plan(self, graph: Graph, names: Iterable[str]) -> list[Sample]:
        """The samples, with values for these inputs.

        Raises:
            UnknownName, InputError: as `inputs.plan`.
        """
        return plan(graph, names, self.inputs, shapes=self.shapes, seed=self.seed, picture=self.picture)


def plan(
    graph: Graph,
    names: Iterable[str],
    given: Sequence[str] = (),
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    seed: int = 0,
    picture: Picture | None = None,
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
        sizes.update(_sizes(name, declared(graph.inputs[name].type)[2], list(shape)))
    specs = [_spec(graph, name, shapes or {}, sizes) for name in names]
    common: list[tuple[str | None, str]] = []
    sets: list[list[tuple[str, list[tuple[str | None, str]]]]] = []
    stems = _stems(list(graph.inputs))
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
    look = picture or Picture()
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


def _stems(names: Sequence[str]) -> dict[str, str]:
    """The input that a file is for, by the file's name without its ending: an input's own name before all others."""
    stems = {name: name for name in names}
    for position, name in enumerate(names):
        for stem in (safe_name(name), f"input_{position}", f"input_{name}"):
            stems.setdefault(stem, name)
    return stems


# ---------------------------------------------------------------------------------------------------- specs


def _spec(graph: Graph, name: str, shapes: Mapping[str, Sequence[int]], sizes: Mapping[str, int]) -> Spec:
    form, dtype, dims = declared(graph.inputs[name].type)
    if dtype not in wire.TYPE_NUMBERS:
        raise InputError(f"input '{name}' declares no element type that ONNX has", f"subcut inspect {graph.path.name}")
    if name in shapes:
        dims = list(shapes[name])
    elif dims is not None:
        dims = [sizes.get(d, d) for d in dims]
    high, why = _index_range(graph, name) if dtype in ("int32", "int64") else (None, "")
    return Spec(name, form, dtype, dims, high, why)


def declared(type_proto: wire.TypeProto) -> tuple[str, str, list[Any] | None]:
    """(form, dtype, dims) of a TypeProto. Dimensions: a number, a symbol, or None; dims is None without a shape."""
    form, inner = "", type_proto
    if inner.HasField("optional_type"):
        form, inner = "optional", inner.optional_type.elem_type
    if inner.HasField("sequence_type"):
        form, inner = f"{form} sequence".strip(), inner.sequence_type.elem_type
    if not inner.HasField("tensor_type"):
        kind = inner.WhichOneof("value") or "no type"
        raise InputError(f"values of type {kind} cannot be handled", "cut elsewhere: between plain tensors")
    tensor = inner.tensor_type
    dtype = wire.TYPES.get(tensor.elem_type, ("undefined", 0))[0]
    dims = [_dim(d) for d in tensor.shape.dim] if tensor.HasField("shape") else None
    return form or "tensor", dtype, dims


def _dim(d: Any) -> Any:
    if d.HasField("dim_value") and d.dim_value >= 0:
        return int(d.dim_value)
    return str(d.dim_param) or None


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


def _axis_size(graph: Graph, gather: wire.NodeProto) -> int | None:
    axis = next((int(a.i) for a in gather.attribute if a.name == "axis"), 0)
    table = str(gather.input[0])
    if table in graph.weights:
        dims: list[Any] | None = list(graph.weights[table].dims)
    else:
        known = graph.types([table])
        dims = declared(known[table])[2] if table in known else None
    if dims is None or not -len(dims) <= axis < len(dims) or not isinstance(dims[axis], int):
        return None
    return max(int(dims[axis]), 1)


# ---------------------------------------------------------------------------------------------------- realise


def realise(data: Mapping[str, Any]) -> tuple[dict[str, Value], dict[str, str]]:
    """The arrays of one sample, and per input where they come from.

    Raises:
        InputError: a file is damaged, or does not fit its input in type or shape; a dimension is not known.
    """
    specs = [Spec(**s) for s in data["specs"]]
    look = data["picture"]
    picture = Picture(tuple(look["mean"]), tuple(look["scale"]), bool(look["bgr"]))
    feeds: dict[str, Value] = {}
    origins: dict[str, str] = {}
    stems, needed = _stems(data["names"]), {spec.name: spec for spec in specs}
    for name, file in data["files"]:
        for spec, array in _read(_File(Path(file), name, stems, needed), picture):
            if spec.name in feeds:
                raise InputError(
                    f"input '{spec.name}' is given twice: {origins[spec.name]} and {file}",
                    "put several samples into a folder and give the folder",
                )
            feeds[spec.name], note = _fitted(array, spec, file)
            origins[spec.name] = Path(file).name + note
    known = _symbols(specs, feeds)
    for spec in specs:
        if spec.name not in feeds:
            feeds[spec.name], origins[spec.name] = _random(spec, known, int(data["seed"]), data["label"])
    return feeds, origins


def _symbols(specs: Sequence[Spec], feeds: Tensors) -> dict[str, int]:
    """Sizes of symbolic dimensions, learnt from the arrays given and, for a first dimension, 1."""
    known: dict[str, int] = {}
    for spec in specs:
        value = feeds.get(spec.name)
        if spec.dims is not None and value is not None and not isinstance(value, list):
            known.update((d, n) for d, n in zip(spec.dims, value.shape, strict=True) if isinstance(d, str))
    for spec in specs:
        if spec.dims and isinstance(spec.dims[0], str):
            known.setdefault(spec.dims[0], 1)
    return known


def _random(spec: Spec, known: Mapping[str, int], seed: int, label: str) -> tuple[Value, str]:
    """Seeded values: floats from N(0, 1), booleans, indices within their table, other wide integers 0 or 1.

    Raises:
        InputError: its shape is not known, or enormous.
    """
    import numpy as np

    if spec.form.startswith("optional"):
        return None, "empty"
    shape = _shape(spec, known)
    dtype = np_dtype(spec.dtype)
    size = math.prod(shape) * dtype.itemsize
    if size > MAX_RANDOM:
        raise InputError(
            f"input '{spec.name}' of shape {shape_text(shape)} would take {size / 2**30:.1f} GiB",
            f"is the model damaged? otherwise give it a file: -i {spec.name}=FILE",
        )
    rng = np.random.default_rng([seed, zlib.crc32(spec.name.encode()), zlib.crc32(label.encode())])
    array, how = _draw(spec, shape, rng)
    origin = f"random {how}, seed {seed}"
    return ([array] if "sequence" in spec.form else array), origin


def _draw(spec: Spec, shape: tuple[int, ...], rng: np.random.Generator) -> tuple[np.ndarray[Any, Any], str]:
    import numpy as np

    dtype = np_dtype(spec.dtype)
    if spec.dtype == "string":
        return np.array([f"text{n}" for n in rng.integers(0, 10, math.prod(shape))], object).reshape(shape), "words"
    if spec.dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool), "booleans"
    if spec.dtype.startswith("complex"):
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype), "normal"
    if "float" in spec.dtype:
        return rng.standard_normal(shape, np.float32).astype(dtype, copy=False), "normal"
    if spec.high is not None:
        return rng.integers(0, spec.high, shape).astype(dtype), f"integers below {spec.high} ({spec.why})"
    bits = wire.TYPES[wire.TYPE_NUMBERS[spec.dtype]][1]
    if bits <= 8:  # pixels and quantized values: their whole range
        low = -(1 << bits - 1) if spec.dtype.startswith("i") else 0
        return rng.integers(low, low + (1 << bits), shape).astype(dtype), "integers of the whole range"
    return rng.integers(0, 2, shape).astype(dtype), "integers 0 or 1"


def _shape(spec: Spec, known: Mapping[str, int]) -> tuple[int, ...]:
    if spec.dims is None:
        raise InputError(f"input '{spec.name}' declares no shape", f"--shape {spec.name}=1x3x224x224, or -i FILE")
    shape = [
        d if isinstance(d, int) else known.get(d or "", 1 if axis == 0 else None) for axis, d in enumerate(spec.dims)
    ]
    if None in shape:
        axis = shape.index(None)
        example = "x".join("?" if n is None else str(n) for n in shape)
        called = f" '{spec.dims[axis]}'" if spec.dims[axis] else ""
        raise InputError(
            f"input '{spec.name}' has the unknown dimension{called} (axis {axis})",
            f"--shape {spec.name}={example} with numbers for the ?, or -i FILE",
        )
    return tuple(int(n) for n in shape if n is not None)


@dataclass(frozen=True)
class _File:
    """A file and what it may be for.

    Attributes:
        name: the input that it was given for.
        stems: all inputs of the model, by what files for them are called.
        specs: the inputs that the run needs, by name.
    """

    path: Path
    name: str | None
    stems: Mapping[str, str]
    specs: Mapping[str, Spec]

    def is_input(self, key: str) -> bool:
        return self.stems.get(key) == key  # an input's own name always leads to itself

    def target(self, key: str = "") -> Spec | None:
        """Which input the array called `key` in it is for: by the name given, by its own, the file's, or the only one.

        None: for an input of the model that this run does not need.
        """
        own = key if self.is_input(key) else None
        name = self.name or own or self.stems.get(self.path.stem)
        if name is not None:
            return self.specs.get(name)
        if len(self.specs) == 1 or len(set(self.stems.values())) == 1:
            return next(iter(self.specs.values()), None)
        names = ", ".join(f"'{name}'" for name in self.specs)
        raise InputError(
            f"{self.path}: which input is it for? The run needs {names or 'none'}", f"-i NAME={self.path.name}"
        )


def _read(file: _File, picture: Picture) -> list[tuple[Spec, np.ndarray[Any, Any]]]:
    """The arrays in one file, each with the input that it is for; inputs that this run does not need are left out."""
    kind = file.path.suffix.lower()
    if kind == ".npz":
        arrays = _load_npz(file.path)
        known = {key: array for key, array in arrays.items() if file.is_input(key)}
        return [(s, array) for key, array in (known or arrays).items() if (s := file.target(key))]
    if kind == ".pb":
        key, array = _load_pb(file.path)
        spec = file.target(key)
        return [(spec, array)] if spec else []
    spec = file.target()
    if spec is None:
        return []
    if kind in IMAGES:
        return [(spec, _load_image(file.path, spec, picture))]
    return [(spec, read_npy(file.path) if kind == ".npy" else _load_raw(file.path, spec))]


def _load_npz(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    import zipfile

    import numpy as np

    try:
        with path.open("rb") as file, np.lib.npyio.NpzFile(file, allow_pickle=False) as archive:
            return {key: np.asarray(archive[key]) for key in archive.files}
    except (*NPY_ERRORS, RuntimeError, zipfile.BadZipFile, zlib.error) as e:  # RuntimeError: it wants a password
        raise InputError(f"cannot read {path}: {e}", "is it a .npz file without Python objects?") from e


def _load_raw(path: Path, spec: Spec) -> np.ndarray[Any, Any]:
    """A headerless file: type and shape from the model; one unknown dimension follows from the size.

    Beside another one, an unknown first dimension is 1.
    """
    import numpy as np

    if spec.dtype == "string" or (spec.dtype in NOT_NUMPY and wire.TYPES[wire.TYPE_NUMBERS[spec.dtype]][1] < 8):
        raise InputError(f"{path}: {spec.dtype} cannot be read from a headerless file", "give a .npy")
    dtype = np_dtype(spec.dtype)
    try:
        flat = np.fromfile(path, np.uint8)
    except OSError as e:
        raise InputError(f"cannot read {path}: {e.strerror or e}") from e
    dims: list[Any] = [None] if spec.dims is None else list(spec.dims)
    unknown = [axis for axis, d in enumerate(dims) if not isinstance(d, int)]
    if len(unknown) > 1 and unknown[0] == 0:
        dims[unknown.pop(0)] = 1
    if len(unknown) > 1:
        raise InputError(
            f"{path} is headerless, and input '{spec.name}' has {len(unknown)} unknown dimensions: "
            f"{shape_text(tuple(dims))}",
            f"--shape {spec.name}=…",
        )
    step = math.prod(d for d in dims if isinstance(d, int)) * dtype.itemsize
    if unknown and step and flat.size % step == 0:
        dims[unknown[0]] = flat.size // step
    if any(not isinstance(d, int) for d in dims) or math.prod(dims) * dtype.itemsize != flat.size:
        raise InputError(
            f"{path} has {flat.size} bytes; input '{spec.name}' ({spec.dtype} {shape_text(tuple(spec.dims or ()))}) "
            f"takes {f'a multiple of {step}' if unknown else step}",
            f"check type and layout, or give --shape {spec.name}=…",
        )
    return np.frombuffer(flat.tobytes(), dtype).reshape(dims)


def _load_pb(path: Path) -> tuple[str, np.ndarray[Any, Any]]:
    """An ONNX TensorProto, as in ONNX's own test_data_set folders."""
    import onnx.numpy_helper
    from google.protobuf.message import DecodeError

    try:
        tensor = wire.protos().TensorProto.FromString(path.read_bytes())
        if wire.on_disk(tensor):
            raise InputError(f"{path}: a tensor whose data lies in another file is not read")
        return str(tensor.name), onnx.numpy_helper.to_array(tensor)
    except (OSError, DecodeError, ValueError, TypeError, KeyError) as e:  # KeyError: an element type of no name
        raise InputError(f"{path} holds no ONNX tensor: {e}") from e


def _load_image(path: Path, spec: Spec, picture: Picture) -> np.ndarray[Any, Any]:
    """An image resized (bilinear) to the input: (1, C, H, W), or (1, H, W, C) where the last dimension is C."""
    import numpy as np
    from PIL import Image, UnidentifiedImageError

    dims = spec.dims or [1, 3, None, None]
    if len(dims) not in (3, 4):
        raise InputError(f"{path}: input '{spec.name}' of shape {shape_text(tuple(dims))} takes no image")
    inner = dims[-3:]
    last = inner[2] in (1, 3, 4) and inner[0] not in (1, 3, 4)
    channels, height, width = (inner[2], inner[0], inner[1]) if last else inner
    try:
        with Image.open(path) as opened:
            _require_8_bits(path, opened.mode)
            image = opened.convert({1: "L", 4: "RGBA"}.get(channels, "RGB"))
    except (OSError, UnidentifiedImageError, ValueError, Image.DecompressionBombError) as e:
        raise InputError(f"cannot read the image {path}: {e}") from e
    size = (width if isinstance(width, int) else image.width, height if isinstance(height, int) else image.height)
    pixels = np.asarray(image.resize(size, Image.Resampling.BILINEAR)).reshape(size[1], size[0], -1)
    if picture.bgr:
        pixels = pixels[:, :, [2, 1, 0, *range(3, pixels.shape[2])]] if pixels.shape[2] >= 3 else pixels
    if picture.mean != (0.0,) or picture.scale != (1.0,):
        pixels = (pixels - _per_channel(picture.mean, pixels)) * _per_channel(picture.scale, pixels)
    array = pixels if last else pixels.transpose(2, 0, 1)
    return np.ascontiguousarray(array.reshape((1,) * (len(dims) - 3) + array.shape))


def _require_8_bits(path: Path, mode: str) -> None:
    """Pillow would clip the values of deeper images at 255."""
    if mode in ("I", "F") or mode.startswith("I;16"):
        raise InputError(
            f"{path}: an image of more than 8 bits per channel (mode {mode}) is not read",
            "convert it to a .npy of the values that the model takes",
        )


def _per_channel(values: tuple[float, ...], pixels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    import numpy as np

    if len(values) not in (1, pixels.shape[2]):
        raise InputError(f"--mean and --scale take 1 or {pixels.shape[2]} numbers, not {len(values)}")
    return np.asarray(values, np.float32)


def _fitted(array: np.ndarray[Any, Any], spec: Spec, file: str) -> tuple[Value, str]:
    """The array in the input's type, if nothing is lost by that; with a remark where it had to be converted."""
    note = ""
    want = np_dtype(spec.dtype)
    if spec.dtype in NOT_NUMPY and are_bits(array.dtype, want):
        array = from_bits(array, spec.dtype)
    elif spec.dtype == "string":
        array = array.astype(object)
    elif array.dtype != want:
        cast = _converted(array, want)
        if cast is None:
            raise InputError(f"{file} holds {array.dtype}; input '{spec.name}' takes {spec.dtype}", "convert it first")
        note = f" (converted from {array.dtype})"
        array = cast
    if spec.dims is not None and not _agree(spec.dims, array.shape):
        raise InputError(
            f"{file} has shape {shape_text(array.shape)}; input '{spec.name}' takes {shape_text(tuple(spec.dims))}",
            "reshape or transpose it first",
        )
    return [array] if "sequence" in spec.form else array, note


def _converted(array: np.ndarray[Any, Any], want: np.dtype[Any]) -> np.ndarray[Any, Any] | None:
    """The array in another type, or None where that does harm.

    Integers must keep their values; floats may be rounded, not overflow, and never become integers.
    """
    import numpy as np

    have, kind = _kind(array.dtype), _kind(want)
    if have not in "biuf" or kind not in "biuf" or (have == "f" and kind != "f"):
        return None
    with np.errstate(all="ignore"):
        cast = array.astype(want)
        if have == "f":
            harmless = np.isfinite(cast) == np.isfinite(array)
        else:  # to and fro, and on the same side of zero
            harmless = (cast.astype(array.dtype) == array) & ((cast < 0) == (array < 0))
    return cast if harmless.all() else None


def _kind(dtype: np.dtype[Any]) -> str:
    """numpy's letter for it: b, i, u, f, …; those of ml_dtypes go by their names."""
    if dtype.name in NOT_NUMPY:
        return "f" if "float" in dtype.name else dtype.name[0]
    return dtype.kind


def _agree(dims: Sequence[Any], shape: tuple[int, ...]) -> bool:
    return len(dims) == len(shape) and all(d == n for d, n in zip(dims, shape, strict=True) if isinstance(d, int))
