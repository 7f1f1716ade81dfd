"""Example + runtime -> Verdict: whether its outputs are those that the example expects.

The expected outputs are the example's, not onnxruntime's. The default criterion needs the rounding
noise of the model, which only the reference can measure, and only if its own outputs are those
expected. If it refuses the model, or returns other outputs (a finding about onnxruntime), the
example's own tolerance decides.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from subgraph.comparison import ROUNDING_ALONE
from subgraph.comparison.criteria import OutputContext, Rule
from subgraph.comparison.judge import judge, judge_missing, parse_criterion
from subgraph.comparison.noise.noise import OutputNoise, RegionNoise
from subgraph.errors import SubcutError
from subgraph.graph import graph as graphs, region as regions
from subgraph.iterables import index_by_name
from subgraph.precision import Precision
from subgraph.questions.sweep.operator_tests import Example
from subgraph.runtime.candidate import Candidate
from subgraph.runtime.protocol import BackendInfo
from subgraph.runtime.reference import PLAIN, Reference, find_fixed_options
from subgraph.runtime.run_result import Job, RunResult, list_keys, load_or_run
from subgraph.runtime.worker_pool import NO_TURNS, Turns, Workers
from subgraph.storage.digest import digest
from subgraph.storage.store import Store
from subgraph.storage.tensors import Value, format_shape, list_arrays
from subgraph.trials.doubt import (
    Decision,
    Deviation,
    NodeEvidence,
    find_relative_error,
    is_judged_by_noise_in_fp32,
    settle_rounding,
)
from subgraph.types import frozen
from subgraph.verdict import Judgement, Signature, Status, Verdict, join_judgements
from subgraph.version import __version__

NOISE = "noise"  # the criterion that needs rounding noise
# Of the scale: eight roundings, as in `cases.check`.
FLOORS = {
    "float16": 8 * 2.0**-11,
    "bfloat16": 8 * 2.0**-8,
}
BFLOAT16_TOLERANCE = 2.0**-6  # relative: two roundings of bfloat16, as in onnx's own runner
# The basis of a verdict.
CRITERION = "criterion"
TOLERANCE = "tolerance"
NoiseOf = Callable[[str], OutputNoise | None]  # by output; None if it cannot be measured


@dataclass
class Runtime:
    """One runtime that examples are run on; its results are stored.

    Attributes:
        candidate: The candidate.
        workers: Its processes.
        store: The store of results.
        about: The properties of the backend, with the candidate's options.
        identity: A hash of all that its results depend on.
        turns: A semaphore that each run holds.
        used: Whether it took a model. An earlier error can mean that it cannot be used at all.
    """

    candidate: Candidate
    workers: Workers
    store: Store
    about: BackendInfo
    identity: str
    turns: Turns = NO_TURNS
    used: bool = False

    def limit_runs(self, jobs: int) -> Runtime:
        """Return the runtime, which runs this number of examples at once."""
        return replace(self, turns=threading.Semaphore(jobs))

    @property
    def precision(self) -> Precision:
        """The precision that it claims to compute in."""
        return Precision(self.candidate.precision or self.about.precision)

    def run(self, example: Example, *, fresh: bool = False) -> RunResult:
        """Return its outputs for an example. `fresh`: in a process that has run nothing before.

        Raises:
            BackendError: it cannot be used at all.
        """
        key = partial(digest, "example/1", __version__, example.key, self.identity)
        run = partial(self._run, example, fresh)
        result, _ = load_or_run(self.store, list_keys(key, fresh=fresh), run)
        self.used = True
        return result

    def _run(self, example: Example, fresh: bool, into: Path) -> RunResult:
        names = [r.name for r in example.outputs]
        result = self.workers.run(
            Job(example.model, [example.inputs], names, into, fresh), self.turns
        )
        if not result.failure:
            return result
        process = result.failure.process
        # Also what it started.
        ended = bool(process.get("signal")) or process.get("exit_code") is not None
        phase = "run" if result.build else "build"
        process = dict(process) | {"died": ended or result.ended, "while": phase}
        return replace(result, failure=replace(result.failure, process=process))


def open_runtime(workers: Workers, store: Store) -> Runtime:
    """Return the runtime of these processes.

    Raises:
        BackendError: It cannot be used.
    """
    candidate = workers.candidate
    about = workers.about()
    identity = digest("runtime", candidate.identity(about.version))
    return Runtime(candidate, workers, store, about, identity)


@frozen
class ReferenceResult:
    """The end of plain onnxruntime on an example: `agrees`, `near` (within the example's tolerance
    only), `differs`, `refuses` or `crashes`."""

    outcome: str
    why: str = ""

    @property
    def has_noise(self) -> bool:
        """Whether the reference can measure the rounding noise of the model."""
        return self.outcome == "agrees"


def needs_noise(criterion: str) -> bool:
    """Return whether a criterion needs rounding noise: plain onnxruntime must be right then."""
    return criterion.partition(":")[0].strip() == NOISE


class ExpectedOutputs:
    """Verdicts on examples, by one criterion. Several threads may share it, each with an example of
    its own."""

    def __init__(self, criterion: str, plain: Runtime, scratch: Path) -> None:
        """`criterion`: words as `parse_criterion` takes them; `plain`: plain onnxruntime."""
        self.criterion = criterion
        self.rule = parse_criterion(criterion)
        self._noise_rule = parse_criterion(NOISE)
        self._rounding_alone = parse_criterion(ROUNDING_ALONE)
        self._scratch = scratch
        # The reference runs here, wherever the candidates do.
        self._plain = plain.limit_runs(os.cpu_count() or 1)
        self._reference_results: dict[str, ReferenceResult] = {}
        self._reference: Reference | None = None
        self._lock = threading.Lock()
        self._numbers = itertools.count()

    @property
    def by_noise(self) -> bool:
        """Whether the criterion needs rounding noise."""
        return needs_noise(self.criterion)

    @property
    def version(self) -> str:
        """Plain onnxruntime's."""
        return self._plain.about.version

    def verdict(
        self, example: Example, result: RunResult, precision: Precision
    ) -> tuple[Verdict, str]:
        """Return the verdict on a result, and CRITERION or TOLERANCE; "" if nothing was judged."""
        if result.failure:
            return replace(result.failure, stored=result.stored), ""
        outputs = result.tensors[0]
        has_noise = self.run_reference(example).has_noise or not self.by_noise
        judgements = []
        judges = set()
        with self._iter_noise(example) as noise:
            for record in example.outputs:
                if record.name not in outputs:
                    judgements.append(judge_missing(record.name, result.others[0]))
                    continue
                values = record.value(), outputs[record.name].value()
                output = _Output(example, record.name, *values)
                if has_noise:
                    by = self._judge(output, precision, noise)
                else:
                    by = self._judge_without_noise(output, precision)
                judgements.append(by[0])
                judges.add(by[1])
        status, signature, why = join_judgements(judgements, every=True)
        verdict = Verdict(
            status, signature, why, tuple(judgements), {}, result.build, result.run, result.stored
        )
        return verdict, TOLERANCE if TOLERANCE in judges else CRITERION

    def _judge(
        self, output: _Output, precision: Precision, noise: NoiseOf | None
    ) -> tuple[Judgement, str]:
        """Return the judgement and its basis; without `noise`, the test's own tolerance."""
        if noise is None:
            return self._judge_without_noise(output, precision)
        judgement = output.judge(self.rule, precision, noise)
        is_possible = is_judged_by_noise_in_fp32(self.criterion, precision)
        if judgement.agrees and is_possible:
            by_rounding = output.judge(self._rounding_alone, precision, noise)
            if by_rounding.fails:
                # The error counts if no approximate kernel of the model explains it.
                error = find_relative_error(by_rounding)
                operators = graphs.load(output.example.model).ops
                deviation = Deviation.make(operators, error, agrees_usually=True)
                settlement = settle_rounding(NodeEvidence([deviation]), is_beyond_rounding=True)
                if settlement.decision is Decision.ROUNDING_ALONE:
                    judgement = by_rounding
        if judgement.agrees or not self.by_noise:
            return judgement, CRITERION
        if judgement.is_unresolved:  # the model does not run with perturbations, for example
            return self._judge_without_noise(output, precision)
        if output.is_float:  # the test's author knows how exact it is
            tolerated = output.judge_by_tolerance()
            if tolerated.agrees:
                return tolerated, TOLERANCE
        return judgement, CRITERION

    def _judge_without_noise(self, output: _Output, precision: Precision) -> tuple[Judgement, str]:
        """Judge by the test's own tolerance, which is too strict for float16 and near zero.

        So an output that the criterion accepts without noise is right as well, and an error that a
        lower precision may cause is unresolved.
        """
        tolerated = output.judge_by_tolerance()
        mismatch = not tolerated.agrees and tolerated.signature is Signature.MISMATCH
        if not mismatch or not output.is_float:
            return tolerated, TOLERANCE
        floor = FLOORS.get(output.dtype)
        judgement = output.judge(
            parse_criterion(f"{NOISE}:floor={floor!r}") if floor else self.rule, precision
        )
        return (tolerated, TOLERANCE) if judgement.fails else (judgement, CRITERION)

    def run_reference(self, example: Example) -> ReferenceResult:
        """Return how plain onnxruntime ends on an example."""
        if example.key not in self._reference_results:
            self._reference_results[example.key] = self._judge_reference(
                example, self._plain.run(example)
            )
        return self._reference_results[example.key]

    def _judge_reference(self, example: Example, result: RunResult) -> ReferenceResult:
        """Return `differs` if both the default criterion and the example's own tolerance fail.

        Without noise: drawn on the reference, it is as far from the expected values as the
        reference itself.
        """
        if result.failure:
            return ReferenceResult(
                "crashes" if is_dead(result.failure) else "refuses", result.failure.why
            )
        tolerated: list[Judgement] = []
        for record in example.outputs:
            if record.name not in result.tensors[0]:
                return ReferenceResult("differs", f"{record.name}: no output")
            values = record.value(), result.tensors[0][record.name].value()
            output = _Output(example, record.name, *values)
            if not output.judge(self._noise_rule, Precision.FP32).agrees:
                tolerated.append(output.judge_by_tolerance())
        wrong = [j for j in tolerated if not j.agrees]
        if wrong:
            outcome = "differs"
        elif tolerated:
            outcome = "near"
        else:
            outcome = "agrees"
        return ReferenceResult(outcome, "".join(f"{j.name}: {j.why}" for j in wrong[:1]))

    @contextlib.contextmanager
    def _iter_noise(self, example: Example) -> Iterator[NoiseOf]:
        """Yield the rounding noise of a model's outputs; the reference runs for the first one."""
        scratch = self._scratch / f"noise{next(self._numbers)}"
        cached: list[RegionNoise | None] = []

        def noise_of(output: str) -> OutputNoise | None:
            if not cached:
                cached.append(None)
                with contextlib.suppress(SubcutError):
                    cached[0] = self._measure_region_noise(example, scratch)
            noise = cached[0]
            if noise and output in noise.graph.maker:
                return noise.get_output(output)
            return None

        try:
            yield noise_of
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _measure_region_noise(self, example: Example, scratch: Path) -> RegionNoise:
        graph = graphs.load(example.model)
        region = regions.find_upstream(graph, graph.outputs, keep_random=False)
        scratch.mkdir()
        with self._lock:
            self._reference = self._reference or Reference(
                timeout=self._plain.candidate.timeout, restart=True
            )
        reference = self._reference
        store = self._plain.store

        def key(label: str) -> str:
            return digest("example noise/1", __version__, example.key, reference.identity(), label)

        records = index_by_name((*example.inputs, *example.outputs))
        return RegionNoise(
            graph,
            region,
            reference,
            records,
            scratch,
            lambda label, make: store.memo(key(label), make),
        )

    def __enter__(self) -> ExpectedOutputs:
        return self

    def __exit__(self, *_: object) -> None:
        if self._reference is not None:
            self._reference.__exit__(None, None, None)


