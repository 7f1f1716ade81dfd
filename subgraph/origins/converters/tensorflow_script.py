"""TensorFlow's formats -> ONNX by tf2onnx, and their values by TensorFlow. A script: see `converters`.

Its inner tensors are those of the frozen graph that tf2onnx converts, whose names its ONNX nodes keep.
"""

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

GRAPH, KERAS, SAVED_MODEL, TFLITE = "graph", "keras", "saved_model", "tflite"


def main() -> None:
    """Do what the command line says."""
    what, model, *rest = sys.argv[1:]
    with _prepared(Path(model)) as (kind, path):
        if what == "convert":
            convert(kind, path, rest[0])
        else:
            run(kind, path, json.loads(Path(rest[0]).read_text(encoding="utf-8")), rest[1])


def kind_of(model: Path) -> str:
    """By content: a folder is a SavedModel, a zip or HDF5 is Keras'."""
    if model.is_dir():
        return SAVED_MODEL
    with model.open("rb") as file:
        head = file.read(8)
    if head[4:8] == b"TFL3":
        return TFLITE
    return KERAS if head.startswith((b"PK", b"\x89HDF")) else GRAPH


@contextlib.contextmanager
def _prepared(model: Path) -> Iterator[tuple[str, str]]:
    """(kind, path) of what tf2onnx takes: a Keras model is exported to a SavedModel first, which it reads surely."""
    kind = kind_of(model)
    if kind != KERAS:
        yield kind, str(model)
        return
    import tensorflow as tf

    with tempfile.TemporaryDirectory() as folder:
        loaded = tf.keras.models.load_model(str(model), compile=False)  # safe mode: a Lambda's code is not run
        loaded.export(folder, verbose=False)
        yield SAVED_MODEL, folder


def convert(kind: str, model: str, target: str) -> None:
    """Call tf2onnx as its command line does."""
    from tf2onnx import convert as tf2onnx

    words = {SAVED_MODEL: ["--saved-model", model], TFLITE: ["--tflite", model], GRAPH: ["--graphdef", model]}[kind]
    if kind == GRAPH:
        inputs, outputs = ends(graph_def(model))
        words += ["--inputs", ",".join(inputs), "--outputs", ",".join(outputs)]
    sys.argv = ["tf2onnx", *words, "--output", target]
    tf2onnx.main()


def graph_def(model: str) -> Any:
    """The frozen graph in a file."""
    import tensorflow as tf

    graph = tf.compat.v1.GraphDef()
    graph.ParseFromString(Path(model).read_bytes())
    return graph


def ends(graph: Any) -> tuple[list[str], list[str]]:
    """Tensors that a frozen graph is fed, and those that nobody in it reads."""
    read = {name.lstrip("^").partition(":")[0] for node in graph.node for name in node.input}
    inputs = [f"{node.name}:0" for node in graph.node if node.op == "Placeholder"]
    idle = ("Placeholder", "Const", "NoOp", "Assert")
    return inputs, [f"{n.name}:0" for n in graph.node if n.name not in read and n.op not in idle]


def run(kind: str, model: str, asked: dict[str, Any], target: str) -> None:
    """Write the values of the original, by the names of the ONNX model's tensors."""
    import numpy as np

    fed = {name: np.load(file, allow_pickle=False) for name, file in asked["files"].items()}
    values = {TFLITE: _of_tflite, GRAPH: _of_graph, SAVED_MODEL: _of_saved_model}[kind](model, asked, fed)
    arrays: dict[str, Any] = {name: np.asarray(value) for name, value in values.items()}
    np.savez(target, **arrays)


def _of_saved_model(model: str, asked: dict[str, Any], fed: dict[str, Any]) -> dict[str, Any]:
    """Outputs by the signature, as users call it; inner tensors by the frozen graph."""
    import tensorflow as tf
    from tf2onnx import tf_loader

    signatures = tf.saved_model.load(model).signatures
    signature = signatures["serving_default"] if "serving_default" in signatures else next(iter(signatures.values()))
    names = list(signature.structured_input_signature[1])
    by_name = {n: fed[n] for n in names} if set(names) == set(fed) else dict(zip(names, fed.values(), strict=True))
    outputs = signature(**{name: tf.constant(value) for name, value in by_name.items()})
    if set(outputs) != set(asked["outputs"]):
        outputs = dict(zip(asked["outputs"], outputs.values(), strict=True))
    graph, inputs, *_ = tf_loader.from_saved_model(model, None, None)
    inner = dict(zip(inputs, fed.values(), strict=True)) if len(inputs) == len(fed) else {}
    return {**(_in_session(graph, asked["tensors"], inner) if inner else {}), **outputs}


def _of_graph(model: str, asked: dict[str, Any], fed: dict[str, Any]) -> dict[str, Any]:
    return _in_session(graph_def(model), [*asked["tensors"], *asked["outputs"]], fed)


def _in_session(graph: Any, names: list[str], fed: dict[str, Any]) -> dict[str, Any]:
    """Those of the tensors that the graph has, in one run."""
    import tensorflow as tf

    with tf.compat.v1.Session(graph=tf.Graph()) as session:
        tf.import_graph_def(graph, name="")
        found: dict[str, Any] = {}
        for name in dict.fromkeys(names):
            with contextlib.suppress(KeyError, ValueError, TypeError):
                tensor = session.graph.get_tensor_by_name(name)
                found |= {name: tensor} if tensor.dtype.is_numpy_compatible else {}
        return dict(session.run(found, fed))


def _of_tflite(model: str, asked: dict[str, Any], fed: dict[str, Any]) -> dict[str, Any]:
    """Every tensor, by the kernels without delegates, which would fuse."""
    import tensorflow as tf

    resolver = tf.lite.experimental.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    interpreter = tf.lite.Interpreter(
        model_path=model, experimental_preserve_all_tensors=True, experimental_op_resolver_type=resolver
    )
    details = {d["name"]: d for d in interpreter.get_input_details()}
    by_name = fed if set(details) == set(fed) else dict(zip(details, fed.values(), strict=True))
    for name, value in by_name.items():
        interpreter.resize_tensor_input(details[name]["index"], value.shape)
    interpreter.allocate_tensors()
    for name, value in by_name.items():
        interpreter.set_tensor(details[name]["index"], value)
    interpreter.invoke()
    wanted, values = {*asked["tensors"], *asked["outputs"]}, {}
    for detail in interpreter.get_tensor_details():
        with contextlib.suppress(ValueError):  # it has no memory of its own
            values[detail["name"]] = interpreter.get_tensor(detail["index"])
    return {name: value for name, value in values.items() if name in wanted}


if __name__ == "__main__":
    main()
