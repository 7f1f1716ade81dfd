"""The check of a cut: it runs alone on the captured inputs and must return the captured outputs,
bit for bit.

So must the same cut at another opset, as onnx converts it.
"""

from __future__ import annotations

import filecmp
import re
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import product
from math import inf, isfinite
from pathlib import Path

from subgraph.cases.case import CheckResult, NewerNode, OutputDifference, TargetOpset
from subgraph.cases.layout import MODEL
from subgraph.errors import SubcutError, UsageError
from subgraph.graph import protobuf
from subgraph.graph.cut import Cut, types_contradict
from subgraph.graph.nested import get_attribute
from subgraph.graph.onnx_process import OnnxError, OnnxProcess, convert_model
from subgraph.graph.opsets import MIN_OPSET, find_newer_nodes, get_opset
from subgraph.lazy import np
from subgraph.runtime.capture import Captured
from subgraph.runtime.reference import Reference
from subgraph.storage.folders import number_stems
from subgraph.storage.tensors import Record, Records, list_arrays, load, measure_distance

# Onnxruntime keeps float32 between float16 nodes at every optimization level. The places of its
# Casts depend on the neighboring nodes. Largest difference seen: one rounding (4.9e-4 of the
# scale); a few may add up.
FLOAT16 = 10  # TensorProto.DataType
HALF_ROUNDINGS = 8 * 2.0**-11
FLOATING = frozenset((1, FLOAT16, 11, 16))  # float, float16, double, bfloat16
TYPES_DIFFER = re.compile("inconsistent type|elem type differs")  # errors of onnx's inference
REFUSED = "refused"  # status of a cut that onnx refuses

# Sample and folder → outputs of a second run of the whole model.
Rerun = Callable[[int, Path], Records]


def check(
    reference: Reference,
    cut: Cut,
    samples: Sequence[Captured],
    folders: Sequence[Path],
    model: Path,
    rerun: Rerun,
    expected: str,
) -> CheckResult:
    """Run a cut alone and compare its outputs with the captured ones.

    `model` is the cut on disk. `folders` hold the captured files of each sample and are called
    after its number; `rerun(number, folder)` writes below `folder/0`, and is called only if
    outputs differ. `expected`: what the captured outputs are, in words.
    """
    reference.load("cut", model)
    stems = number_stems(cut.outputs, "check")
    differences = []
    for sample, folder in zip(samples, folders, strict=True):
        outputs = reference.run(
            "cut", folder, stems, [sample.tensors[n] for n in cut.inputs]
        ).by_name
        differences += [
            d for n in cut.outputs if (d := _compare(sample.tensors[n], outputs[n], folder))
        ]
        for record in outputs.values():
            for file in record.files:
                (folder / file).unlink()
    if not differences:
        return CheckResult(
            "identical", f"the cut alone computes {expected}: bit-identical", 0.0, ()
        )
    worst = max(differences, key=lambda d: _restore_infinity(d.relative))
    error = _restore_infinity(worst.max_abs)
    reason = f"'{worst.name}' differs by {error:.1e} of {_restore_infinity(worst.scale):.3g}"
    if not worst.comparable:
        reason = f"'{worst.name}' has {worst.why}"
    boundary = product(samples, (*cut.inputs, *cut.outputs))
    has_half = any(t.data_type == FLOAT16 for t in cut.model.graph.initializer) or any(
        sample.tensors[name].dtype == "float16" for sample, name in boundary
    )
    if worst.comparable and has_half and _restore_infinity(worst.relative) <= HALF_ROUNDINGS:
        why = "onnxruntime keeps float32 between float16 nodes"
        return CheckResult(
            "rounding", f"{reason}: one fp16 rounding ({why})", HALF_ROUNDINGS, differences
        )
    if not _repeats(samples, folders, rerun):
        return CheckResult(
            "unrepeatable",
            f"{reason}: the reference itself computes other values each time",
            0.0,
            differences,
        )
    return CheckResult(
        "different", f"{reason}: the cut does NOT compute {expected}", 0.0, differences
    )


def _restore_infinity(value: float | None) -> float:
    return inf if value is None else value


