"""TensorFlow's formats -> ONNX by tf2onnx, and their values by TensorFlow. A script: see
`converters`.

Its intermediate tensors are those of the frozen graph that tf2onnx converts, whose names its ONNX
nodes keep.
"""

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

GRAPH = "graph"
KERAS = "keras"
SAVED_MODEL = "saved_model"
TFLITE = "tflite"
SERVED = "serving_default"  # the signature that TensorFlow itself writes
Values = dict[str, Any]
Inputs = dict[str, tuple[str, Any]]
Compute = Callable[[Values], tuple[Values, Values]]


def find_kind(model: Path) -> str:
    """Return the kind of a model: a folder is a SavedModel, a zip or HDF5 is Keras'."""
    if model.is_dir():
        return SAVED_MODEL
    with model.open("rb") as file:
        head = file.read(8)
    if head[4:8] == b"TFL3":
        return TFLITE
    if head.startswith((b"PK", b"\x89HDF")):
        return KERAS
    return GRAPH


@contextlib.contextmanager
def _prepare(model: Path) -> Iterator[tuple[str, str]]:
    """Yield kind and path for tf2onnx; a Keras model is exported to a SavedModel first."""
    kind = find_kind(model)
    if kind != KERAS:
        yield kind, str(model)
        return
    import tensorflow as tf

    with tempfile.TemporaryDirectory() as folder:
        # Safe mode: a Lambda's code is not run.
        loaded = tf.keras.models.load_model(str(model), compile=False)
        loaded.export(folder, verbose=False)
        yield SAVED_MODEL, folder


def convert(model: Path, target: str) -> None:
    """Call tf2onnx as its command line does."""
    from tf2onnx import convert as tf2onnx

    with _prepare(model) as (kind, path):
        words = {
            SAVED_MODEL: ["--saved-model", path],
            TFLITE: ["--tflite", path],
            GRAPH: ["--graphdef", path],
        }[kind]
        if kind == GRAPH:
            inputs, outputs = ends(read_graph_def(path))
            words += ["--inputs", ",".join(inputs), "--outputs", ",".join(outputs)]
        if kind == SAVED_MODEL:
            words += ["--signature_def", _find_signature(path)[0]]
        sys.argv = ["tf2onnx", *words, "--output", target]
        tf2onnx.main()


def _find_signature(model: str) -> tuple[str, Any, Any]:
    """Return (name, function, what holds its variables) of the signature that is served, else of
    the first one."""
    import tensorflow as tf

    loaded = tf.saved_model.load(model)
    names = [name for name in loaded.signatures if not name.startswith("_")]
    if not names:
        raise ValueError("it has no signature: give it one when it is saved (signatures=...)")
    name = SERVED if SERVED in names else names[0]
    return name, loaded.signatures[name], loaded


def read_graph_def(model: str) -> Any:
    """Return the frozen graph in a file."""
    import tensorflow as tf

    graph = tf.compat.v1.GraphDef()
    graph.ParseFromString(Path(model).read_bytes())
    return graph


def ends(graph: Any) -> tuple[list[str], list[str]]:
    """Return the tensors that a frozen graph is fed, and those that no node of it reads."""
    read = {
        name.lstrip("^").partition(":")[0]
        for name in chain.from_iterable(node.input for node in graph.node)
    }
    inputs = [f"{node.name}:0" for node in graph.node if node.op == "Placeholder"]
    idle = ("Placeholder", "Const", "NoOp", "Assert")
    return inputs, [f"{n.name}:0" for n in graph.node if n.name not in read and n.op not in idle]


@contextlib.contextmanager
def open_original(model: Path, tensors: list[str]) -> Iterator[tuple[Inputs, Compute]]:
    """Yield the original's inputs, and a function that runs it."""
    with _prepare(model) as (kind, path):
        yield {TFLITE: _open_tflite, GRAPH: _open_graph, SAVED_MODEL: _open_saved_model}[kind](
            path, tensors
        )


def _open_saved_model(model: str, tensors: list[str]) -> tuple[Inputs, Compute]:
    """Open a saved model. Its outputs are named by the signature, as users call it; other tensors
    by the frozen graph, which names its placeholders."""
    import tensorflow as tf
    from tf2onnx import tf_loader

    name, signature, kept = _find_signature(model)
    specs = signature.structured_input_signature[1]
    graph, placeholders, *_ = tf_loader.from_saved_model(model, None, None, signatures=[name])
    own = {name: f"{spec.name}:0" for name, spec in specs.items()}

    def compute(fed: Values, _: Any = kept) -> tuple[Values, Values]:
        outputs = signature(**{name: tf.constant(value) for name, value in fed.items()})
        known = set(own.values()) == set(placeholders)
        if known:
            inner = _run_in_session(
                graph, tensors, {own[name]: value for name, value in fed.items()}
            )
        else:
            inner = {}
        return outputs, inner

    inputs = {
        name: (spec.dtype.name, None if spec.shape.rank is None else spec.shape.as_list())
        for name, spec in specs.items()
    }
    return inputs, compute


def _open_graph(model: str, tensors: list[str]) -> tuple[Inputs, Compute]:
    graph = read_graph_def(model)
    inputs, outputs = ends(graph)

    def compute(fed: Values) -> tuple[Values, Values]:
        values = _run_in_session(graph, [*outputs, *tensors], fed)
        return {name: values[name] for name in outputs if name in values}, values

    return dict.fromkeys(inputs, ("", None)), compute


def _run_in_session(graph: Any, names: list[str], fed: dict[str, Any]) -> dict[str, Any]:
    """Return the values of those tensors that the graph has, in one run."""
    import tensorflow as tf

    with tf.compat.v1.Session(graph=tf.Graph()) as session:
        tf.import_graph_def(graph, name="")
        found: dict[str, Any] = {}
        for name in dict.fromkeys(names):
            with contextlib.suppress(KeyError, ValueError, TypeError):
                tensor = session.graph.get_tensor_by_name(name)
                found |= {name: tensor} if tensor.dtype.is_numpy_compatible else {}
        return dict(session.run(found, fed))


def _open_tflite(model: str, _: list[str]) -> tuple[Inputs, Compute]:
    """Return every tensor and its computation, by the kernels without delegates,
    which would fuse."""
    import tensorflow as tf

    resolver = tf.lite.experimental.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    interpreter = tf.lite.Interpreter(
        model_path=model,
        experimental_preserve_all_tensors=True,
        experimental_op_resolver_type=resolver,
    )
    inputs = {d["name"]: d for d in interpreter.get_input_details()}

    def compute(fed: Values) -> tuple[Values, Values]:
        for name, value in fed.items():
            interpreter.resize_tensor_input(inputs[name]["index"], value.shape)
        interpreter.allocate_tensors()
        for name, value in fed.items():
            interpreter.set_tensor(inputs[name]["index"], value)
        interpreter.invoke()
        values = {}
        for detail in interpreter.get_tensor_details():
            with contextlib.suppress(ValueError):  # it shares memory
                values[detail["name"]] = interpreter.get_tensor(detail["index"])
        return {
            d["name"]: interpreter.get_tensor(d["index"]) for d in interpreter.get_output_details()
        }, values

    return {
        n: (d["dtype"].__name__, [s if s >= 0 else None for s in map(int, d["shape_signature"])])
        for n, d in inputs.items()
    }, compute
