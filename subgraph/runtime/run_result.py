"""The result of one candidate on one model, run once per sample: tensors, or the failure.

It is loaded from the store, or run now and stored.
"""

from __future__ import annotations

import errno
import filecmp
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import field, replace
from pathlib import Path
from typing import TypeAlias

from subgraph.documents import absent, from_json, to_json
from subgraph.errors import (
    BackendError,
    InputError,
    ModelError,
    OutOfTime,
    OutputError,
    Refused,
    SubcutError,
    Unreachable,
    UsageError,
    WorkerDied,
)
from subgraph.runtime.command_line import digest_contents
from subgraph.runtime.protocol import describe_process_end
from subgraph.runtime.stretches import lacks_memory
from subgraph.runtime.worker import Worker
from subgraph.storage import folders
from subgraph.storage.digest import digest
from subgraph.storage.store import Store, StoreEntry
from subgraph.storage.tensors import Record, Records, RecordTuple
from subgraph.types import Fields, StringMap, Strings, frozen
from subgraph.verdict import Signature, Status, Verdict

Feeds = Sequence[Records]  # per sample: records with absolute paths
MODEL = "cut"  # under which a worker holds what it runs
WRITTEN_BYTES = 1 << 20  # of a file that shows whether a folder can be written


@frozen
class Job:
    """A model that is to be loaded, and run once per sample.

    Attributes:
        model: The file of the model.
        feeds: The inputs of each sample, with absolute paths.
        outputs: The names of the requested tensors.
        into: The folder that these are written into.
        fresh: Whether the process must have run nothing before.
        options: Options of the backend's `load`; None for those of the candidate.
        passes: The number of runs of all samples, one after another in the same session.
    """

    model: Path
    feeds: Sequence[Sequence[Record]]
    outputs: Sequence[str]
    into: Path
    fresh: bool = False
    options: Fields | None = None
    passes: int = 1

    def relocate(self, folder: Path) -> Job:
        """Return the job with paths in a folder."""
        feeds = [[record.rebase(folder) for record in sample] for sample in self.feeds]
        return replace(self, model=folder / self.model, feeds=feeds, into=folder / self.into)


@frozen
class RunResult:
    """The result of a candidate on a model.

    Attributes:
        tensors: Records by name, per sample, without missing outputs. Files are absolute; until
            the result is stored, they are relative to the folder that was written into.
        others: Names of outputs that nobody requested, per sample.
        failure: The verdict without outputs, if there are no tensors.
        build: Seconds of the build.
        run: Seconds of the runs of all samples.
        stored: Whether it was found in the store and nothing was run.
        made: The time of the run, in seconds since 1970.
        sources: The digest of each file that a candidate in Python imported.
        ended: Whether its process did not survive it; not stored.
        later: The results of further passes of its session; empty if all bits are the same.
        number: The number of its pass in its session.
        first: The result of the first pass; None if this is the first.
    """

    tensors: tuple[Records, ...] = ()
    others: tuple[Strings, ...] = ()
    failure: Verdict | None = None
    build: float = 0.0
    run: float = 0.0
    stored: bool = False
    made: float = 0.0
    sources: StringMap = field(default_factory=dict)
    ended: bool = False
    later: tuple[RunResult, ...] = ()
    number: int = 1
    first: RunResult | None = None

    @property
    def files(self) -> Iterator[str]:
        """The files of all passes."""
        for one in (self, *self.later):
            for tensors in one.tensors:
                for record in tensors.values():
                    yield from record.files

    def get_pass(self, number: int) -> RunResult:
        """Return the result of a pass of the session; 1 is the first."""
        if number == 1 or not self.later:
            return self
        later = self.later[min(number - 2, len(self.later) - 1)]
        return replace(later, number=number, first=replace(self, later=()))

    def change(self, change: Callable[[RunResult], RunResult]) -> RunResult:
        """Return the result with a change made to each of its passes."""
        return replace(change(self), later=tuple(map(change, self.later)))

    def find_differing(self, other: RunResult) -> set[str]:
        """Return the tensors that only one of two runs has, or that differ in a bit or the type."""
        different = set()
        for one, two in zip(self.tensors, other.tensors, strict=True):
            different |= one.keys() ^ two.keys()
            different |= {
                name for name in one.keys() & two.keys() if not _equal(one[name], two[name])
            }
        return different

    def to_stored(self) -> StoredResult:
        """Return the result as the document that is stored or sent."""
        v = self.failure
        samples = zip(self.tensors, self.others, strict=True)
        return StoredResult(
            self.build,
            self.run,
            tuple(StoredSample(tuple(of.values()), others) for of, others in samples),
            StoredFailure(v.status, v.signature, v.why, v.process) if v else None,
            self.made,
            self.sources,
            tuple(one.to_stored() for one in self.later) or None,
        )


