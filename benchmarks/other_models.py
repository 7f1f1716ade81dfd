"""Planted faults in other models: how often does `bisect --candidate-model` name the altered node?

    python -m benchmarks.other_models [--networks vision,speech] [--forms int8] [--mechanisms axis]
                                      [--seed 0] [--folder DIR]

The networks of `fixtures.networks` and the demo's, each in five forms: as it is, with every
BatchNormalization folded into its Conv under the Conv's own name, optimized by onnxruntime offline,
int8 (QDQ), and int8 optimized. Each mechanism alters one node, drawn with the seed. A fault that
moves no output of its form by `MIN_EFFECT` of the output's largest value is drawn again: it is
masked. A form whose healthy model is not right (a network that is useless in int8) gets no faults.

A fault is named exactly if all findings lie in the nodes that the altered node stands for, or the
table of differences has the altered node. Exit code 1 if a fault is called right, or less than
90 % are named exactly.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import ModelProto, NodeProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

from benchmarks.report import table
from fixtures.networks import NETWORKS
from subgraph.demo.files import make_files as demo_files

Array = np.ndarray[Any, Any]
MIN_EFFECT = {"float": 0.02, "int8": 0.15}  # of an output's largest value
MIN_EXACT = 0.9
MAX_DRAWS = 40
HEALTHY = "healthy"
SUFFIXES = ("_QuantizeLinear_Input", "_QuantizeLinear_Output", "_DequantizeLinear_Output")
SUFFIXES_OF_WEIGHTS = ("_quantized", "_scale", "_zero_point")
QUANTIZERS = ("QuantizeLinear", "DequantizeLinear")
# An attribute -> what a converter that assumes another opset writes.
DEFAULTS: Mapping[tuple[str, str], object] = {
    ("Softmax", "axis"): 1,
    ("LogSoftmax", "axis"): 1,
    ("Resize", "coordinate_transformation_mode"): None,
    ("Gemm", "transB"): None,
    ("LayerNormalization", "epsilon"): 0.5,
    ("BatchNormalization", "epsilon"): 0.5,
    ("Conv", "pads"): None,
    ("FusedConv", "pads"): None,
    ("QLinearConv", "pads"): None,
    ("MaxPool", "pads"): None,
    ("LSTM", "direction"): None,
}
RESHAPING = ("axis", "default")
KEPT_SIZE = ("Relu", "Clip", "Sigmoid", "Tanh", "Erf", "Sqrt", "Add", "Mul", "Div", "HardSigmoid")


def demo() -> ModelProto:
    """The model of `subcut demo`."""
    return onnx.load_from_string(demo_files()["model.onnx"])


MODELS: Mapping[str, Callable[[], ModelProto]] = {**NETWORKS, "demo": demo}


@dataclass(frozen=True)
class Case:
    """A model with a fault; `node`: the altered node, as the faulty model has it."""

    network: str
    form: str
    mechanism: str
    model: ModelProto
    node: NodeProto

    @property
    def name(self) -> str:
        return f"{self.network}-{self.form}-{self.mechanism}"


# ------------------------------------------------------------ forms


class Samples(CalibrationDataReader):  # type: ignore[misc]
    """Calibration with the input that the benchmark feeds, and a few others."""

    def __init__(self, feeds: Sequence[Mapping[str, Array]]) -> None:
        self.left = iter(feeds)

    def get_next(self) -> Any:
        return next(self.left, None)


def fold(model: ModelProto, _: Path, __: Sequence[Mapping[str, Array]]) -> ModelProto:
    """Each BatchNormalization folded into its Conv, whose output keeps its name: the name lies."""
    graph = model.graph
    values = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    makers = {node.output[0]: node for node in graph.node}
    for node in [n for n in graph.node if n.op_type == "BatchNormalization"]:
        conv = makers.get(node.input[0])
        if conv is None or conv.op_type != "Conv":
            continue
        scale, bias, mean, variance = (values[name] for name in node.input[1:5])
        factor = scale / np.sqrt(variance + 1e-5)
        weight = values[conv.input[1]]
        shape = (-1,) + (1,) * (weight.ndim - 1)
        _replace(model, conv, 1, weight * factor.reshape(shape))
        _replace(model, conv, 2, (values[conv.input[2]] - mean) * factor + bias)
        _bypass(model, node)
    return model


def optimize(
    model: ModelProto,
    folder: Path,
    _: Sequence[Mapping[str, Array]],
    level: str = "EXTENDED",
) -> ModelProto:
    """What onnxruntime writes with `optimized_model_filepath`."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, f"ORT_ENABLE_{level}")
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    ort.InferenceSession(model.SerializeToString(), options)
    return onnx.load(folder / "optimized.onnx")


