"""Faults planted into what PyTorch's exporter writes -> does a bisection beside the module name the
line of code?

    python -m benchmarks.exported [FOLDER] [--only NAME,NAME]     (where torch and onnxscript are
    installed)

A fault is a wrong translation of an operator, registered with the exporter, or an edit of one node
that it wrote. It is right if all findings are certified culprits, and all of their nodes come from
lines of code that the fault concerns. The healthy networks must agree, as must each of their pieces
(`--inside`).
"""

from __future__ import annotations

import argparse
import logging
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, numpy_helper

from benchmarks.report import table
from subgraph.graph.graph import load
from subgraph.questions.bisection.bisection import bisect
from subgraph.runtime.candidate import parse
from subgraph.search import Settings

NETWORKS = Path(__file__).resolve().parent.parent / "fixtures" / "torch_networks.py"
HEALTHY = ("resnet18", "transformer", "lstm", "detector")
Edit = Callable[[onnx.ModelProto], None]
Translations = Callable[[], dict[Any, Any]]


@dataclass(frozen=True)
class Fault:
    """Attributes:
    code: part of the line of code whose translation is wrong.
    edit: of the exported model; translations: for `custom_translation_table`.
    """

    network: str
    name: str
    code: str
    edit: Edit | None = None
    translations: Translations | None = None


@dataclass(frozen=True)
class Outcome:
    """Attributes:
    named: lines of code of the findings' nodes; certified: are all findings certified culprits?
    """

    status: str
    named: tuple[str, ...]
    certified: bool
    runs: int
    seconds: float

    def names(self, fault: Fault) -> bool:
        """Is the line of the fault named, and no other?"""
        return (
            self.certified and bool(self.named) and all(fault.code in line for line in self.named)
        )


# ------------------------------------------------------------ edits


def _node(model: onnx.ModelProto, output: str) -> NodeProto:
    found: NodeProto = next(node for node in model.graph.node if output in node.output)
    return found


def _attribute(output: str, **values: Any) -> Edit:
    """Set attributes of the node that makes `output`."""

    def edit(model: onnx.ModelProto) -> None:
        node = _node(model, output)
        kept = [a for a in node.attribute if a.name not in values]
        del node.attribute[:]
        node.attribute.extend(
            [*kept, *(onnx.helper.make_attribute(k, v) for k, v in values.items())]
        )

    return edit


def _operator(output: str, op_type: str, **values: Any) -> Edit:
    """Make `output` by another operator of the same inputs."""

    def edit(model: onnx.ModelProto) -> None:
        node = _node(model, output)
        node.op_type = op_type
        del node.attribute[:]
        node.attribute.extend(onnx.helper.make_attribute(k, v) for k, v in values.items())

    return edit


def _inputs(output: str, order: Callable[[list[str]], list[str]]) -> Edit:
    """Change what the node that makes `output` reads."""

    def edit(model: onnx.ModelProto) -> None:
        node = _node(model, output)
        names = order(list(node.input))
        del node.input[:]
        node.input.extend(names)

    return edit


def _weight(output: str, position: int, change: Callable[[Any], Any]) -> Edit:
    """Change a weight that the node that makes `output` reads; other readers keep theirs."""

    def edit(model: onnx.ModelProto) -> None:
        node = _node(model, output)
        old = next(t for t in model.graph.initializer if t.name == node.input[position])
        name = f"{output}_changed"
        model.graph.initializer.append(
            numpy_helper.from_array(np.ascontiguousarray(change(numpy_helper.to_array(old))), name)
        )
        node.input[position] = name

    return edit


def _lstm(position: int, change: Callable[[Any], Any]) -> Edit:
    """Change a weight of the first LSTM."""

    def edit(model: onnx.ModelProto) -> None:
        node = next(node for node in model.graph.node if node.op_type == "LSTM")
        _weight(node.output[0], position, change)(model)

    return edit


