"""A function of a Python program -> a candidate; its arrays -> the arguments of `-i`.

The candidate is a generated Python file, so that its runs have processes, limits and results as
those of any other one. A function that can be imported runs there. Any other function runs in the
user's program, to which the generated file sends the models and the inputs.
"""

from __future__ import annotations

import inspect
import json
import secrets
import sys
import threading
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from subgraph import plugins
from subgraph.errors import ArgumentTypeError, Refused, UsageError
from subgraph.graph.graph import Graph
from subgraph.lazy import connections, np
from subgraph.log import log
from subgraph.runtime.candidate import Candidate, parse
from subgraph.runtime.command_line import list_python_code
from subgraph.runtime.inputs import ARRAY_FOLDER
from subgraph.runtime.python_objects import ObjectLoad, Run, find_run
from subgraph.storage import folders
from subgraph.storage.digest import digest, digest_file
from subgraph.storage.tensors import find_dtype
from subgraph.types import Array, Fields, JsonObject, Strings

Load: TypeAlias = Callable[..., Run]
# The last one is for the objects of `python_objects`, whose packages may be missing.
CandidateValue: TypeAlias = "str | Path | Candidate | Load | Run | Any"
Channel: TypeAlias = Any  # a Connection; on Windows, a PipeConnection

IMPORTED = """# {digest}
import sys

sys.path[:0] = {path!r}
from {module} import {name} as given


def load(model, options):
    return given(model{options})
"""
SERVED = """from subgraph.runtime.python_values import connect


def load(model, options):
    return connect({address!r}, {key!r}, model)
"""


def make_candidate(candidate: CandidateValue, graph: Graph) -> Candidate:
    """Return the candidate that a Python program names.

    Args:
        candidate: A SPEC as after `-c`, a `Candidate`, or a function `load(path)` or
            `load(path, options)` that returns a function `run(feeds)`; feeds and results map names
            to arrays. Or an object that runs the full model only: a function whose first parameter
            is `feeds` or `inputs`, a session of onnxruntime, a `torch.nn.Module`, a compiled model
            of OpenVINO.
        graph: The model that such an object runs.

    Raises:
        UsageError: The value has another type, or the SPEC is not valid.
    """
    if isinstance(candidate, Candidate):
        return candidate
    if isinstance(candidate, (str, Path)):
        return parse(str(candidate))
    run = find_run(candidate, graph.outputs)
    load: Any = ObjectLoad(run, graph) if run else candidate
    if not callable(load) or isinstance(load, type):
        raise ArgumentTypeError.from_value(
            candidate,
            "a candidate is a SPEC, a function, or an object that runs the model",
            "def load(path): … return run; run(feeds) returns {name: array}",
        )
    name = getattr(candidate, "__name__", type(candidate).__name__)
    file = folders.make_lasting("subcut-function") / f"{folders.make_safe_name(name)}.py"
    text = _import_text(load)
    if not text:
        _warn_of_limits()
        text = _serve_text(load)
    file.write_text(text, encoding="utf-8")
    return replace(parse(str(file)), name=f"{name}()")


@cache
def _warn_of_limits() -> None:
    """Log, once, the limits of a function that runs in the user's program."""
    log.warning(
        "the candidate runs in this process: it has no limits, and a hang or a crash of it ends the"
        " search; a function that can be imported from a module runs in a separate process"
    )


def _takes_options(load: Load) -> bool:
    """Return whether a function takes the options in addition to the model."""
    return plugins.takes(load, Path(), {})


def _import_text(load: Load) -> str:
    """Return a file that imports a function; "" if no other process can import it."""
    if not inspect.isroutine(load):
        return ""
    module = sys.modules.get(load.__module__)
    file = getattr(module, "__file__", None)
    is_known = getattr(module, load.__name__, None) is load
    if load.__module__ == "__main__" or not file or not is_known:
        return ""
    return IMPORTED.format(
        digest=digest(list(map(digest_file, list_python_code(Path(file)).files))),
        path=[str(Path(folder).resolve()) for folder in sys.path if folder],
        module=load.__module__,
        name=load.__name__,
        options=", options" if _takes_options(load) else "",
    )


def _serve_text(load: Load) -> str:
    """Return a file that runs a function in this process; a thread waits for its calls."""
    key = secrets.token_bytes(32)
    listener = connections.Listener(authkey=key)
    lock = threading.Lock()  # the function need not be safe for threads

    def accept() -> None:
        while True:
            connection = listener.accept()
            serve = threading.Thread(target=_serve, args=(connection, load, lock), daemon=True)
            serve.start()

    threading.Thread(target=accept, daemon=True).start()
    return SERVED.format(address=listener.address, key=key)


# ------------------------------------------------------------ the two ends


def connect(address: Any, key: bytes, model: object) -> Run:
    """Have the user's program load a model; return a function that runs it there.

    Raises:
        Refused: The function raised it.
        RuntimeError: The function raised another exception.
    """
    connection = connections.Client(address, authkey=key)
    connection.send_bytes(json.dumps(str(model)).encode())
    _receive(connection)

    def run(feeds: Fields) -> Fields:
        _send(connection, feeds)
        return _receive(connection)

    return run