def quantize(model: ModelProto, folder: Path, feeds: Sequence[Mapping[str, Array]]) -> ModelProto:
    """Statically quantized, QDQ, after the optimizations that onnxruntime's tool does before."""
    onnx.save(optimize(model, folder, (), level="BASIC"), folder / "float.onnx")
    quantize_static(
        folder / "float.onnx", folder / "int8.onnx", Samples(feeds), quant_format=QuantFormat.QDQ
    )
    return onnx.load(folder / "int8.onnx")


Form = Callable[[ModelProto, Path, Sequence[Mapping[str, Array]]], ModelProto]
FORMS: Mapping[str, Form] = {
    "float": lambda model, folder, feeds: model,
    "folded": fold,
    "optimized": optimize,
    "int8": quantize,
    "int8-optimized": lambda model, folder, feeds: optimize(
        quantize(model, folder, feeds), folder, feeds
    ),
}


# ------------------------------------------------------------ mechanisms


def _values(model: ModelProto) -> dict[str, Array]:
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}


def _replace(model: ModelProto, node: NodeProto, place: int, value: Array) -> None:
    """Give a node a constant of its own."""
    old = next(t for t in model.graph.initializer if t.name == node.input[place])
    name = f"{node.input[place]}"
    if sum(list(n.input).count(old.name) for n in model.graph.node) > 1:
        name = f"{old.name}/{node.name}"
        node.input[place] = name
    else:
        model.graph.initializer.remove(old)
    dtype = helper.tensor_dtype_to_np_dtype(old.data_type)
    model.graph.initializer.append(numpy_helper.from_array(value.astype(dtype), name))


def _bypass(model: ModelProto, node: NodeProto) -> None:
    """Remove a node; its readers get its first input."""
    for reader in model.graph.node:
        for k, name in enumerate(reader.input):
            if name == node.output[0]:
                reader.input[k] = node.input[0]
    model.graph.node.remove(node)


def _attribute(node: NodeProto, name: str) -> Any:
    found = next((a for a in node.attribute if a.name == name), None)
    return helper.get_attribute_value(found) if found else None


def _set(node: NodeProto, name: str, value: Any) -> None:
    kept = [a for a in node.attribute if a.name != name]
    del node.attribute[:]
    node.attribute.extend(kept)
    if value is not None:
        node.attribute.append(helper.make_attribute(name, value))


def axis(model: ModelProto, node: NodeProto, rng: np.random.Generator) -> bool:
    """Another axis, or two axes of a Transpose exchanged."""
    if node.op_type == "Transpose":
        order = list(_attribute(node, "perm"))
        i, j = rng.choice(len(order), 2, replace=False)
        order[i], order[j] = order[j], order[i]
        _set(node, "perm", order)
        return True
    if node.op_type not in ("Softmax", "LogSoftmax", "Gather", "Concat", "ReduceMean", "ArgMax"):
        return False
    if node.op_type == "ReduceMean":
        _set(node, "axes", [int(rng.integers(0, 3))])
        return True
    _set(node, "axis", int(rng.integers(0, 3)))
    return True


def scale(model: ModelProto, node: NodeProto, rng: np.random.Generator) -> bool:
    """A quantizer's scale, or the scale of a normalization."""
    values = _values(model)
    places = {
        "DequantizeLinear": 1,
        "QuantizeLinear": 1,
        "QLinearConv": 1 + 3 * int(rng.integers(2)),
    }
    places |= {"BatchNormalization": 1, "LayerNormalization": 1}
    place = places.get(node.op_type)
    if place is None or node.input[place] not in values:
        return False
    _replace(model, node, place, values[node.input[place]] * 1.6)
    return True


