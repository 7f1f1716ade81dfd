"""Shared by the backends: a package that may be missing, options, inputs and outputs as declared.

Most runtimes know fewer element types than ONNX. Computing in another one alone (int64 in int32,
float16 in float32) is no failure: `as_declared` converts an output to the declared type if that
changes no value.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from importlib import import_module, util
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

from subgraph.errors import BackendError, ModelError, NotInstalled, Refused, UsageError
from subgraph.graph import protobuf
from subgraph.lazy import np
from subgraph.runtime.backends import Options
from subgraph.storage import dtypes
from subgraph.storage.tensors import Value, find_dtype, has_dims
from subgraph.types import Array, Fields, frozen
from subgraph.version import make_install_command

MAX_THREADS = 1024  # a typing error must not start a million
# Element types that most runtimes know.
TYPES = frozenset(
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64".split()
)
FLOATS = frozenset(("float16", "bfloat16", "float32", "float64"))


Dims: TypeAlias = "tuple[int | None, ...] | None"


@frozen
class Port:
    """One input or output as the model declares it.

    Attributes:
        dims: None for an open size; None instead of the tuple for an unknown rank.
    """

    name: str
    dtype: str
    dims: Dims


Ports = list[Port]
PACKAGES = {"tflite": "ai-edge-litert", "web": "playwright"}  # of extras with another name


def package(module: str, extra: str) -> ModuleType:
    """Return the runtime's module.

    Raises:
        NotInstalled: it is not there. BackendError: it does not load here.
    """
    name = PACKAGES.get(extra, extra)
    try:
        return import_module(module)
    except ImportError as e:
        if util.find_spec(module.partition(".")[0]) is None:
            raise NotInstalled(
                f"{name} is not installed",
                make_install_command(extra),
                code="package.not-installed",
            ) from e
        raise BackendError(
            f"{name} cannot be loaded: {e}",
            f"{make_install_command(extra)} --force-reinstall",
            code="backend.not-loadable",
        ) from e


def make_folder(owner: object, name: str) -> Path:
    """Return a new temporary folder, which is removed when its owner is."""
    folder = tempfile.mkdtemp(prefix=f"subcut-{name}-")
    weakref.finalize(owner, shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def check_options(backend: str, options: Fields, allowed: Options) -> None:
    """Check that a backend has these options.

    Raises:
        UsageError: an option or its value is not allowed.
    """
    for key, value in options.items():
        stated = [values for name, values in allowed.items() if fnmatchcase(key, name)]
        if not stated:
            names = ", ".join(allowed)
            raise UsageError(
                f"{backend} has no option '{key}'",
                f"it has {names}" if names else "leave it out",
                code="backend.unknown-option",
            )
        if stated[0] and str(value) not in stated[0]:
            raise UsageError(
                f"{backend}: {key} cannot be {value}",
                f"one of {', '.join(stated[0])}",
                code="backend.wrong-option",
            )


def threads(backend: str, options: Fields) -> int:
    """Return the option `threads`; 1 by default, so that sums are computed in the same order each
    time.

    Raises:
        UsageError: it is not a number of threads.
    """
    text = str(options.get("threads", 1))
    if not text.isdecimal() or int(text) > MAX_THREADS:
        raise UsageError(
            f"{backend}: threads={text} is not a number of threads",
            f"0 leaves it to {backend}",
            code="backend.wrong-option",
        )
    return int(text)


def ports(
    backend: str, model: Path, types: Collection[str], untyped: Collection[str] = ()
) -> tuple[Ports, Ports]:
    """Return inputs (without those that have an initializer) and outputs, in the model's order.

    `untyped`: outputs that need no type, because the runtime's own is right; their `dtype` is "".

    Raises:
        Refused: the model cannot be read, or an input or output is not a tensor of one of these
            types.
    """
    try:
        graph = protobuf.read(model).model.graph
    except (ModelError, OSError) as e:
        raise Refused(f"{backend} refuses the model: {e}", code="backend.refused-model") from e
    initializers = {t.name for t in graph.initializer}
    inputs = [_make_port(backend, v, types) for v in graph.input if v.name not in initializers]
    return inputs, [
        Port(v.name, "", None) if v.name in untyped else _make_port(backend, v, types)
        for v in graph.output
    ]


def _make_port(backend: str, declared: Any, types: Collection[str]) -> Port:
    kind = declared.type.WhichOneof("value")
    tensor = declared.type.tensor_type
    if kind == "tensor_type":
        dtype = dtypes.name_of(tensor.elem_type)
    else:
        dtype = str(kind).removesuffix("_type")
    if kind != "tensor_type" or dtype not in types:
        raise Refused(
            f"{backend} has no {dtype or 'tensor without a type'}: '{declared.name}'",
            "" if kind == "tensor_type" else "cut between plain tensors",
            code="backend.unsupported-type",
        )
    if not tensor.HasField("shape"):
        return Port(declared.name, dtype, None)
    sizes = (d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim)
    # Paddle: -1 is open.
    return Port(declared.name, dtype, tuple(None if n is not None and n < 0 else n for n in sizes))


def input_arrays(feeds: Mapping[str, Value], inputs: Sequence[Port]) -> list[Array]:
    """Return the value of each input, in C order.

    Raises:
        ModelError: a value is missing, or has another type or shape: runtimes would read past its
            end, or compute with the last run's values.
    """
    arrays = []
    for port in inputs:
        value = feeds.get(port.name)
        if value is None:
            raise ModelError(f"no value for the input '{port.name}'", code="backend.input-missing")
        array = np.asarray(value, order="C")
        if array.dtype != find_dtype(port.dtype):
            raise ModelError(
                f"input '{port.name}' is {array.dtype} instead of {port.dtype}",
                code="input.wrong-type",
            )
        if port.dims is not None and not has_dims(array.shape, port.dims):
            raise ModelError(
                f"input '{port.name}' has shape {list(array.shape)} instead of {list(port.dims)}",
                code="input.wrong-shape",
            )
        arrays.append(array)
    return arrays


def as_declared(array: Array, port: Port) -> Array:
    """Copy an array to the declared type and rank; its own type stays if a value would change.

    Floats are rounded to the declared float type: a runtime that computes a float16 model in
    float32 returns more digits than the model has.
    """
    if port.dims == () and array.shape == (1,):  # the runtime has no rank 0
        array = array.reshape(())
    dtype = find_dtype(port.dtype)
    if array.dtype == dtype:
        return array.copy()
    with np.errstate(over="ignore"):  # beyond the range of float16 is infinity, as in ONNX
        cast = array.astype(dtype)
    if array.dtype.name in FLOATS or port.dtype in FLOATS:
        if {array.dtype.name, port.dtype} <= FLOATS:
            return cast
        return array.copy()
    if np.array_equal(cast.astype(array.dtype), array):
        return cast
    return array.copy()


def empty_array(port: Port) -> Array:
    """Return an array without elements: of the declared shape if that has none, else of
    shape (0,)."""
    dims = port.dims or ()
    empty = 0 in dims and None not in dims
    return np.zeros([d or 0 for d in dims] if empty else [0], find_dtype(port.dtype))


def require_ports(
    backend: str, counts: tuple[int, int], inputs: Sequence[Port], outputs: Sequence[Port]
) -> None:
    """Require as many inputs and outputs of the built model as declared: they match by position.

    Raises:
        Refused: they are not.
    """
    if counts != (len(inputs), len(outputs)):
        built = f"{counts[0]} inputs and {counts[1]} outputs"
        raise Refused(
            f"{backend} refuses the model: it made {built} of {len(inputs)} and {len(outputs)}",
            code="backend.refused-model",
        )


def message(error: BaseException, drop: str = "") -> str:
    """Return a runtime's error text on one line of at most 400 characters, up to the word
    `drop`."""
    text = str(error)
    return " ".join((text.partition(drop)[0] if drop else text).split())[:400]