def _serve(connection: Channel, load: Load, lock: threading.Lock) -> None:
    """Load a model for another process, and run it until that process ends."""
    with connection, suppress(EOFError, ConnectionError):
        model = Path(json.loads(connection.recv_bytes()))
        options: tuple[object, ...] = ({},) if _takes_options(load) else ()
        with lock:
            run = _answer(connection, load, model, *options)
        while run is not None:
            feeds = _receive(connection)
            with lock:
                _answer(connection, run, feeds)


def _answer(connection: Channel, function: Callable[..., Any], *values: Any) -> Any:
    """Call the user's function, send its arrays or its error, and return its result."""
    try:
        result = function(*values)
        tensors = result if isinstance(result, Mapping) else {}
        arrays = {str(name): np.asarray(value) for name, value in tensors.items()}
    except Exception as e:  # noqa: BLE001 - the other end raises it again
        is_refused = isinstance(e, Refused)
        error = {"refused": is_refused, "why": str(e) if is_refused else traceback.format_exc()}
        connection.send_bytes(json.dumps(error).encode())
        return None
    _send(connection, arrays)
    return result


def _send(connection: Channel, tensors: Fields) -> None:
    """Send arrays: names, types and shapes as JSON, then the bytes of each one."""
    plain = {  # bytes: texts have one length
        name: value.astype(str) if value.dtype.hasobject else value
        for name, value in tensors.items()
    }
    arrays = {name: np.ascontiguousarray(value) for name, value in plain.items()}
    head = [[name, str(array.dtype), array.shape] for name, array in arrays.items()]
    connection.send_bytes(json.dumps(head).encode())
    for array in arrays.values():
        connection.send_bytes(array.tobytes())


def _receive(connection: Channel) -> JsonObject:
    """Receive arrays as `_send` sends them.

    Raises:
        Refused, RuntimeError: The other end sent an error.
    """
    head = json.loads(connection.recv_bytes())
    if isinstance(head, dict):
        why = str(head["why"])
        if head["refused"]:
            raise Refused(why, code="candidate.refused")
        raise RuntimeError(why)
    tensors = {}
    for name, dtype, shape in head:
        flat = np.frombuffer(bytearray(connection.recv_bytes()), find_dtype(dtype))
        tensors[name] = flat.reshape(shape)
    return tensors


Sample: TypeAlias = "Array | Mapping[str, Any]"
Inputs: TypeAlias = "str | Path | Sample | Sequence[str | Path | Sample] | None"


def make_input_arguments(inputs: Inputs, names: Collection[str] = ()) -> Strings:
    """Return the arguments of `-i` for the inputs of a model.

    Arrays are written into files that exist until the process ends.

    Args:
        inputs: A file or a folder of samples, an array for a model with one input, a map from the
            input's name to an array, or a sequence: of files, or of samples.
        names: The inputs of the model, in order; needed only for an array without a name.

    Raises:
        UsageError: The inputs have another type, an array has no name and the model has several
            inputs, or the samples have different names.
    """
    if inputs is None:
        return ()
    if isinstance(inputs, (str, Path)):
        return (str(inputs),)
    if isinstance(inputs, Mapping) or hasattr(inputs, "__array__"):
        files = _write_samples([_name_arrays(inputs, names)])
        return tuple(f"{name}={folder / '0.npy'}" for name, folder in files.items())
    if not isinstance(inputs, Sequence):
        raise _make_type_error(inputs)
    if all(isinstance(word, (str, Path)) for word in inputs):
        return tuple(map(str, inputs))
    files = _write_samples([_name_arrays(sample, names) for sample in inputs])
    return tuple(f"{name}={folder}" for name, folder in files.items())


def _name_arrays(sample: Any, names: Collection[str]) -> Fields:
    """Return the arrays of a sample by the name of their input."""
    if isinstance(sample, Mapping):
        return sample
    if not hasattr(sample, "__array__"):
        raise _make_type_error(sample)
    if len(names) != 1:
        known = ", ".join(names)
        raise UsageError(
            f"an array has no name, and the model has {len(names)} inputs: {known}",
            "pass {name: array}",
            code="api.unnamed-array",
        )
    return dict.fromkeys(names, sample)


def _write_samples(samples: Sequence[Fields]) -> dict[str, Path]:
    """Write a file per sample into a folder per input; return the folders."""
    names = list(samples[0]) if samples else []
    if any(sample.keys() != samples[0].keys() for sample in samples):
        raise UsageError(
            "the samples have different inputs",
            "give each sample the same names",
            code="api.uneven-samples",
        )
    home = folders.make_lasting(ARRAY_FOLDER)
    places = {name: home / stem for name, stem in folders.make_safe_names(names).items()}
    for name, place in places.items():
        place.mkdir()
        for k, sample in enumerate(samples):
            array = np.asarray(sample[name])
            if array.dtype.hasobject:
                raise _make_type_error(sample[name])
            np.save(place / f"{k}.npy", array, allow_pickle=False)
    return places


def _make_type_error(value: object) -> ArgumentTypeError:
    """Return the error for a value that is not an input."""
    return ArgumentTypeError.from_value(
        value,
        "inputs: expected files, an array, {name: array} or a list of these",
        'inputs={"image": array}, inputs=["cat.jpg"]',
    )