@frozen
class StoredSample:
    """The outputs of one sample, and the names of those that nobody requested."""

    tensors: RecordTuple
    others: Strings


@frozen
class StoredFailure:
    """A verdict without outputs."""

    status: Status
    signature: Signature | None
    why: str
    process: Fields


@frozen
class StoredResult:
    """A `RunResult` as JSON, with files relative to their folder."""

    build: float
    run: float
    samples: tuple[StoredSample, ...]
    failure: StoredFailure | None
    made: float = 0.0
    sources: StringMap = field(default_factory=dict)
    later: tuple[StoredResult, ...] | None = absent()


def _equal(first: Record, second: Record) -> bool:
    return (first.type_text, first.shapes) == (second.type_text, second.shapes) and all(
        a == b or filecmp.cmp(a, b, shallow=False)
        for a, b in zip(first.files, second.files, strict=True)
    )


def from_entry(entry: StoreEntry) -> RunResult:
    """Return the result that a store entry keeps, with absolute paths.

    Raises:
        InputError: The entry is damaged.
    """
    stored = from_json(StoredResult, entry.document, "a stored result")
    return replace(from_stored(stored, entry.folder), stored=True, sources={})


def from_stored(stored: StoredResult, folder: Path) -> RunResult:
    """Return the result that `to_stored` has written, with files in a folder."""
    verdict = None
    if f := stored.failure:
        verdict = Verdict(f.status, f.signature, f.why, (), f.process, stored.build, stored.run)
    return RunResult(
        tuple({r.name: r.rebase(folder) for r in sample.tensors} for sample in stored.samples),
        tuple(sample.others for sample in stored.samples),
        verdict,
        stored.build,
        stored.run,
        made=stored.made,
        sources=stored.sources,
        later=tuple(from_stored(one, folder) for one in stored.later or ()),
    )


def make_unresolved(why: str) -> RunResult:
    """Return the result of a run that did not happen."""
    return RunResult(failure=Verdict(Status.UNRESOLVED, None, why))


def run_model(worker: Worker, job: Job) -> RunResult:
    """Load a model, run it once per sample and pass, and write its outputs.

    A failure is a result as well.

    Raises:
        BackendError: The candidate cannot be used at all.
        OutputError: Its outputs cannot be written.
        OutOfTime: The worker's deadline came.
    """
    result = _run_model(worker, job)
    sources: StringMap = {}
    failed = any(one.failure for one in (result, *result.later))
    if not worker.is_late and (worker.alive or not failed):
        try:
            sources = worker.sources()
        except WorkerDied as e:  # just after its reply
            result = _fail(e, worker, result.build, result.run)
    return replace(result, made=time.time(), sources=sources)


def _run_model(worker: Worker, job: Job) -> RunResult:
    try:
        build = worker.load(MODEL, job.model, job.options or {})
    except (OutputError, OutOfTime):
        raise
    except SubcutError as e:
        return _fail(e, worker, 0.0, 0.0)
    first = last = _run_pass(worker, job, build)
    later = list[RunResult]()
    with suppress(OutOfTime):  # the result of the first pass stays
        while not last.failure and len(later) + 1 < job.passes:
            last = _run_pass(worker, job, build, f"p{len(later) + 1}-", first.tensors)
            later.append(last)
    is_same = all(one.tensors == first.tensors for one in later)
    if is_same:
        return first
    return replace(first, later=tuple(later))


def _run_pass(
    worker: Worker, job: Job, build: float, prefix: str = "", first: Sequence[Records] = ()
) -> RunResult:
    """Run each sample once.

    Args:
        worker: The process that has loaded the model.
        job: The model, its samples and outputs.
        build: Seconds that the build took.
        prefix: The beginning of the files' names.
        first: The tensors of the first pass, whose files serve for outputs of the same bits.
    """
    seconds = 0.0
    runs = []
    try:
        for k, sample in enumerate(job.feeds):
            stems = folders.number_stems(job.outputs, f"{prefix}s{k}-o")
            earlier = first[k].values() if first else ()
            runs.append(worker.run(MODEL, job.into, stems, sample, earlier))
            seconds += runs[-1].seconds
    except OutOfTime:
        raise
    except OutputError as e:
        if os.strerror(errno.ENOSPC) in e.what or not can_write(job.into):
            raise
        why = (
            f"the candidate's process could not hand over its values: {e.what.rpartition(': ')[2]}"
        )
        result = _fail(ModelError(why, code="worker.no-values"), worker, build, seconds)
        worker.close()  # its next run would fail as well
        return result
    except SubcutError as e:
        return _fail(e, worker, build, seconds)
    return RunResult(
        tuple(run.by_name for run in runs), tuple(run.others for run in runs), None, build, seconds
    )


