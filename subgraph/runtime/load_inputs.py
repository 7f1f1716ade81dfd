"""A planned sample → its arrays, in the child process: the main one opens no hostile or huge
file."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from subgraph import system
from subgraph.errors import InputError, explain_os_error
from subgraph.graph import protobuf
from subgraph.iterables import index_by_name
from subgraph.lazy import np, onnx
from subgraph.runtime.inputs import (
    ARRAY_FOLDER,
    DRAWS,
    IMAGES,
    NOTHING,
    NUMBERS,
    ImageOptions,
    InputOrigin,
    InputSpec,
    OriginKind,
    Range,
    Sample,
    map_stems,
)
from subgraph.storage import dtypes
from subgraph.storage.tensors import (
    NOT_NUMPY,
    NPY_ERRORS,
    Tensors,
    Value,
    Values,
    are_bits,
    find_dtype,
    format_shape,
    from_bits,
    has_dims,
    read_npy,
)
from subgraph.types import Array, Shape, StringMap, frozen

IMAGE_TYPES = frozenset("float16 bfloat16 float32 float64 uint8 int8 uint16 int16 int32".split())
EMPTY = InputOrigin(OriginKind.EMPTY, "empty")
HISTOGRAM_BARS = 60  # that are drawn
MIN_LENGTH = 16  # of an axis along which a bar is drawn
MAX_SHOWN = 8  # numbers of an input
MAX_RANDOM = 1 << 30  # bytes of one random input; with more, a dimension is surely wrong
TEXT_BYTES = 128  # of memory that a random text takes
PIECE_ELEMENTS = 1 << 20  # elements that are drawn at a time


def load_sample(sample: Sample) -> tuple[Values, dict[str, InputOrigin]]:
    """Return the value of each input, and its source.

    Raises:
        InputError: A file is damaged, or does not fit its input in type or shape, or a dimension is
            unknown.
    """
    feeds: Values = {}
    origins: dict[str, InputOrigin] = {}
    computed = InputOrigin(OriginKind.COMPUTED, sample.origin) if sample.origin else None
    stems = map_stems(sample.names)
    needed = index_by_name(sample.specs)
    for name, file in sample.files:
        if file == NOTHING and name in needed:
            feeds[name] = [] if needed[name].form == "sequence" else None
            origins[name] = computed or EMPTY
            continue
        if file.startswith(NUMBERS):
            if name in needed:
                text = file.removeprefix(NUMBERS)
                numbers = [float(n) if set(n) & set(".eE") else int(n) for n in text.split(",")]
                spec = needed[name]  # of a scalar or a vector
                array = np.array(numbers if spec.dims or len(numbers) > 1 else numbers[0])
                feeds[name], _ = _convert_to_input(array, spec, f"-i {name}={text}")
                origins[name] = InputOrigin(OriginKind.FILE, text)
            continue
        for spec, array in _read(_InputFile(Path(file), name, stems, needed), sample.picture):
            source = "the array" if ARRAY_FOLDER in file else file
            value, conversion = _convert_to_input(array, spec, source)
            elements = feeds.get(spec.name)
            if name and isinstance(elements, list) and isinstance(value, list):
                elements += value
                continue
            if spec.name in feeds:
                raise InputError(
                    f"input '{spec.name}' is given twice: {origins[spec.name]} and {file}",
                    "put several samples into a folder and give the folder",
                    code="input.given-twice",
                )
            feeds[spec.name] = value
            origins[spec.name] = computed or InputOrigin(
                OriginKind.FILE,
                Path(file).name,
                conversion,
                _find_range(value) or _find_range(array),
            )
    sizes = _find_symbol_sizes(sample.specs, feeds)
    for spec in sample.specs:
        if spec.name not in feeds:
            feeds[spec.name], origins[spec.name] = generate_input(spec, sizes, sample)
    return feeds, origins


def _find_range(value: Value) -> Range | None:
    """Return the least and the greatest of some floats that are all finite."""
    if not isinstance(value, np.ndarray) or _find_kind(value.dtype) != "f" or not value.size:
        return None
    low = float(value.min())
    high = float(value.max())
    return (low, high) if math.isfinite(low) and math.isfinite(high) else None


def _find_symbol_sizes(specs: Sequence[InputSpec], feeds: Tensors) -> dict[str, int]:
    """Return the sizes of symbols: those of the arrays in `feeds`, and 1 for a first dimension."""
    sizes: dict[str, int] = {}
    first: dict[str, int] = {}
    for spec in specs:
        dims = spec.dims or ()
        value = feeds.get(spec.name)
        shape = value.shape if isinstance(value, np.ndarray) else ()
        sizes |= {d: n for d, n in zip(dims, shape, strict=False) if isinstance(d, str)}
        first |= {d: 1 for d in dims[:1] if isinstance(d, str)}
    return first | sizes


def iter_drawn_integers(sample: Sample, names: Collection[str]) -> Iterator[str]:
    """Yield a phrase per integer input among `names`: its name, and the values that are drawn for
    it.

    An input of more than `MAX_SHOWN` numbers is described instead.
    """
    sizes = _find_symbol_sizes(sample.specs, {})
    for spec in sample.specs:
        if "int" not in spec.dtype or spec.name not in names:
            continue
        try:
            value, origin = generate_input(spec, sizes, sample)
        except InputError:  # the run reports it
            continue
        values = origin.text
        if isinstance(value, np.ndarray) and value.size <= MAX_SHOWN:
            values = ", ".join(map(str, value.reshape(-1)))
        yield f"{spec.name} = {values}"


def generate_input(
    spec: InputSpec, sizes: Mapping[str, int], sample: Sample
) -> tuple[Value, InputOrigin]:
    """Draw a value: floats by the sample, booleans, indices of a table, other integers 0 or 1.

    Raises:
        InputError: The shape is unknown, or takes more than `MAX_RANDOM`.
    """
    if spec.form.startswith("optional"):
        return None, EMPTY
    shape = _find_shape(spec, sizes)
    dtype = find_dtype(spec.dtype)
    size = math.prod(shape) * (TEXT_BYTES if spec.dtype == "string" else dtype.itemsize)
    if size > MAX_RANDOM:
        raise InputError(
            f"input '{spec.name}' of shape {format_shape(shape)} would take {size / 2**30:.1f} GiB",
            f"is the model damaged? otherwise give it a file: -i {spec.name}=FILE",
            code="input.too-large",
        )
    rng = np.random.default_rng(
        [sample.seed, zlib.crc32(spec.name.encode()), zlib.crc32(sample.label.encode())]
    )
    array, how = _draw(spec, shape, rng, sample.draw)
    origin = InputOrigin(OriginKind.RANDOM, f"random {how}, seed {sample.seed}")
    return ([array] if "sequence" in spec.form else array), origin


def _draw(spec: InputSpec, shape: Shape, rng: np.random.Generator, draw: str) -> tuple[Array, str]:
    element_type = spec.dtype
    dtype = find_dtype(element_type)

    def draw_integers(low: int, high: int) -> Array:
        return _draw_in_pieces(lambda size: rng.integers(low, high, size), shape, dtype)

    if element_type == "string":
        texts = [f"text{n}" for n in rng.integers(0, 10, math.prod(shape))]
        return np.array(texts, object).reshape(shape), "words"
    if element_type == "bool":
        return draw_integers(0, 2), "booleans"
    if element_type.startswith("complex"):
        values = rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
        return values.astype(dtype), "normal"
    if "float" in element_type:
        name = draw if draw == "normal" else DRAWS[draw]
        if draw == "bars":
            return _draw_bars(shape, rng).astype(dtype, copy=False), name
        draw_floats: Mapping[str, Callable[[int], Array]] = {
            "unit": lambda size: rng.random(size, np.float32),
            "pixels": lambda size: 255 * rng.random(size, np.float32),
            "small": lambda size: np.float32(0.1) * rng.standard_normal(size, np.float32),
            "normal": lambda size: rng.standard_normal(size, np.float32),
        }
        return _draw_in_pieces(draw_floats[draw], shape, dtype), name
    if spec.high is not None:
        return draw_integers(0, spec.high), f"integers below {spec.high} ({spec.why})"
    if dtypes.count_bits(element_type) <= 8:  # pixels and quantized values
        low, high = dtypes.find_code_range(element_type)
        return draw_integers(low, high + 1), "integers of the whole range"
    return draw_integers(0, 2), "integers 0 or 1"


def _draw_in_pieces(draw: Callable[[int], Array], shape: Shape, dtype: np.dtype[Any]) -> Array:
    """Draw an array a piece at a time: numbers of 64 bits take eight times the memory of those of 8
    bits."""
    array = np.empty(math.prod(shape), dtype)
    for begin in range(0, array.size, PIECE_ELEMENTS):
        piece = array[begin : begin + PIECE_ELEMENTS]
        piece[:] = draw(piece.size).astype(dtype, copy=False)
    return array.reshape(shape)


def _draw_bars(shape: Shape, rng: np.random.Generator) -> Array:
    """Draw dark bars on a light ground, as glyphs on paper or bursts of a tone, from -1 to 1."""
    ground = np.ones(shape, np.float32)
    long_axes = [axis for axis, size in enumerate(shape) if size >= MIN_LENGTH]
    for _ in range(HISTOGRAM_BARS):
        bar = [slice(None)] * len(shape)
        for axis in long_axes:
            length = int(rng.integers(1, max(2, shape[axis] // 12)))
            begin = int(rng.integers(0, shape[axis] - length))
            bar[axis] = slice(begin, begin + length)
        ground[tuple(bar)] = rng.uniform(-1, 0)
    return ground


def _find_shape(spec: InputSpec, sizes: Mapping[str, int]) -> Shape:
    if spec.dims is None:
        raise InputError(
            f"input '{spec.name}' declares no shape",
            f"--shape {spec.name}=1x3x224x224, or -i FILE",
            code="input.no-shape",
        )
    shape = [d if isinstance(d, int) else sizes.get(d or "") for d in spec.dims]
    if shape and shape[0] is None:
        shape[0] = 1  # of a batch
    if None in shape:
        axis = shape.index(None)
        symbols = [dim for dim, size in zip(spec.dims, shape, strict=True) if size is None]
        called = f" '{spec.dims[axis]}'" if spec.dims[axis] else ""
        example = "x".join("?" if n is None else str(n) for n in shape)
        hint = f"--shape {spec.name}={example} with numbers for the ?"
        if all(symbols):
            words = [f"--shape {system.quote(f'{symbol}=N')}" for symbol in dict.fromkeys(symbols)]
            numbers = "a number" if len(words) == 1 else "numbers"
            hint = f"{' '.join(words)} with {numbers} for N"
        raise InputError(
            f"input '{spec.name}' has the unknown dimension{called} (axis {axis})",
            f"{hint}, or -i FILE",
            code="input.unknown-dimension",
        )
    return tuple(int(n) for n in shape if n is not None)


@frozen
class _InputFile:
    """A file, and the inputs that it may be for.

    Attributes:
        path: The file.
        name: The input that the user named, if any.
        stems: `map_stems` of all inputs of the model.
        specs: The inputs that the run needs, by name.
    """

    path: Path
    name: str | None
    stems: StringMap
    specs: Mapping[str, InputSpec]

    def is_input(self, key: str) -> bool:
        return self.stems.get(key) == key  # an input's own name always maps to itself

    def target(self, key: str = "") -> InputSpec | None:
        """Return the input that the file's array `key` is for; None if the run does not need it.

        The name from the user decides, then the array's own, then the file's; else it is the only
        input.
        """
        name = self.name or (key if self.is_input(key) else None) or self.stems.get(self.path.stem)
        if name is not None:
            return self.specs.get(name)
        if len(self.specs) == 1 or len(set(self.stems.values())) == 1:
            return next(iter(self.specs.values()), None)
        names = ", ".join(f"'{name}'" for name in self.specs)
        raise InputError(
            f"{self.path}: which input is it for? The run needs {names or 'none'}",
            f"-i NAME={self.path.name}",
            code="input.ambiguous",
        )


def _read(file: _InputFile, image_options: ImageOptions) -> list[tuple[InputSpec, Array]]:
    """Return the arrays in one file, each with its input, for the inputs that this run needs."""
    path = file.path
    kind = path.suffix.lower()
    if kind in (".npz", ".pb"):
        arrays = _load_npz(path) if kind == ".npz" else _load_pb(path)
        named = {key: array for key, array in arrays.items() if file.is_input(key)}
        return [
            (spec, array) for key, array in (named or arrays).items() if (spec := file.target(key))
        ]
    spec = file.target()
    if spec is None:
        return []
    if kind in IMAGES:
        return [(spec, _load_image(path, spec, image_options))]
    return [(spec, read_npy(path) if kind == ".npy" else _load_raw(path, spec))]


def _load_npz(path: Path) -> dict[str, Array]:
    try:
        with path.open("rb") as file, np.lib.npyio.NpzFile(file, allow_pickle=False) as archive:
            return {key: np.asarray(archive[key]) for key in archive.files}
    # RuntimeError: it needs a password
    except (*NPY_ERRORS, RuntimeError, zipfile.BadZipFile, zlib.error) as e:
        raise InputError(
            f"cannot read {path}: {e}",
            "give a .npz file without Python objects",
            code="tensor.unreadable",
        ) from e


def _load_raw(path: Path, spec: InputSpec) -> Array:
    """Read a headerless file in the input's type and shape.

    One unknown dimension follows from the file's size. If several dimensions are unknown, the first
    dimension counts as 1.
    """
    if spec.dtype == "string" or (spec.dtype in NOT_NUMPY and dtypes.count_bits(spec.dtype) < 8):
        raise InputError(
            f"{path}: {spec.dtype} cannot be read from a headerless file",
            "give a .npy",
            code="tensor.no-raw-form",
        )
    dtype = find_dtype(spec.dtype)
    with explain_os_error(InputError, f"cannot read {path}", code="file.unreadable"):
        flat = np.fromfile(path, np.uint8)
    dims: list[Any] = [None] if spec.dims is None else list(spec.dims)
    unknown = [axis for axis, d in enumerate(dims) if not isinstance(d, int)]
    if len(unknown) > 1 and unknown[0] == 0:
        dims[unknown.pop(0)] = 1
    if len(unknown) > 1:
        raise InputError(
            f"{path} is headerless, and input '{spec.name}' has {len(unknown)} unknown dimensions: "
            f"{format_shape(tuple(dims))}",
            f"--shape {spec.name}=…",
            code="input.unknown-dimension",
        )
    try:
        return flat.view(dtype).reshape([d if isinstance(d, int) else -1 for d in dims])
    except ValueError as e:
        step = math.prod(d for d in dims if isinstance(d, int)) * dtype.itemsize
        size = f"a multiple of {step}" if unknown else step
        raise InputError(
            f"{path} has {flat.size} bytes; input '{spec.name}' ({spec.dtype}"
            f" {format_shape(tuple(spec.dims or ()))}) takes {size}",
            f"check type and layout, or give --shape {spec.name}=…",
            code="tensor.wrong-size",
        ) from e


def _load_pb(path: Path) -> dict[str, Array]:
    """Read an ONNX TensorProto, as in ONNX's own test_data_set folders."""
    from google.protobuf.message import DecodeError

    try:
        tensor = protobuf.load_protos().TensorProto.FromString(path.read_bytes())
        if protobuf.is_on_disk(tensor):
            raise InputError(
                f"{path}: a tensor with its data in another file is not read",
                code="input.external-data",
            )
        return {str(tensor.name): onnx.numpy_helper.to_array(tensor)}
    # KeyError: an element type without a name
    except (OSError, DecodeError, ValueError, TypeError, KeyError) as e:
        raise InputError(f"{path} holds no ONNX tensor: {e}", code="tensor.unreadable") from e


