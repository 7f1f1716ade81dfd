"""Example + runtime -> Verdict: does it give what the example says it must?

The truth is what the example expects, not what onnxruntime makes of it. The default criterion needs to know what
rounding does to the model, which only plain onnxruntime can tell, and only where its own values are those expected.
Where it refuses the model, or gives something else (a finding about onnxruntime), the example's own tolerance decides.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from subgraph.comparison.criteria import Rule
from subgraph.comparison.judge import judge, judge_missing, parse_criterion
from subgraph.comparison.noise.noise import OutputNoise, RegionNoise
from subgraph.errors import SubcutError
from subgraph.graph import graph as graphs
from subgraph.graph import region as regions
from subgraph.runtime.cached_runs import keys_to_try, load_or_run
from subgraph.runtime.candidate import Candidate
from subgraph.runtime.protocol import BackendInfo
from subgraph.runtime.reference import Reference, threads
from subgraph.runtime.run_result import RunResult, run_model
from subgraph.runtime.worker_pool import Workers
from subgraph.storage.digest import digest
from subgraph.storage.store import Store
from subgraph.storage.tensors import Value, load, shape_text
from subgraph.sweep.operator_tests import Example
from subgraph.verdict import Judgement, Signature, Status, Verdict, joined
from subgraph.version import __version__

if TYPE_CHECKING:
    pass

NOISE = "noise"  # the criterion that asks what rounding does
HALVES = {"float16": 8 * 2.0**-11, "bfloat16": 8 * 2.0**-8}  # of the scale: eight roundings, as in `check`
BFLOAT16 = 2.0**-6  # relative: two roundings of bfloat16, as in onnx's own runner
Ask = Callable[[str], OutputNoise | None]
CRITERION, TOLERANCE = "criterion", "tolerance"  # what a verdict was made by
BUILD, RUN = "build", "run"


@dataclass
class Runtime:
    """One runtime that examples are run on: answers from the store, or run now and kept.

    Attributes:
        used: did it take any model yet? What it says before may mean that it cannot be used at all.
    """

    candidate: Candidate
    workers: Workers
    store: Store
    used: bool = False

    @cached_property
    def about(self) -> BackendInfo:
        """What the backend says about itself, with the candidate's options."""
        return self.workers.about()

    @property
    def precision(self) -> str:
        """What it claims to compute in."""
        return str(self.candidate.precision or self.about.precision)

    @cached_property
    def _identity(self) -> str:
        return digest("runtime", self.candidate.identity(self.about.version))

    def answer(self, example: Example, *, fresh: bool = False) -> RunResult:
        """What it gives for an example. `fresh`: in a process that has run nothing before.

        Raises:
            BackendError: it cannot be used at all.
        """
        key, run = partial(self._key, example), partial(self._run, example, fresh)
        result, _ = load_or_run(self.store, keys_to_try(key, fresh=fresh), run)
        self.used = True
        return result

    def _key(self, example: Example, fresh: bool) -> str:
        return digest("example/1", __version__, example.key, self._identity, fresh)

    def _run(self, example: Example, fresh: bool, room: Path) -> RunResult:
        names = [r.name for r in example.outputs]
        with self.workers.one(loads=1, fresh=fresh) as worker:
            result = run_model(worker, self.candidate.options, example.model, [example.inputs], names, room)
            if not result.failure:
                return result
            process = result.failure.process
            ended = bool(process.get("signal")) or process.get("exit_code") is not None  # also what it started
            phase = RUN if result.build else BUILD
            process = dict(process) | {"died": ended or not worker.alive, "while": phase}
        return replace(result, failure=replace(result.failure, process=process))


@dataclass(frozen=True)
class ReferenceResult:
    """What plain onnxruntime makes of an example: `agrees`, `near` (within the example's tolerance only), `differs`,
    `refuses` or `crashes`."""

    word: str
    why: str = ""

    @property
    def knows(self) -> bool:
        """Can it tell what rounding does?"""
        return self.word == "agrees"