def can_write(folder: Path) -> bool:
    """Return whether this process can write a file into a folder."""
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            return file.write(bytes(WRITTEN_BYTES)) == WRITTEN_BYTES
    except OSError:
        return False


def _fail(e: SubcutError, worker: Worker, build: float, run: float) -> RunResult:
    """Return the result of a candidate that raised an error.

    A refusal is unresolved, because many runtimes refuse a lone Shape; any other error fails.

    Raises:
        BackendError: The candidate cannot be used at all.
        UsageError: It has no such option.
    """
    status = Status.FAIL
    signature = Signature.THROWS
    process = describe_process_end(worker.process.last_lines())
    if isinstance(e, WorkerDied):
        signature = Signature(e.signature)
        process = e.process
    elif isinstance(e, BackendError | UsageError) and not isinstance(e, InputError):
        raise e
    elif isinstance(e, Refused):
        status = Status.UNRESOLVED
        signature = Signature.REFUSED
    elif lacks_memory(e):
        signature = Signature.MEMORY
    failure = Verdict(status, signature, e.what, (), process, build, run)
    return RunResult(failure=failure, build=build, run=run)


Parts: TypeAlias = Sequence[tuple[Sequence[int], RunResult]]


def merge(parts: Parts, samples: int) -> RunResult:
    """Return the results of groups of samples as one.

    Args:
        parts: The result of each group, with the numbers of its samples.
        samples: The number of all samples.
    """
    passes = max((len(part.later) for _, part in parts), default=0)
    merged = []
    for number in range(1, passes + 2):
        results = [part.get_pass(number) for _, part in parts]
        if failed := next((result for result in results if result.failure), None):
            merged.append(failed)  # of one part: that of all
            continue
        tensors: list[Records] = [{}] * samples
        others: list[Strings] = [()] * samples
        for (group, _), result in zip(parts, results, strict=True):
            for place, k in enumerate(group):
                tensors[k] = result.tensors[place]
                others[k] = result.others[place]
        build = sum(result.build for result in results)
        run = sum(result.run for result in results)
        stored = all(result.stored for result in results)
        made = min((result.made for result in results), default=0.0)
        merged.append(RunResult(tuple(tensors), tuple(others), None, build, run, stored, made))
    return replace(merged[0], later=tuple(merged[1:]))


def load_or_run(
    store: Store, keys: Sequence[str], run: Callable[[Path], RunResult]
) -> tuple[RunResult, str]:
    """Return the stored result of the first key that has one, else that of a new run; and its key.

    A new result is stored under `keys[0]`, or the key that follows from it if files have changed
    since. `run(folder)` writes tensors into `folder` and returns the result of `run_model`. If the
    store's disk is full, it is called again with another folder: a result that cannot be stored is
    still a result. If the machine that runs the candidate does not answer, the result is
    unresolved and not stored.

    Raises:
        OutputError: Not even a temporary folder can be written.
        SubcutError: Any error of `run`.
    """
    places = []
    for key in keys:
        place = key
        while (entry := store.get(place)) is not None:
            sources = entry.document.get("sources", {})
            now = {path: digest_contents(Path(path)) for path in sources}
            if now == sources:
                return from_entry(entry), place
            place = digest(place, now)  # a file that the candidate had imported was changed
        places.append(place)
    folder = store.new_folder()
    try:
        try:
            result = run(folder)
        except OutputError:
            folder = store.new_folder(after=OSError(errno.ENOSPC, "No space left on device"))
            result = run(folder)
    except Unreachable as e:  # nothing is known, so nothing is stored
        return make_unresolved(e.what), places[0]
    entry = store.put(places[0], to_json(result.to_stored()), folder)
    return replace(from_entry(entry), stored=False), places[0]


def list_keys(key: Callable[[bool], str], *, fresh: bool) -> list[str]:
    """Return the keys for `load_or_run`.

    A result of a fresh process serves every caller; that of a used process serves only callers that
    need no fresh one.

    Args:
        key: Returns the key of a result, for whether its process had run nothing before.
        fresh: Whether only a fresh process serves.
    """
    return [key(True)] if fresh else [key(False), key(True)]