def make_plain_candidate(timeout: float) -> Candidate:
    """Return the reference as a runtime among others: its process is replaced when it crashes."""
    return Candidate("onnxruntime", PLAIN, find_fixed_options(), timeout=timeout)


def is_dead(failure: Verdict) -> bool:
    """Return whether the process ended, and not only the run: a runtime's error is a refusal."""
    return failure.signature is not Signature.REFUSED and bool(failure.process.get("died", True))


# ------------------------------------------------------------ one output


@frozen
class _Output:
    """One output of an example: the expected value, and the runtime's."""

    example: Example
    name: str
    expected: Value
    value: Value

    @property
    def dtype(self) -> str:
        """Element type of the expected value, of a sequence's first; "" without one."""
        arrays = list_arrays(self.expected)
        return arrays[0].dtype.name if arrays else ""

    @property
    def is_float(self) -> bool:
        """Whether the expected values are floats, which may deviate a little."""
        return self.dtype.startswith(("float", "bfloat", "complex"))

    def judge(
        self, rule: Rule, precision: Precision, noise: NoiseOf = lambda output: None
    ) -> Judgement:
        """Judge by a rule; the noise is not measured for equal values.

        Equal values agree also if nothing could be compared (no elements, NaN alone): the
        example expects just that.
        """
        output_noise = None if _is_same(self.expected, self.value) else noise(self.name)
        context = OutputContext(self.name, precision, output_noise, is_model_output=True)
        judgement = judge(self.expected, self.value, rule, context)
        if not judgement.is_unresolved or describe_excess(self.expected, self.value, 0.0, 0.0):
            return judgement
        return replace(judgement, status=Status.AGREE, label="agrees", why="equal")

    def judge_by_tolerance(self) -> Judgement:
        """Judge as onnx's own runner: |value − expected| ≤ atol + rtol · |expected| per element."""
        rtol = self.example.rtol
        atol = self.example.atol
        rule = parse_criterion(f"numpy:rtol={rtol!r},atol={atol!r}")
        judgement = judge(self.expected, self.value, rule, OutputContext(self.name))
        tolerance = f"the test's own tolerance, {atol:g} + {rtol:g}·|expected|"
        off = describe_excess(self.expected, self.value, rtol, atol)
        if not off:
            why = f"within {tolerance}"
            return replace(judgement, status=Status.AGREE, signature=None, label="agrees", why=why)
        signature = judgement.signature or Signature.MISMATCH
        why = f"{off} beyond {tolerance}" if signature is Signature.MISMATCH else judgement.why
        return replace(judgement, status=Status.FAIL, signature=signature, label="fail", why=why)