def zero_point(model: ModelProto, node: NodeProto, rng: np.random.Generator) -> bool:
    """A quantizer's zero point is 30 codes off."""
    values = _values(model)
    places = {
        "DequantizeLinear": 2,
        "QuantizeLinear": 2,
        "QLinearConv": 2 + 5 * int(rng.integers(2)),
    }
    place = places.get(node.op_type)
    if place is None or len(node.input) <= place or node.input[place] not in values:
        return False
    old = values[node.input[place]]
    if old.dtype.kind not in "iu" or old.dtype.itemsize > 1:
        return False
    sign = 1 if int(old.max()) < np.iinfo(old.dtype).max - 30 else -1
    _replace(model, node, place, old.astype(int) + 30 * sign)
    return True


def bias(model: ModelProto, node: NodeProto, rng: np.random.Generator) -> bool:
    """A bias with the other sign, or three times as large."""
    values = _values(model)
    places = {"Conv": 2, "FusedConv": 2, "Gemm": 2, "QLinearConv": 8, "LayerNormalization": 2}
    places |= {"BatchNormalization": 2, "LSTM": 3, "GRU": 3, "QGemm": 6}
    place = places.get(node.op_type, 1 if node.op_type == "Add" else None)
    if place is None or len(node.input) <= place:
        return False
    name = node.input[place]
    maker = next((n for n in model.graph.node if name in n.output), None)
    if maker is not None and maker.op_type == "DequantizeLinear":
        node, place, name = maker, 0, maker.input[0]
    if name not in values or values[name].size < 4:
        return False
    _replace(model, node, place, values[name] * rng.choice([-3, 4]))
    return True


def drop(model: ModelProto, node: NodeProto, rng: np.random.Generator) -> bool:
    """A pass drops a node that keeps the shape."""
    if node.op_type not in KEPT_SIZE or node.output[0] in {o.name for o in model.graph.output}:
        return False
    _bypass(model, node)
    return True


def default(model: ModelProto, node: NodeProto, rng: np.random.Generator) -> bool:
    """An attribute has the default of another opset."""
    known = [a for a in node.attribute if (node.op_type, a.name) in DEFAULTS]
    if not known:
        return False
    chosen = known[int(rng.integers(len(known)))].name
    _set(node, chosen, DEFAULTS[node.op_type, chosen])
    return True


def constant(model: ModelProto, node: NodeProto, rng: np.random.Generator) -> bool:
    """A weight that is clamped to 30 % of its range."""
    values = _values(model)
    for k, name in enumerate(node.input):
        if name not in values or values[name].size < 16 or values[name].dtype.kind not in "fiu":
            continue
        old = values[name].astype(np.float64)
        middle = 128.0 * (values[name].dtype == np.uint8)
        limit = 0.3 * np.abs(old - middle).max()
        _replace(model, node, k, np.clip(old, middle - limit, middle + limit))
        return True
    return False


def fused(model: ModelProto, node: NodeProto, rng: np.random.Generator) -> bool:
    """A fused node without its activation, or with another operator's."""
    if _attribute(node, "activation"):
        other = {b"Relu": "Tanh", b"Clip": "Relu", b"HardSigmoid": "Sigmoid"}
        _set(node, "activation", other.get(_attribute(node, "activation"), "Tanh"))
        _set(node, "activation_params", None)
        return True
    if node.op_type in ("QuickGelu", "Gelu", "BiasGelu", "FastGelu"):
        node.op_type = "QuickGelu" if node.op_type != "QuickGelu" else "Gelu"
        node.domain = "com.microsoft"
        del node.input[1:]
        _set(node, "alpha", None)
        return True
    if node.op_type == "Conv" and any(a.name == "group" for a in node.attribute):
        return False
    if node.op_type == "Conv" and len(node.input) > 2 and node.input[2] in _values(model):
        del node.input[2:]  # a fusion loses the bias
        return True
    return False


Mechanism = Callable[[ModelProto, NodeProto, np.random.Generator], bool]
MECHANISMS: Mapping[str, Mechanism] = {
    f.__name__: f for f in (axis, scale, zero_point, bias, drop, default, constant, fused)
}


# ------------------------------------------------------------ cases