class ExpectedOutputs:
    """Verdicts on examples, by one criterion. Safe to use from several threads, each with an example of its own."""

    def __init__(self, words: str, plain: Runtime, scratch: Path) -> None:
        """`words`: a criterion's, as `judge.criterion` takes them; `plain`: plain onnxruntime."""
        self.words, self.rule = words, parse_criterion(words)
        self._noise_rule = parse_criterion(NOISE)
        self._plain, self._scratch = plain, scratch
        self._known: dict[str, ReferenceResult] = {}
        self._reference: Reference | None = None
        self._lock, self._numbers = threading.Lock(), itertools.count()

    @property
    def by_noise(self) -> bool:
        """Does the criterion ask what rounding does?"""
        return self.words.partition(":")[0].strip() == NOISE

    @property
    def version(self) -> str:
        """Plain onnxruntime's."""
        return str(self._plain.about.version)

    def verdict(self, example: Example, answer: RunResult, claim: str) -> tuple[Verdict, str]:
        """The verdict on an answer, and what it was made by: CRITERION or TOLERANCE; "" where nothing was judged."""
        if answer.failure:
            return replace(answer.failure, stored=answer.stored), ""
        given, knows = answer.tensors[0], self.plain(example).knows or not self.by_noise
        judgements, ways = [], set()
        with self._noise(example) as noise:
            for record in example.outputs:
                if record.name not in given:
                    judgements.append(judge_missing(record.name, answer.others[0]))
                    continue
                pair = _OutputPair(example, record.name, load(record, Path("/")), load(given[record.name], Path("/")))
                judgement, way = self._judged(pair, claim, noise) if knows else self._without_noise(pair, claim)
                judgements.append(judgement)
                ways.add(way)
        status, signature, why = joined(judgements)
        verdict = Verdict(status, signature, why, tuple(judgements), {}, answer.build, answer.run, answer.stored)
        return verdict, TOLERANCE if TOLERANCE in ways else CRITERION

    def _judged(self, pair: _OutputPair, claim: str, noise: Ask) -> tuple[Judgement, str]:
        found = pair.judged(self.rule, claim, noise)
        if found.status is Status.AGREE or not self.by_noise:
            return found, CRITERION
        if found.status is Status.UNRESOLVED:  # the model does not run with perturbations, say
            return self._without_noise(pair, claim)
        excused = pair.tolerated() if pair.floats else found  # whoever made the test knows how exact it is
        return (excused, TOLERANCE) if excused.status is Status.AGREE else (found, CRITERION)

    def _without_noise(self, pair: _OutputPair, claim: str) -> tuple[Judgement, str]:
        """By the test's own tolerance. It is too strict for float16, and near zero: what the criterion lets pass though
        it knows of no noise is right as well, and what lower precision may do or not is unresolved."""
        found = pair.tolerated()
        if found.status is Status.AGREE or found.signature is not Signature.MISMATCH or not pair.floats:
            return found, TOLERANCE
        floor = HALVES.get(pair.dtype)
        other = pair.judged(parse_criterion(f"{NOISE}:floor={floor!r}") if floor else self.rule, claim)
        return (found, TOLERANCE) if other.status is Status.FAIL else (other, CRITERION)

    def plain(self, example: Example) -> ReferenceResult:
        """What plain onnxruntime makes of it."""
        if example.key not in self._known:
            self._known[example.key] = self._seen(example, self._plain.answer(example))
        return self._known[example.key]

    def _seen(self, example: Example, answer: RunResult) -> ReferenceResult:
        """`differs` where the default criterion and the example's own tolerance say so."""
        if answer.failure:
            return ReferenceResult("crashes" if is_dead(answer.failure) else "refuses", answer.failure.why)
        far: list[Judgement] = []
        with self._noise(example) as noise:
            for record in example.outputs:
                if record.name not in answer.tensors[0]:
                    return ReferenceResult("differs", f"{record.name}: it gives none")
                given = load(answer.tensors[0][record.name], Path("/"))
                pair = _OutputPair(example, record.name, load(record, Path("/")), given)
                if pair.judged(self._noise_rule, "fp32", noise).status is not Status.AGREE:
                    far.append(pair.tolerated())
        off = [j for j in far if j.status is not Status.AGREE]
        word = "differs" if off else "near" if far else "agrees"
        return ReferenceResult(word, "".join(f"{j.name}: {j.why}" for j in off[:1]))

    @contextlib.contextmanager
    def _noise(self, example: Example) -> Iterator[Ask]:
        """By output, what rounding does to it; None where onnxruntime cannot be asked. Nothing is run yet."""
        scratch = self._scratch / f"noise{next(self._numbers)}"
        kept: list[RegionNoise | None] = []

        def of(output: str) -> OutputNoise | None:
            if not kept:
                kept.append(None)
                with contextlib.suppress(SubcutError):
                    kept[0] = self._region(example, scratch)
            found = kept[0]
            return found.of(output) if found and output in found.graph.maker else None

        try:
            yield of
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _region(self, example: Example, scratch: Path) -> RegionNoise:
        graph = graphs.load(example.model)
        made = [n for n in graph.outputs if n in graph.maker]
        region = regions.of_nodes(graph, graph.ancestors(graph.maker[n] for n in made), [(n,) for n in made])
        scratch.mkdir()
        with self._lock:
            self._reference = self._reference or Reference(timeout=self._plain.candidate.timeout, restart=True)
        reference = self._reference

        def memo(label: str, make: Callable[[Path], dict[str, Any]]) -> tuple[dict[str, Any], Path]:
            key = digest("example noise/1", __version__, example.key, reference.identity(), label)
            return self._plain.store.memo(key, make)

        records = {r.name: r for r in (*example.inputs, *example.outputs)}
        return RegionNoise(graph, region, reference, records, Path("/"), scratch, memo)

    def __enter__(self) -> ExpectedOutputs:
        return self

    def __exit__(self, *_: Any) -> None:
        if self._reference is not None:
            self._reference.__exit__(None, None, None)