def _load_image(path: Path, spec: InputSpec, options: ImageOptions) -> Array:
    """Read an image, resized (bilinear) to the input: (1, C, H, W) or (1, H, W, C).

    Raises:
        InputError: The input's type, rank or channels are not those of an image, or the file is
            damaged.
    """
    from PIL import Image, UnidentifiedImageError

    dims: list[Any] = spec.dims or [1, 3, None, None]
    inner = dims[-3:]
    last = len(inner) == 3 and inner[2] in (1, 3, 4) and inner[0] not in (1, 3, 4)
    channels, height, width = (inner[2], inner[0], inner[1]) if last else (*inner, None, None)[:3]
    # Of rank 3, one channel may as well be a batch of one sequence.
    of_image = len(dims) == 4 and (channels in (1, 3, 4) or not isinstance(channels, int))
    if not (of_image or (len(dims) == 3 and channels in (3, 4))) or spec.dtype not in IMAGE_TYPES:
        raise InputError(
            f"{path}: input '{spec.name}' ({spec.dtype} {format_shape(tuple(dims))})"
            " takes no image:"
            " an image has 1, 3 or 4 channels, height and width, and floats or whole numbers of 8"
            " to 32 bits",
            f"give it a .npy: -i {spec.name}=FILE.npy",
            code="input.takes-no-image",
        )
    try:
        with Image.open(path) as opened:
            if opened.mode in ("I", "F") or opened.mode.startswith("I;16"):
                raise InputError(  # Pillow would clip its values at 255
                    f"{path}: an image of more than 8 bits per channel (mode {opened.mode}) is not"
                    " read",
                    "convert it to a .npy of the values that the model takes",
                    code="input.image-depth",
                )
            image = opened.convert({1: "L", 4: "RGBA"}.get(channels, "RGB"))
    except (OSError, UnidentifiedImageError, ValueError, Image.DecompressionBombError) as e:
        raise InputError(f"cannot read the image {path}: {e}", code="input.unreadable-image") from e
    size = (
        width if isinstance(width, int) else image.width,
        height if isinstance(height, int) else image.height,
    )
    pixels = np.asarray(image.resize(size, Image.Resampling.BILINEAR)).reshape(size[1], size[0], -1)
    if options.bgr and pixels.shape[2] >= 3:
        pixels = pixels[:, :, [2, 1, 0, *range(3, pixels.shape[2])]]
    if options.mean != (0.0,) or options.scale != (1.0,):
        pixels = (pixels - _spread_per_channel(options.mean, pixels)) * _spread_per_channel(
            options.scale, pixels
        )
    array = pixels if last else pixels.transpose(2, 0, 1)
    return np.ascontiguousarray(array.reshape((1,) * (len(dims) - 3) + array.shape))


