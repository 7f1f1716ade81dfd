"""Steps, one after the other, on the reference and on a candidate, and the errors of the steps.

The candidate is given the reference's tokens. The reference walks once. Of its states only some are
kept, at equal distances that grow with their size on disk; the others are computed again from
the one before. A candidate walks over a range of steps from the reference's state, with states of
its own from then on: in one process, the model loaded once.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from subgraph.errors import SubcutError
from subgraph.iterables import flatten
from subgraph.precision import Precision
from subgraph.questions.decoding.decoder import Decoder
from subgraph.questions.decoding.inputs import LoopInputs
from subgraph.runtime.reference import Reference
from subgraph.storage import folders
from subgraph.storage.tensors import Record, format_tensor_type, measure_distance, write_value
from subgraph.text import clean
from subgraph.types import Array, StringMap, frozen

KEY = "decoder"  # of the model in a process
MAX_BYTES = 2 << 30  # of states that are kept on disk; fewer with --memory

Records = Mapping[str, Record]
Run = Callable[[Path, StringMap, Sequence[Record]], Records]  # into, output → stem, feeds


@dataclass
class Trace:
    """The steps of the reference.

    Attributes:
        given: The values of the user's inputs.
        model: The file of the model.
        folder: The folder of all files.
        reference: The process.
        tokens: The tokens of each step, (batch, length).
        winners: The token of the largest logit per row, of each step.
        ended: The rows whose text had ended before each step.
        results: The outputs without the states, of each step.
        states: The states before every `stride`-th step, by step, and those after the last.
        stride: The distance of the steps whose states are kept.
    """

    given: LoopInputs
    model: Path
    folder: Path
    reference: Reference
    tokens: list[Array] = field(default_factory=list)
    winners: list[Any] = field(default_factory=list)
    ended: list[Array] = field(default_factory=list)
    results: list[Records] = field(default_factory=list)
    states: dict[int, Records] = field(default_factory=dict)
    stride: int = 1

    @property
    def steps(self) -> int:
        """The number of steps that were run."""
        return len(self.results)

    @property
    def decoder(self) -> Decoder:
        return self.given.decoder

    def feeds(self, k: int, states: Records) -> list[Record]:
        """Return all that step k is fed, in the model's order."""
        folder = self.folder / f"in{k}"
        folder.mkdir(exist_ok=True)
        fed = {**states, **self.given.records(k, self.tokens, folder)}
        return [fed[name] for name in self.decoder.graph.inputs]

    def find_state_before(self, k: int) -> Records:
        """Return the states that the reference has before step k, from those that are kept."""
        begin = max(b for b in self.states if b <= k)
        states = self.states[begin]
        for j in range(begin, k):
            before = states
            _, states = self.step(j, before, self.folder / f"again{j}")
            if j > begin:
                self.drop(before)
        self.states[k] = states
        return states

    def step(self, k: int, states: Records, into: Path) -> tuple[Records, Records]:
        """Run one step; return its results, and the states after it.

        Raises:
            ModelError: the reference cannot run it.
        """
        into.mkdir(exist_ok=True)
        outputs = make_stems(self.decoder)
        found = self.reference.run(KEY, into, outputs, self.feeds(k, states)).by_name
        found = {name: record.rebase(into.resolve()) for name, record in found.items()}
        made, after = end_step(self.decoder, found, states, into)
        return {name: made[name] for name in self.decoder.results}, after

    def drop(self, states: Records) -> None:
        """Remove the files of states that are no longer read, unless they are results as well."""
        if not set(self.decoder.states.values()).intersection(self.decoder.results):
            for file in _iter_files(states):
                file.unlink(missing_ok=True)


def _iter_files(records: Records) -> Iterator[Path]:
    return map(Path, flatten(record.files for record in records.values()))


def measure_size(records: Records) -> int:
    """Return the bytes of some records on disk."""
    return sum(file.stat().st_size for file in _iter_files(records))


def make_stems(decoder: Decoder) -> dict[str, str]:
    """Make the stem of the file of every output."""
    return folders.number_stems(decoder.graph.outputs, "o")


def end_step(
    decoder: Decoder, results: Records, before: Records, into: Path
) -> tuple[Records, Records]:
    """Return the outputs of a step, and the states of the next one under the names of its inputs.

    For an empty state the output is the one before, if the model has a branch for steps with a
    cache.

    So merged decoders give what the encoder's output was made into in the first step only.
    """
    outputs = dict(results)
    for i, (name, output) in enumerate(decoder.states.items() if decoder.cache_branch else ()):
        if _is_empty(results[output]) and not _is_empty(before[name]):
            files = [
                into / f"held{i}-{j}{Path(file).suffix}"
                for j, file in enumerate(before[name].files)
            ]
            for file, old in zip(files, before[name].files, strict=True):
                file.hardlink_to(old)
            outputs[output] = replace(
                before[name], name=output, files=tuple(str(file.resolve()) for file in files)
            )
    return outputs, {
        name: replace(outputs[output], name=name) for name, output in decoder.states.items()
    }


def _is_empty(record: Record) -> bool:
    return any(0 in shape for shape in record.shapes)


