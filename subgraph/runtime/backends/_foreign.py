"""What runtimes of others have in common: a package that may be missing, options, a model's declared edge, types.

They know fewer element types than ONNX. One that widens what it is given (int64 to int32 and back, float16 to float32)
must not fail for that alone: `as_declared` gives values the type that the model declares, where that changes none.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module, util
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from subgraph.errors import BackendError, ModelError, Refused
from subgraph.graph import protobuf
from subgraph.storage import dtypes
from subgraph.storage.tensors import Value, np_dtype

if TYPE_CHECKING:
    from subgraph.types import Array

MAX_THREADS = 1024  # a slip of the keyboard must not start a million
FLOATS = frozenset(("float16", "bfloat16", "float32", "float64"))


@dataclass(frozen=True)
class Port:
    """One input or output as the model declares it.

    Attributes:
        dims: None where a size is open; None as a whole where even the rank is.
    """

    name: str
    dtype: str
    dims: tuple[int | None, ...] | None


def package(module: str, extra: str) -> ModuleType:
    """The runtime's module.

    Raises:
        BackendError: it is not installed, or does not load here.
    """
    try:
        return import_module(module)
    except ImportError as e:
        if util.find_spec(module.partition(".")[0]) is None:
            raise BackendError(f"{extra} is not installed", f"pip install 'subcut[{extra}]'") from e
        hint = f"pip install --force-reinstall 'subcut[{extra}]'"
        raise BackendError(f"{extra} cannot be loaded: {e}", hint) from e


def check_options(who: str, options: Mapping[str, Any], known: Mapping[str, Collection[str]]) -> None:
    """`known`: each option with the values that it takes; none where any will do.

    Raises:
        BackendError: one is unknown, or its value is.
    """
    for key, value in options.items():
        if key not in known:
            has = ", ".join(known)
            raise BackendError(f"{who} has no option '{key}'", f"it has {has}" if has else "leave it out")
        if known[key] and str(value) not in known[key]:
            raise BackendError(f"{who}: {key} cannot be {value}", f"one of {', '.join(known[key])}")


def threads(who: str, options: Mapping[str, Any]) -> int:
    """How many it may use: one, where nothing is said, so that sums are made in the same order each time.

    Raises:
        BackendError: that is no number of threads.
    """
    text = str(options.get("threads", 1))
    if not text.isdecimal() or int(text) > MAX_THREADS:
        raise BackendError(f"{who}: threads={text} is no number of threads", f"0 leaves it to {who}")
    return int(text)


def edge(who: str, model: Path, types: Collection[str]) -> tuple[list[Port], list[Port]]:
    """Inputs (without those that an initializer gives) and outputs, in the model's order.

    Raises:
        Refused: the model cannot be read, or one of them is none of `types`, or is no tensor.
    """
    try:
        graph = protobuf.read(model).model.graph
    except (ModelError, OSError) as e:
        raise Refused(f"{who} refuses the model: {e}") from e
    given = {t.name for t in graph.initializer}
    inputs = [_port(who, v, types) for v in graph.input if v.name not in given]
    return inputs, [_port(who, v, types) for v in graph.output]


def _port(who: str, declared: Any, types: Collection[str]) -> Port:
    kind = declared.type.WhichOneof("value")
    tensor = declared.type.tensor_type
    dtype = dtypes.name_of(tensor.elem_type) if kind == "tensor_type" else str(kind).removesuffix("_type")
    if kind != "tensor_type" or dtype not in types:
        raise Refused(f"{who} takes and gives no {dtype or 'tensor without a type'}: '{declared.name}'")
    if not tensor.HasField("shape"):
        return Port(declared.name, dtype, None)
    return Port(declared.name, dtype, tuple(d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim))


def fed(feeds: Mapping[str, Value], inputs: Sequence[Port]) -> list[Array]:
    """The value of each input, in C order.

    Raises:
        ModelError: one is missing, or of another type or rank; runtimes would read past its end, or compute with what
            the last run left.
    """
    import numpy as np

    found = []
    for port in inputs:
        value = feeds.get(port.name)
        if value is None:
            raise ModelError(f"no value for the input '{port.name}'")
        array = np.asarray(value, order="C")
        if array.dtype != np_dtype(port.dtype):
            raise ModelError(f"input '{port.name}' is {array.dtype}, the model says {port.dtype}")
        if port.dims is not None and not _fits(array.shape, port.dims):
            raise ModelError(f"input '{port.name}' has shape {list(array.shape)}, the model says {list(port.dims)}")
        found.append(array)
    return found


def _fits(shape: Sequence[int], dims: Sequence[int | None]) -> bool:
    return len(shape) == len(dims) and all(d is None or d == size for size, d in zip(shape, dims, strict=True))


def as_declared(array: Array, port: Port) -> Array:
    """A copy, in the type and rank that the model declares, where that changes no value; else as it came.

    A float is rounded to the declared float type: a runtime that computes a float16 model in float32 gives more digits
    than the model has.
    """
    import numpy as np

    if port.dims == () and array.shape == (1,):  # no rank 0
        array = array.reshape(())
    want = np_dtype(port.dtype)
    if array.dtype == want:
        return array.copy()
    with np.errstate(over="ignore"):  # beyond float16 is infinity there as well
        cast = array.astype(want)
    if array.dtype.name in FLOATS or port.dtype in FLOATS:
        return cast if {array.dtype.name, port.dtype} <= FLOATS else array.copy()
    return cast if np.array_equal(cast.astype(array.dtype), array) else array.copy()


def nothing(port: Port) -> Array:
    """What stands for "empty": of the declared shape where that is empty, else without an element."""
    import numpy as np

    dims = port.dims or ()
    empty = 0 in dims and None not in dims
    return np.zeros([d or 0 for d in dims] if empty else [0], np_dtype(port.dtype))


def other_edge(who: str, counts: tuple[int, int], inputs: Sequence[Port], outputs: Sequence[Port]) -> str:
    """What is said of a runtime that made another number of inputs or outputs: they are told apart by their place."""
    made = f"{counts[0]} inputs and {counts[1]} outputs"
    return f"{who} refuses the model: it made {made} of {len(inputs)} and {len(outputs)}"


def first_line(error: BaseException, drop: str = "") -> str:
    """What a runtime says, on one line of at most 400 characters, up to `drop`."""
    text = str(error)
    return " ".join((text.partition(drop)[0] if drop else text).split())[:400]