def _spread_per_channel(values: tuple[float, ...], pixels: Array) -> Array:
    if len(values) not in (1, pixels.shape[2]):
        raise InputError(
            f"--mean and --scale take 1 or {pixels.shape[2]} numbers, not {len(values)}",
            code="input.channel-numbers",
        )
    return np.asarray(values, np.float32)


def _convert_to_input(array: Array, spec: InputSpec, file: str) -> tuple[Value, str]:
    """Return the array in the input's type, and its conversion in words.

    Raises:
        InputError: The type cannot be converted without loss, or the shape contradicts the input's.
    """
    conversion = ""
    dtype = find_dtype(spec.dtype)
    if spec.dtype in NOT_NUMPY and are_bits(array.dtype, dtype):
        array = from_bits(array, spec.dtype)
    elif spec.dtype == "string":
        array = array.astype(object)
    elif spec.scale and array.dtype.kind == "f":
        array = spec.scale.quantize(array, spec.dtype)
        conversion = f"quantized by the model's scale {spec.scale.step[0]:.6g}"
        conversion += f", zero point {spec.scale.zero[0]}"
    elif spec.scale and spec.dtype == "int8" and Path(file).suffix.lower() in IMAGES:
        array = (array.astype(np.int16) - 128).astype(np.int8)
        conversion = "pixels less 128, as codes"
    elif array.dtype != dtype:
        cast = _convert(array, dtype)
        if cast is None:
            raise InputError(
                f"{file} holds {array.dtype}; input '{spec.name}' takes {spec.dtype}",
                "convert it first",
                code="input.wrong-type",
            )
        conversion = f"converted from {array.dtype}"
        array = cast
    if spec.dims is not None and not has_dims(array.shape, spec.dims):
        shapes = f"{format_shape(array.shape)}; input '{spec.name}' takes {format_shape(spec.dims)}"
        for layout, order in (("NHWC", (0, 3, 1, 2)), ("NCHW", (0, 2, 3, 1))):
            if array.ndim == 4 and has_dims([array.shape[k] for k in order], spec.dims):
                raise InputError(
                    f"{file} is laid out {layout}: {shapes}",
                    f"numpy.transpose(array, {order}) reorders it",
                    code="input.wrong-layout",
                )
        raise InputError(
            f"{file} has shape {shapes}",
            "reshape it, or name another file",
            code="input.wrong-shape",
        )
    return [array] if "sequence" in spec.form else array, conversion


def _convert(array: Array, dtype: np.dtype[Any]) -> Array | None:
    """Return the array in another type, or None if that loses more than rounding.

    Integers must keep their values; floats may be rounded, not overflow, and never become integers.
    """
    source = _find_kind(array.dtype)
    target = _find_kind(dtype)
    if source not in "biuf" or target not in "biuf" or (source == "f" and target != "f"):
        return None
    with np.errstate(all="ignore"):
        cast = array.astype(dtype)
        if source == "f":
            kept = np.isfinite(cast) == np.isfinite(array)
        else:  # back again, with the same sign: 200 as int8 is -56, which is 200 as uint8
            kept = (cast.astype(array.dtype) == array) & ((cast < 0) == (array < 0))
    return cast if kept.all() else None


def _find_kind(dtype: np.dtype[Any]) -> str:
    """Return numpy's letter for a type: b, i, u, f, …; for ml_dtypes' types, by their names."""
    if dtype.name in NOT_NUMPY:
        if "float" in dtype.name:
            return "f"
        return dtype.name[0]
    return dtype.kind