def describe_excess(expected: Value, value: Value, rtol: float, atol: float) -> str:
    """Return the part of a value beyond a tolerance, in words; "" without one.

    Equal NaN and infinities are equal.
    """
    if expected is None or value is None:
        if expected is value:
            return ""
        return "an empty optional on one side alone"
    if isinstance(expected, list) and isinstance(value, list) and len(expected) == len(value):
        pairs = zip(expected, value, strict=True)
        return next(filter(None, (describe_excess(*pair, rtol, atol) for pair in pairs)), "")
    if isinstance(expected, list) or isinstance(value, list):
        return "another number of elements"
    dtype = expected.dtype
    if dtype != value.dtype and {dtype.kind, value.dtype.kind} - set("OUST"):
        return f"{value.dtype} where {dtype} was expected"
    if expected.shape != value.shape and {expected.shape, value.shape} != {(), (1,)}:
        return f"{format_shape(value.shape)} where {format_shape(expected.shape)} was expected"
    value = value.reshape(expected.shape)
    if dtype.kind in "OUST":
        off = int(np.sum(expected.astype(str) != value.astype(str)))
    else:
        relative = max(rtol, BFLOAT16_TOLERANCE) if dtype.name == "bfloat16" else rtol
        wide = np.complex128 if dtype.kind == "c" else np.float64
        close = np.isclose(
            value.astype(wide), expected.astype(wide), relative, atol, equal_nan=True
        )
        off = int(close.size - np.count_nonzero(close))
    if off:
        return f"{off} of {math.prod(expected.shape)} elements"
    return ""


def _is_same(expected: Value, value: Value) -> bool:
    """Return whether two values have the same bits, so that no noise need be measured."""
    if not isinstance(expected, np.ndarray) or not isinstance(value, np.ndarray):
        return expected is value
    one, other = ((a.dtype, a.shape, a.tobytes()) for a in (expected, value))
    return one == other