def _to_json_number(value: float) -> float | None:
    """Return a number as JSON has it: None for infinity and NaN, which JSON lacks."""
    return value if isfinite(value) else None


def _compare(expected: Record, actual: Record, folder: Path) -> OutputDifference | None:
    """Return the difference of two values; None if their files are equal byte for byte.

    Only floating values with NaN and infinities in the same places are comparable: an index or a
    sign of infinity that differs is never a rounding.
    """
    if len(expected.files) == len(actual.files) and all(
        filecmp.cmp(folder / a, folder / b, shallow=False)
        for a, b in zip(expected.files, actual.files, strict=True)
    ):
        return None
    difference = OutputDifference(expected.name)
    if expected.shapes != actual.shapes or expected.dtype != actual.dtype:
        return replace(difference, why="another type or shape")
    if "float" not in expected.dtype and not expected.dtype.startswith("complex"):
        return replace(difference, why="other values")
    error = scale = 0.0
    for a, b in zip(
        list_arrays(load(expected, folder)), list_arrays(load(actual, folder)), strict=True
    ):
        apart = measure_distance(np.asarray(a), np.asarray(b))
        if apart is None:
            return replace(difference, why="other NaN or infinities")
        error = max(error, apart[0])
        scale = max(scale, apart[1])
    relative = error / scale if scale else error
    return OutputDifference(
        expected.name,
        True,
        _to_json_number(error),
        _to_json_number(scale),
        _to_json_number(relative),
    )


def _repeats(samples: Sequence[Captured], folders: Sequence[Path], rerun: Rerun) -> bool:
    """Return whether a second run of the full model returns the captured values."""
    for sample, folder in zip(samples, folders, strict=True):
        second = folder / "again"
        second.mkdir()
        for name, record in rerun(int(folder.name), second).items():
            if _compare(sample.tensors[name], record.rebase("again/0"), folder):
                return False
    return True


# ------------------------------------------------------------ other opsets


def write_at_opset(
    cut: Cut, version: int, work: Path, check: Callable[[Path], CheckResult] | None = None
) -> TargetOpset | None:
    """Write the cut at another opset to a second file; None for version 0.

    Args:
        check: Runs a model instead of the cut on the captured values; None without such values.

    Raises:
        UsageError: There is no such version.
    """
    if not version:
        return None
    own = get_opset(cut.model)
    if not MIN_OPSET <= version <= own:
        raise UsageError(
            f"--target-opset {version}: the model has opset {own}",
            f"--target-opset {MIN_OPSET} to {own}: onnx converts to these",
            code="opset.out-of-range",
        )
    newer = [
        NewerNode(str(node.name), str(node.op_type), since)
        for node, since in find_newer_nodes(cut.model, version)
    ]
    target = TargetOpset(version, own, newer)
    path = work / f"{MODEL.removesuffix('.onnx')}-opset{version}.onnx"
    try:
        converted, _ = convert_model(deepcopy(cut.model), cut.graph.path, version)
        protobuf.write(converted, cut.graph.path, path, external=False)
        return replace(target, file=path.name, check=check(path) if check else None)
    except SubcutError as e:
        path.unlink(missing_ok=True)
        return replace(target, why=e.what[:300])


def find_type_problem(cut: Cut) -> str:
    """Return the reason why onnx refuses the element types of a cut that was made without a run; ""
    if it does not.

    Asked, in 0.3 s, only if floats of several types meet, or an operator excludes a type that
    enters or leaves.
    """
    graph = cut.model.graph
    types = {t.name: t.data_type for t in graph.initializer}
    types |= {name: t.tensor_type.elem_type for name, t in cut.types.items()}
    kinds = {*types.values()}
    kinds |= {get_attribute(node, "to", 0) for node in graph.node if node.op_type == "Cast"}
    if len(kinds & FLOATING) < 2 and not types_contradict(graph.node, types):
        return ""
    try:
        with OnnxProcess(cut.graph.path) as onnx:
            onnx.infer_shapes(
                protobuf.to_onnx(cut.model, cut.graph.path), strict=True, check_types=True
            )
    except OnnxError as e:
        lines = filter(TYPES_DIFFER.search, str(e).splitlines())
        return next(lines, "").strip()[:300]
    return ""