def trace_reference(inputs: LoopInputs, reference: Reference, model: Path, folder: Path) -> Trace:
    """Run the reference to the end of the text, of the slices or of the steps.

    `model` is the only file in its folder.

    Raises:
        ModelError, InputError: the reference cannot run a step.
    """
    trace = Trace(inputs, model, folder, reference)
    reference.load(KEY, model)
    states: Records = inputs.make_first_states(folder)
    ended = np.zeros(inputs.batch, bool)
    for k in range(inputs.steps):
        prompt = inputs.find_prompt(k)
        if inputs.prompt is not None:
            if prompt is None:  # it is used up
                last = np.where(ended, inputs.file.pad, trace.winners[k - 1])
                prompt = last[:, None].astype(np.int64)
            trace.tokens.append(prompt)
        _keep(trace, k, states)
        before = states
        results, states = trace.step(k, before, folder / f"step{k}")
        if k not in trace.states:
            trace.drop(before)
        trace.results.append(results)
        winners = None
        if inputs.decoder.logits:
            winners = np.asarray(read_last_logits(inputs, results, k).argmax(axis=-1))
        trace.winners.append(winners)
        trace.ended.append(ended.copy())
        if inputs.find_prompt(k + 1) is None and winners is not None and inputs.file.eos:
            ended |= np.isin(winners, inputs.file.eos)
            if ended.all():
                break
    trace.states[trace.steps] = states
    return trace


def read_last_logits(inputs: LoopInputs, results: Records, number: int) -> Array:
    """Return the logits (batch, vocabulary) of the last token of each row in the mask."""
    logits = results[inputs.decoder.logits].array()
    logits = np.asarray(logits, np.float64)
    if logits.ndim < 3:
        return np.asarray(logits.reshape(inputs.batch, -1))
    if inputs.mask is not None and number == 0 and logits.shape[1] == inputs.mask.shape[1]:
        last = inputs.mask.shape[1] - 1 - inputs.mask[:, ::-1].argmax(axis=1)
        return np.asarray(logits[np.arange(len(logits)), last])
    return np.asarray(logits[:, -1])


def _keep(trace: Trace, number: int, states: Records) -> None:
    """Keep the states before step k; if all would be too much, twice the distance from then on.

    The inputs of step k itself stay on disk until it has run.
    """
    if number % trace.stride:
        return
    trace.states[number] = states
    size = measure_size(states) * len(trace.states)  # those before are no larger
    limit = min(MAX_BYTES, trace.reference.limit or MAX_BYTES)
    if size > limit and len(trace.states) > 2:
        trace.stride *= 2
        for j in [j for j in trace.states if j % trace.stride]:
            dropped = trace.states.pop(j)
            if j < number:
                trace.drop(dropped)


@frozen
class CandidateStep:
    """One step of a candidate.

    Attributes:
        k: The number of the step.
        made: Its outputs; empty after an error.
        error: The error that it raised, if any.
        raw: Its outputs without earlier states that stay.
    """

    k: int
    made: Records
    error: SubcutError | None = None
    raw: Records = field(default_factory=dict)


def follow(trace: Trace, run: Run, begin: int, end: int, folder: Path) -> Iterator[CandidateStep]:
    """Yield the candidate's steps `begin` … `end`, from the reference's state, up to an error.

    Files of a step are removed when the next but one is read.
    """
    decoder = trace.decoder
    states = trace.find_state_before(begin)
    for k in range(begin, end + 1):
        into = folder / f"step{k}"
        into.mkdir(parents=True)
        try:
            made = run(into, make_stems(decoder), trace.feeds(k, states))
            made = {name: record.rebase(into.resolve()) for name, record in made.items()}
        except SubcutError as e:
            yield CandidateStep(k, {}, e)
            return
        if missing := [name for name in decoder.graph.outputs if name not in made]:
            yield CandidateStep(
                k, {}, SubcutError(f"no output '{clean(missing[0])}'", code="loop.output-missing")
            )
            return
        raw = made
        made, states = end_step(decoder, made, states, into)
        yield CandidateStep(k, made, raw=raw)
        shutil.rmtree(folder / f"step{k - 2}", ignore_errors=True)


def measure_rounding(trace: Trace, end: int, precision: Precision, folder: Path) -> float:
    """Measure the error of step `end` if each value of each earlier state is rounded.

    It is the largest relative error of the results, with up to one rounding of each value in that
    precision: a lower bound, because values inside a step are not touched.

    Complexity: as many steps of the reference.

    Raises:
        ModelError: the reference cannot run a step.
    """
    states = trace.find_state_before(0)
    results = trace.results[0]
    for k in range(end + 1):
        into = folder / f"rounding{k}"
        into.mkdir(parents=True)
        moved = dict(states)
        for i, (name, record) in enumerate(states.items()):
            value = record.value()
            if isinstance(value, np.ndarray) and value.dtype.kind == "f":
                drawn = np.random.default_rng(k).uniform(-1, 1, value.shape)
                rounded = (value * (1 + precision.eps * drawn)).astype(value.dtype)
                text = format_tensor_type(record.dtype)
                moved[name] = write_value(record.name, rounded, into, f"s{i}", text)
        results, states = trace.step(k, moved, into)
        shutil.rmtree(folder / f"rounding{k - 1}", ignore_errors=True)
    pairs = ((trace.results[end][n].value(), record.value()) for n, record in results.items())
    return max((measure_relative_error(*pair) for pair in pairs), default=0.0)


def measure_relative_error(expected: Any, actual: Any) -> float:
    """Return the largest difference over the largest magnitude; infinity if shapes, NaN or
    infinities differ."""
    if isinstance(expected, list) or isinstance(actual, list) or expected is None or actual is None:
        return 0.0 if expected is actual else math.inf
    if expected.shape != actual.shape:
        return math.inf
    distance = measure_distance(expected, actual)
    if distance is None:
        return math.inf
    difference, magnitude = distance
    if magnitude:
        return difference / magnitude
    return math.inf if difference else 0.0