def run(model: ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    """The outputs on plain onnxruntime."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    found: list[Array] = ort.InferenceSession(model.SerializeToString(), options).run(None, feeds)
    return found


def effect(one: Sequence[Array], other: Sequence[Array]) -> float:
    """The largest difference of an output, as a share of its largest value; 0 if it is refused."""
    largest = 0.0
    for a, b in zip(one, other, strict=True):
        if a.shape != b.shape or not np.isfinite(b.astype(np.float64)).all():
            return 0.0
        if a.dtype.kind == "f":
            largest = max(largest, float(np.abs(a - b).max() / np.abs(a).max()))
    return largest


def draw(
    network: str, form: str, mechanism: str, healthy: ModelProto, feeds: Any, seed: int
) -> Case | None:
    """A case of this mechanism whose effect is visible; None if no node has one."""
    rng = np.random.default_rng([seed, *f"{network}/{form}/{mechanism}".encode()])
    right = run(healthy, feeds)
    least = MIN_EFFECT["int8" if form.startswith("int8") else "float"]
    for k in rng.permutation(len(healthy.graph.node))[:MAX_DRAWS]:
        model = ModelProto()
        model.CopyFrom(healthy)
        node = model.graph.node[int(k)]
        altered = NodeProto()
        altered.CopyFrom(node)
        try:
            if not MECHANISMS[mechanism](model, node, rng):
                continue
            if mechanism in RESHAPING:  # whoever writes such a file infers the shapes again
                del model.graph.value_info[:]
            wrong = run(model, feeds)
        except Exception:  # noqa: BLE001  # a node that does not take the change
            continue
        if effect(right, wrong) >= least:
            return Case(network, form, mechanism, model, altered)
    return None


def feeds_of(model: ModelProto, seed: int) -> dict[str, Array]:
    """Normal values, or token numbers."""
    rng = np.random.default_rng(seed)
    fed: dict[str, Array] = {}
    for value in model.graph.input:
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        if value.type.tensor_type.elem_type == onnx.TensorProto.INT64:
            fed[value.name] = rng.integers(0, 64, shape)
        else:
            fed[value.name] = rng.standard_normal(shape, np.float32)
    return fed


# ------------------------------------------------------------ what a node stands for


def base(name: str) -> str:
    """The float tensor that a quantizer's tensor stands for."""
    for suffix in (*SUFFIXES, *SUFFIXES_OF_WEIGHTS):
        name = name.removesuffix(suffix)
    return name


def real_name(ours: ModelProto, healthy: ModelProto, name: str) -> str:
    """The float tensor of our model that a tensor of the other one holds; codes can have any name,
    but not the tensors beside their quantizers."""
    known = {t for n in ours.graph.node for t in (*n.input, *n.output)}
    beside = [n.output[0] for n in healthy.graph.node if name in n.input[:1]]
    beside += [n.input[0] for n in healthy.graph.node if n.input and name in n.output]
    quantized = {
        t for n in healthy.graph.node if n.op_type in QUANTIZERS for t in (*n.input[:1], *n.output)
    }
    beside = [t for t in beside if quantized >= {t, name}]
    return next((base(t) for t in (name, *beside) if base(t) in known), base(name))


def stands_for(ours: ModelProto, healthy: ModelProto, node: NodeProto) -> set[str]:
    """Names of our nodes that a node of the other model computes; of a quantizer, those beside
    it."""
    maker = {t: n for n in ours.graph.node for t in n.output}
    real = partial(real_name, ours, healthy)
    if node.op_type in QUANTIZERS:
        name = real(node.input[0])
        beside = {n.name for n in ours.graph.node if name in n.input}
        found = beside | ({maker[name].name} if name in maker else set())
        return found or _readers_stand_for(ours, healthy, node)
    known = {real(t) for n in healthy.graph.node for t in n.output if n is not node}
    ends = [real(t) for t in node.output]
    if not any(t in maker for t in ends):  # an inner tensor of a rewriting
        return _readers_stand_for(ours, healthy, node)
    found = {n.name for n in ours.graph.node if n.name == node.name}
    reads = {real(t) for t in node.input} | (known - set(ends))
    stack = [t for t in ends if t in maker]
    while stack:
        one = maker[stack.pop()]
        if one.name not in found or one.name == node.name:
            stack += [t for t in one.input if t in maker and t not in reads]
        found.add(one.name)
    return found


def _readers_stand_for(ours: ModelProto, healthy: ModelProto, node: NodeProto) -> set[str]:
    readers = [n for n in healthy.graph.node if set(n.input) & set(node.output)]
    return set[str]().union(*(stands_for(ours, healthy, n) for n in readers))


# ------------------------------------------------------------ answers


def ask(case: Case, ours: Path, fed: Path, folder: Path) -> tuple[dict[str, Any], float]:
    """What bisect says, and its CPU seconds."""
    theirs = folder / f"{case.name}.onnx"
    onnx.save(case.model, theirs)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = ["-m", "subgraph", "bisect", str(ours), "--candidate-model", str(theirs)]
    command += ["-i", str(fed), "-o", str(folder / case.name), "--json", "-q"]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return json.loads(done.stdout), seconds


def grade(document: Mapping[str, Any], group: set[str], altered: str) -> str:
    """How exactly an answer names the fault."""
    if document["exit_code"] == 0:
        return "right"
    findings = document.get("findings", ())
    if f"'{altered}'" in document.get("error", {}).get("hint", ""):
        return "exact"  # the file does not load, and the node is named
    if document["exit_code"] != 1 or not findings:
        return "unresolved"
    rows = {row["node"] for finding in findings for row in finding.get("differences") or ()}
    named = [set(finding["nodes"]) for finding in findings]
    if all(nodes <= group for nodes in named):
        return "exact"
    if len(findings) == 1 and rows & {altered, *group}:
        return "exact"
    return "contains" if any(nodes & group for nodes in named) else "wrong node"


def cases(
    networks: Sequence[str], forms: Sequence[str], mechanisms: Sequence[str], seed: int
) -> Iterator[tuple[Case, ModelProto, ModelProto, dict[str, Array]]]:
    """Each case with our model, the healthy other one, and what both are fed."""
    for network in networks:
        ours = MODELS[network]()
        feeds = feeds_of(ours, seed)
        more = [feeds, *(feeds_of(ours, seed + k) for k in range(1, 4))]
        for form in forms:
            copy = ModelProto()
            copy.CopyFrom(ours)
            with tempfile.TemporaryDirectory() as folder:
                healthy = FORMS[form](copy, Path(folder), more)
            yield Case(network, form, HEALTHY, healthy, NodeProto()), ours, healthy, feeds
            for mechanism in mechanisms:
                if case := draw(network, form, mechanism, healthy, feeds, seed):
                    yield case, ours, healthy, feeds


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.other_models")
    parser.add_argument("--networks", default=",".join(MODELS))
    parser.add_argument("--forms", default=",".join(FORMS))
    parser.add_argument("--mechanisms", default=",".join(MECHANISMS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path)
    asked = parser.parse_args(arguments)
    folder = asked.folder or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    grades: dict[str, list[str]] = {}
    words = (asked.networks, asked.forms, asked.mechanisms)
    networks, forms, mechanisms = (text.split(",") for text in words)
    skipped = set()
    for case, ours, healthy, feeds in cases(networks, forms, mechanisms, asked.seed):
        if (case.network, case.form) in skipped:
            continue
        onnx.save(ours, folder / f"{case.network}.onnx")
        np.savez(folder / f"{case.network}.npz", **feeds)  # type: ignore[arg-type]
        fed = folder / f"{case.network}.npz"
        document, seconds = ask(case, folder / f"{case.network}.onnx", fed, folder)
        group = set() if case.mechanism == HEALTHY else stands_for(ours, healthy, case.node)
        found = grade(document, group, case.node.name)
        if case.mechanism == HEALTHY:
            print(f"{found:10} {case.name}: {document.get('says', '')}", flush=True)
            if found != "right":
                skipped.add((case.network, case.form))
            continue
        grades.setdefault(case.form, []).append(found)
        nodes = [",".join(f["nodes"]) for f in document.get("findings", ())]
        says = "; ".join(nodes) or document.get("says") or document.get("error", {}).get("what", "")
        runs = document.get("trials", 0)
        line = f"{found:10} {case.name:32} {case.node.name} ({case.node.op_type})"
        print(f"{line}: {says[:160]}  {runs} runs, {seconds:.1f} CPU s", flush=True)
    kinds = ("exact", "contains", "wrong node", "unresolved", "right")
    rows = [[form, *(str(of.count(kind)) for kind in kinds)] for form, of in grades.items()]
    print(table(["form", *kinds], rows))
    every = [grade for of in grades.values() for grade in of]
    print(f"{every.count('exact')} of {len(every)} exact")
    return int("right" in every or every.count("exact") < MIN_EXACT * len(every))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