def _gates(array: Any) -> Any:
    """Gates in another order: i, o, f, c in the place of i, f, o, c."""
    size = array.shape[1] // 4
    return np.concatenate([array[:, k * size : (k + 1) * size] for k in (0, 2, 1, 3)], axis=1)


def _without_recurrent_bias(array: Any) -> Any:
    return np.concatenate(
        [array[:, : array.shape[1] // 2], 0 * array[:, array.shape[1] // 2 :]], axis=1
    )


# ------------------------------------------------------------ translations


def _softmax() -> dict[Any, Any]:
    import torch
    from onnxscript import opset18 as op

    def translated(self: Any, dim: int, dtype: int = -1) -> Any:
        return op.Softmax(self, axis=dim - 1)

    return {torch.ops.aten.softmax.int: translated}


def _gelu() -> dict[Any, Any]:
    import torch
    from onnxscript import opset18 as op

    def translated(self: Any, approximate: str = "none") -> Any:
        return op.Mul(self, op.Sigmoid(op.Mul(self, op.Constant(value_float=1.702))))

    return {torch.ops.aten.gelu.default: translated}


def _max_pool() -> dict[Any, Any]:
    import torch
    from onnxscript import opset18 as op

    def translated(
        self: Any,
        kernel_size: Any,
        stride: Any = (),
        padding: Any = (0, 0),
        dilation: Any = (1, 1),
        ceil_mode: Any = 0,
    ) -> Any:
        values, _ = op.MaxPool(self, kernel_shape=[3, 3], strides=[2, 2], pads=[0, 0, 2, 2])
        return values

    return {torch.ops.aten.max_pool2d.default: translated}


def _mean() -> dict[Any, Any]:
    import torch
    from onnxscript import opset18 as op

    def translated(self: Any, dim: Any, keepdim: bool = False, dtype: int = -1) -> Any:
        return op.ReduceMax(self, op.Constant(value_ints=[-1, -2]), keepdims=int(keepdim))

    return {torch.ops.aten.mean.dim: translated}


def _nms() -> dict[Any, Any]:
    from fixtures import torch_networks

    (name, right), *_ = torch_networks.nms_translation().items()
    return {name: lambda boxes, scores, overlap: right(boxes, scores, 0.8 * overlap)}


FAULTS = (
    Fault("resnet18", "padding of a pooling", "self.maxpool(x)", translations=_max_pool),
    Fault("resnet18", "maximum for mean", "self.avgpool(x)", translations=_mean),
    Fault(
        "resnet18", "dropped bias", "self.bn1(out)", _inputs("getitem_15", lambda names: names[:2])
    ),
    Fault(
        "resnet18",
        "flipped kernel",
        "self.bn2(out)",
        _weight("getitem_12", 1, lambda w: w[:, :, ::-1, ::-1]),
    ),
    Fault(
        "resnet18",
        "padding of a convolution",
        "self.bn1(out)",
        _attribute("getitem_39", pads=[2, 2, 0, 0]),
    ),
    Fault("resnet18", "leaky ReLU", "self.relu(out)", _operator("relu_9", "LeakyRelu", alpha=0.1)),
    Fault("transformer", "axis of softmax", "scores.softmax(", translations=_softmax),
    Fault("transformer", "GELU by a sigmoid", "F.gelu(", translations=_gelu),
    Fault("transformer", "epsilon", "self.norm2(x)", _attribute("layer_norm_3", epsilon=0.1)),
    Fault(
        "transformer",
        "factor of a division",
        "math.sqrt(",
        _weight("div_1", 1, lambda w: w * np.float32(2)),
    ),
    Fault(
        "transformer", "dropped bias", "self.down(hidden)", _weight("linear_7", 1, np.zeros_like)
    ),
    Fault("lstm", "order of the gates", "self.lstm(x)", _lstm(1, _gates)),
    Fault("lstm", "dropped recurrent bias", "self.lstm(x)", _lstm(3, _without_recurrent_bias)),
    Fault("lstm", "another step", "states[:, -1]", _weight("select", 1, lambda index: index * 0)),
    Fault("lstm", "another activation", "torch.tanh(", _operator("tanh", "Softsign")),
    Fault(
        "detector",
        "rounding of an interpolation",
        "F.interpolate(",
        _attribute("upsample_nearest2d", nearest_mode=b"ceil"),
    ),
    Fault("detector", "slope of hardswish", "F.hardswish(", _operator("hardswish", "Mish")),
    Fault(
        "detector",
        "order of a concatenation",
        "torch.cat([fine, up]",
        _inputs("cat", lambda names: names[::-1]),
    ),
    Fault(
        "detector",
        "order of a difference",
        "center - size / 2",
        _inputs("sub", lambda names: names[::-1]),
    ),
    Fault("detector", "threshold of NMS", "subcut_fixture.nms(", translations=_nms),
)


def exported(network: str, fault: Fault | None, folder: Path) -> tuple[Path, list[str]]:
    """The exported model, with the fault, and its inputs as words after `-i`."""
    from fixtures import torch_networks

    path = folder / f"{network}.onnx"
    translations = fault.translations() if fault and fault.translations else {}
    torch_networks.export(network, path, custom_translation_table=translations)
    model = onnx.load(path)
    if fault and fault.edit:
        fault.edit(model)
        onnx.save(model, path)
    _, args = torch_networks.NETWORKS[network]()
    words = []
    for info, value in zip(model.graph.input, args, strict=True):
        np.save(folder / f"{info.name}.npy", value.numpy())
        words.append(f"{info.name}={folder / info.name}.npy")
    return path, words


def outcome(network: str, fault: Fault | None, folder: Path) -> Outcome:
    """Export and bisect, onnxruntime beside the module."""
    path, words = exported(network, fault, folder)
    began = time.monotonic()
    search = bisect(
        load(path),
        "ort",
        words,
        reference=parse(f"torch:{NETWORKS}:{network}"),
        output=folder / "out",
        limits=Settings(inside=fault is None),
    )
    runs = len(list(search))
    document: Mapping[str, Any] = search.document
    findings = document["findings"]
    lines = [
        s["code"] if s and s.get("code") else "?"
        for f in findings
        for s in f.get("sources") or [None]
    ]
    certified = all(f["kind"] == "culprit" and f["certified"] for f in findings)
    status = "right" if document["agree"] and not findings else "wrong"
    return Outcome(status, tuple(dict.fromkeys(lines)), certified, runs, time.monotonic() - began)


def rows(faults: tuple[Fault, ...], folder: Path) -> Iterator[list[str]]:
    """A row per healthy network and per fault, as soon as it is known."""
    cases = [
        *(((name, None) for name in HEALTHY) if len(faults) > 19 else ()),
        *((fault.network, fault) for fault in faults),
    ]
    for k, (network, fault) in enumerate(cases):
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        into = folder / str(k)
        shutil.rmtree(into, ignore_errors=True)
        into.mkdir(parents=True)
        found = outcome(network, fault, into)
        good = found.names(fault) if fault else found.status == "right"
        named = "; ".join(found.named) or "-"
        said = "yes" if good else "NO"
        yield [
            network,
            fault.name if fault else "none",
            named,
            said,
            str(found.runs),
            f"{found.seconds:.0f} s",
        ]


def main() -> None:
    """Print the table, a line at a time, then all of it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--only", help="parts of NETWORK: FAULT, with commas")
    options = parser.parse_args()
    words = (options.only or "").split(",")
    faults = tuple(f for f in FAULTS if any(word in f"{f.network}: {f.name}" for word in words))
    done = []
    for row in rows(faults, options.folder or Path(tempfile.mkdtemp(prefix="exported-"))):
        print(*row, sep=" | ", flush=True)
        done.append(row)
    print(table(["network", "fault", "line that is named", "right", "runs", "time"], done))


if __name__ == "__main__":
    main()