def plain_onnxruntime(timeout: float) -> Candidate:
    """The reference, as a runtime among others: one that crashes is replaced."""
    return Candidate("onnxruntime", "ort", {"opt": "disable", "threads": threads(), "fixed": True}, timeout=timeout)


def is_dead(failure: Verdict) -> bool:
    """Did the process end, and not only the run? An error that a runtime raises is a refusal, in whatever words."""
    return failure.signature is not Signature.REFUSED and bool(failure.process.get("died", True))


# ---------------------------------------------------------------------------------------------------- one output


@dataclass(frozen=True)
class _OutputPair:
    """One output: what the example expects, and what came."""

    example: Example
    name: str
    right: Value
    given: Value

    @property
    def dtype(self) -> str:
        """Of the expected values; "" where there are none."""
        one = self.right[0] if isinstance(self.right, list) and self.right else self.right
        return "" if one is None or isinstance(one, list) else one.dtype.name

    @property
    def floats(self) -> bool:
        """Are they numbers that may be a little off?"""
        return self.dtype.startswith(("float", "bfloat", "complex"))

    def judged(self, rule: Rule, claim: str, noise: Ask = lambda output: None) -> Judgement:
        """By a rule. What is equal needs no noise; where nothing could be compared (no elements, NaN alone), equal is
        right: the example expects just that."""
        asked = None if _same(self.right, self.given) else noise(self.name)
        found = judge(self.name, self.right, self.given, rule, claim, asked)
        if found.status is not Status.UNRESOLVED or beyond(self.right, self.given, 0.0, 0.0):
            return found
        return replace(found, status=Status.AGREE, label="agrees", why="equal")

    def tolerated(self) -> Judgement:
        """As onnx's own runner does it: |d| ≤ atol + rtol · |expected| for each element, of any type of number."""
        rtol, atol = self.example.rtol, self.example.atol
        found = judge(self.name, self.right, self.given, parse_criterion(f"numpy:rtol={rtol!r},atol={atol!r}"))
        said = f"the test's own tolerance, {atol:g} + {rtol:g}·|expected|"
        off = beyond(self.right, self.given, rtol, atol)
        if not off:
            return replace(found, status=Status.AGREE, signature=None, label="agrees", why=f"within {said}")
        signature = found.signature or Signature.MISMATCH
        why = f"{off} beyond {said}" if signature is Signature.MISMATCH else found.why
        return replace(found, status=Status.FAIL, signature=signature, label="fail", why=why)


def beyond(right: Value, given: Value, rtol: float, atol: float) -> str:
    """What of a value lies beyond a tolerance, in words; "" where nothing does. Equal NaN and infinities are equal."""
    import numpy as np

    if right is None or given is None:
        return "" if right is given else "an empty optional on one side alone"
    if isinstance(right, list) or isinstance(given, list):
        if not isinstance(right, list) or not isinstance(given, list) or len(right) != len(given):
            return "another number of elements"
        return next(filter(None, (beyond(a, b, rtol, atol) for a, b in zip(right, given, strict=True))), "")
    if right.dtype != given.dtype and {right.dtype.kind, given.dtype.kind} - set("OUST"):
        return f"{given.dtype} where {right.dtype} was expected"
    if right.shape != given.shape and {right.shape, given.shape} != {(), (1,)}:
        return f"{shape_text(given.shape)} where {shape_text(right.shape)} was expected"
    given = given.reshape(right.shape)
    if right.dtype.kind in "OUST":
        off = int(np.sum(right.astype(str) != given.astype(str)))
    else:
        relative = max(rtol, BFLOAT16) if right.dtype.name == "bfloat16" else rtol
        wide = np.complex128 if right.dtype.kind == "c" else np.float64
        close = np.isclose(given.astype(wide), right.astype(wide), relative, atol, equal_nan=True)
        off = int(close.size - np.count_nonzero(close))
    return f"{off} of {math.prod(right.shape)} elements" if off else ""


def _same(right: Value, given: Value) -> bool:
    """Equal bit for bit: nobody need ask what rounding does."""
    if right is None or given is None or isinstance(right, list) or isinstance(given, list):
        return right is given
    return right.dtype == given.dtype and right.shape == given.shape and right.tobytes() == given.tobytes()
