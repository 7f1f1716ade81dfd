"""A candidate for measurements: onnxruntime on a window as a converted model has it, or with an
error put into it.

Options: `model` (a converted model, in which the window is looked up by its edge's names and cut),
`at` and `error` (a tensor inside, and a .npy file of what is added to it). It runs with all
optimizations. Feeds are cast to what the converted window wants, its outputs to what the window's
own outputs are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from subgraph.errors import Refused, SubcutError
from subgraph.graph import region as regions
from subgraph.graph.cut import cut_region
from subgraph.graph.graph import Graph, load as load_graph
from subgraph.storage.tensors import Value

TYPES = {TensorProto.FLOAT: np.float32, TensorProto.FLOAT16: np.float16}


def version() -> str:
    """onnxruntime's."""
    import onnxruntime

    return str(onnxruntime.__version__)


def load(
    model: Path, options: Mapping[str, Any]
) -> Callable[[Mapping[str, Value]], dict[str, Value]]:
    """Find the window and put the error's Add into it.

    Raises:
        Refused: the converted model has no such window, or `at` is not inside.
    """
    session, kinds = _session(
        model.read_bytes(), str(options.get("model", "")), str(options.get("at", ""))
    )
    types = {i.name: _numpy(i.type) for i in session.get_inputs()}
    added = {f"{options['at']}:error": np.load(options["error"])} if "at" in options else {}
    names = list(kinds)

    def run(feeds: Mapping[str, Value]) -> dict[str, Value]:
        fed = {
            n: np.asarray(v).astype(types[n], copy=False)
            for n, v in {**feeds, **added}.items()
            if n in types
        }
        found = session.run(names, fed)
        return {
            n: np.asarray(v).astype(kinds[n], copy=False) for n, v in zip(names, found, strict=True)
        }

    return run


@lru_cache(maxsize=4)  # one window is asked about with many errors
def _session(data: bytes, converted: str, at: str) -> tuple[Any, dict[str, Any]]:
    """The window's session, and the types that its outputs have in the original."""
    import onnxruntime as ort

    own = onnx.load_from_string(data)
    kinds = {
        o.name: helper.tensor_dtype_to_np_dtype(o.type.tensor_type.elem_type)
        for o in own.graph.output
    }
    model = _counterpart(_graph(converted), own) if converted else own
    if at:
        _open(model, at)
    settings = ort.SessionOptions()
    settings.intra_op_num_threads = 1
    settings.log_severity_level = 4
    settings.add_session_config_entry(
        "session.x64quantprecision", "1"
    )  # int8 sums that do not saturate without VNNI
    return ort.InferenceSession(model.SerializeToString(), settings), kinds


@cache
def _graph(path: str) -> Graph:
    return load_graph(path)


def _counterpart(graph: Graph, own: onnx.ModelProto) -> onnx.ModelProto:
    """The window of a converted model between the tensors that `own` has on its edge."""
    border = {v.name for v in own.graph.input} - {
        t.name for t in own.graph.initializer
    }  # before IR 4 both
    outputs = [v.name for v in own.graph.output]
    unknown = [n for n in (*border, *outputs) if n not in graph.maker and n not in graph.inputs]
    if unknown:
        raise Refused(f"the converted model has no tensor '{unknown[0]}'")
    nodes: set[int] = set()
    stack = [graph.maker[n] for n in outputs]
    while stack:
        i = stack.pop()
        if i not in nodes:
            nodes.add(i)
            stack += [
                graph.maker[n] for n in graph.reads[i] if n in graph.maker and n not in border
            ]
    region = regions.build_region(graph, nodes, [(n,) for n in outputs])
    strange = set(region.inputs) - border
    if strange:
        raise Refused(f"the converted window also reads '{sorted(strange)[0]}'")
    try:
        found: onnx.ModelProto = cut_region(graph, region).to_model()
    except SubcutError as e:
        raise Refused(f"the converted window cannot be cut: {e.what}") from e
    return found


def _open(model: onnx.ModelProto, at: str) -> None:
    """Add an input to a tensor behind its maker: the runtime cannot fold it, whatever it holds."""
    graph = model.graph
    place = next((k for k, node in enumerate(graph.node) if at in node.output), None)
    kind = next(
        (v.type.tensor_type for v in (*graph.value_info, *graph.output) if v.name == at), None
    )
    if place is None or kind is None or kind.elem_type not in TYPES:
        raise Refused(f"the window makes no float tensor '{at}'")
    maker = graph.node[place]
    maker.output[list(maker.output).index(at)] = f"{at}:clean"
    graph.node.insert(place + 1, helper.make_node("Add", [f"{at}:clean", f"{at}:error"], [at]))
    graph.input.append(helper.make_tensor_value_info(f"{at}:error", kind.elem_type, None))


def _numpy(text: str) -> Any:
    """`tensor(float16)` -> numpy's type."""
    word = text.removeprefix("tensor(").removesuffix(")")
    return np.dtype({"float": "float32", "double": "float64"}.get(word, word))
