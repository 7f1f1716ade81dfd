"""The result of one candidate on one model, run once per sample: tensors, or the failure.

It is loaded from the store, or run now and stored.
"""

from __future__ import annotations

import errno
import filecmp
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from pathlib import Path

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
from subgraph.runtime.command_line import contents
from subgraph.runtime.protocol import process_end
from subgraph.runtime.stretches import lacks_memory
from subgraph.runtime.worker import Worker
from subgraph.storage.digest import digest
from subgraph.storage.store import Store, StoreEntry
from subgraph.storage.tensors import Record, Records
from subgraph.types import Fields, JsonObject, StringMap, Strings, frozen
from subgraph.verdict import Signature, Status, Verdict

Feeds = Sequence[Records]  # per sample: records with absolute paths
MODEL = "cut"  # under which a worker holds what it runs
WRITTEN_BYTES = 1 << 20  # of a file that shows whether a folder can be written


@frozen
class Job:
    """A model that is to be loaded, and run once per sample.

    Attributes:
        feeds: per sample, its inputs, with absolute paths. outputs: names of the tensors that are
            wanted.
        into: the folder that these are written into.
        fresh: in a process that has run nothing before.
        options: of the backend's `load`; None for those of the candidate.
        passes: how many times all samples are run, one pass behind the other, in the one session.
    """

    model: Path
    feeds: Sequence[Sequence[Record]]
    outputs: Sequence[str]
    into: Path
    fresh: bool = False
    options: Fields | None = None
    passes: int = 1

    def within(self, folder: Path) -> Job:
        """The same job, whose paths are relative to this folder."""
        feeds = [[record.within(folder) for record in sample] for sample in self.feeds]
        return replace(self, model=folder / self.model, feeds=feeds, into=folder / self.into)


@frozen
class RunResult:
    """The result of a candidate on a model.

    Attributes:
        tensors: per sample, records by name; missing outputs are absent. Files are absolute, or
            relative to the folder that was written into as long as the result is not stored.
        others: per sample, names of outputs that it gave and nobody requested.
        failure: why there are no tensors: a verdict without outputs.
        build, run: seconds; `run` over all samples.
        stored: it was found in the store, nothing was run.
        made: when it was run, in seconds since 1970.
        sources: files that the candidate imported, where it is a Python file: path → digest.
        ended: its process did not survive it; not stored.
        later: what further passes of its session gave, in their order; empty where they gave the
            same bits.
        number: of its pass in its session. first: what the first pass gave, where this is a later
            one.
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

    def nth(self, number: int) -> RunResult:
        """Return the result of a pass of the session; 1 is the first."""
        if number == 1 or not self.later:
            return self
        later = self.later[min(number - 2, len(self.later) - 1)]
        return replace(later, number=number, first=replace(self, later=()))

    def changed(self, change: Callable[[RunResult], RunResult]) -> RunResult:
        """The result with a change made to each of its passes."""
        return replace(change(self), later=tuple(map(change, self.later)))

    def differing(self, other: RunResult) -> set[str]:
        """Names of the tensors that only one of two runs gave, or that differ in type, shape or any
        bit."""
        different: set[str] = set()
        for one, two in zip(self.tensors, other.tensors, strict=True):
            different |= one.keys() ^ two.keys()
            different |= {
                name for name in one.keys() & two.keys() if not _equal(one[name], two[name])
            }
        return different

    def to_json(self) -> JsonObject:
        """The document that a store entry keeps; `from_entry` reads it."""
        return dict(to_json(self.to_stored()))

    def to_stored(self) -> StoredResult:
        """Return the result as the document that is stored or sent."""
        v = self.failure
        samples = zip(self.tensors, self.others, strict=True)
        later = tuple(one.to_stored() for one in self.later)
        return StoredResult(
            self.build,
            self.run,
            tuple(StoredSample(tuple(of.values()), others) for of, others in samples),
            StoredFailure(v.status, v.signature, v.why, v.process) if v else None,
            self.made,
            self.sources,
            later or None,
        )


@frozen
class StoredSample:
    """The outputs of one sample, and the names of those that were not asked for."""

    tensors: tuple[Record, ...]
    others: Strings


@frozen
class StoredFailure:
    """A verdict without outputs."""

    status: Status
    signature: Signature | None
    why: str
    process: Mapping[str, object]


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


def _equal(one: Record, other: Record) -> bool:
    return (one.type_text, one.shapes) == (other.type_text, other.shapes) and all(
        a == b or filecmp.cmp(a, b, shallow=False)
        for a, b in zip(one.files, other.files, strict=True)
    )


def from_entry(entry: StoreEntry) -> RunResult:
    """The result that a store entry keeps, with absolute paths.

    Raises:
        InputError: The entry is damaged.
    """
    stored = from_json(StoredResult, entry.document, "a stored result")
    return replace(within(from_stored(stored), entry.folder), stored=True, sources={})


def within(result: RunResult, folder: Path) -> RunResult:
    """The result, whose files are relative, with paths in this folder."""

    def placed(one: RunResult) -> RunResult:
        return replace(
            one,
            tensors=tuple(
                {n: r.within(folder) for n, r in sample.items()} for sample in one.tensors
            ),
        )

    return result.changed(placed)


def from_stored(stored: StoredResult) -> RunResult:
    """Return the result that `to_stored` has written, with files relative to their folder."""
    verdict = None
    if f := stored.failure:
        verdict = Verdict(f.status, f.signature, f.why, (), f.process, stored.build, stored.run)
    tensors = tuple({record.name: record for record in sample.tensors} for sample in stored.samples)
    others = tuple(sample.others for sample in stored.samples)
    later = tuple(map(from_stored, stored.later or ()))
    return RunResult(
        tensors,
        others,
        verdict,
        stored.build,
        stored.run,
        made=stored.made,
        sources=stored.sources,
        later=later,
    )


def unresolved(why: str) -> RunResult:
    """The result of what was not run: nothing is known of the candidate."""
    return RunResult(failure=Verdict(Status.UNRESOLVED, None, why))


def run_model(worker: Worker, job: Job) -> RunResult:
    """Load a model, run it once per sample and pass, and write its outputs. A failure is a result
    as well.

    Raises:
        BackendError: the candidate cannot be used at all. OutputError: its outputs cannot be
            written.
        OutOfTime: the worker's deadline came.
    """
    result = _run_model(worker, job)
    sources: StringMap = {}
    failed = any(one.failure for one in (result, *result.later))
    if not worker.is_late and (worker.alive or not failed):
        try:
            sources = worker.sources()
        except WorkerDied as e:  # just after its answer
            failure = _failure(e, worker, result.build, result.run)
            result = RunResult(failure=failure, build=result.build, run=result.run)
    return replace(result, made=time.time(), sources=sources)


def _run_model(worker: Worker, job: Job) -> RunResult:
    build = 0.0
    try:
        build = worker.load(MODEL, job.model, job.options or {})
    except (OutputError, OutOfTime):
        raise
    except SubcutError as e:
        return RunResult(failure=_failure(e, worker, build, 0.0), build=build)
    first = _run_pass(worker, job, build)
    later = list[RunResult]()
    with suppress(OutOfTime):  # what is known of the first pass stays known
        while not (first, *later)[-1].failure and len(later) + 1 < job.passes:
            later.append(_run_pass(worker, job, build, len(later) + 2, first.tensors))
    return replace(
        first, later=tuple(later) if any(one.tensors != first.tensors for one in later) else ()
    )


def _run_pass(
    worker: Worker,
    job: Job,
    build: float,
    number: int = 1,
    first: Sequence[Records] = (),
) -> RunResult:
    """Run each sample once. A later pass keeps the files that the first one wrote, where it gives
    the same bits."""
    seconds = 0.0
    runs = []
    prefix = f"p{number - 1}-" if first else ""  # of the files' names
    try:
        for k, sample in enumerate(job.feeds):
            stems = {n: f"{prefix}s{k}-o{i}" for i, n in enumerate(job.outputs)}
            runs.append(
                worker.run(MODEL, job.into, stems, sample, first[k].values() if first else ())
            )
            seconds += runs[-1].seconds
    except OutOfTime:
        raise
    except OutputError as e:
        if os.strerror(errno.ENOSPC) in e.what or not can_write(job.into):
            raise
        why = (
            f"the candidate's process could not hand over its values: {e.what.rpartition(': ')[2]}"
        )
        failure = _failure(ModelError(why, code="worker.no-values"), worker, build, seconds)
        worker.close()  # its next run would fail as well
        return RunResult(failure=failure, build=build, run=seconds)
    except SubcutError as e:
        return RunResult(failure=_failure(e, worker, build, seconds), build=build, run=seconds)
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


def _failure(e: SubcutError, worker: Worker, build: float, run: float) -> Verdict:
    """The verdict on a candidate that raised an error.

    Refused is not a failure of its own (a lone Shape is refused by many); any other one is.

    Raises:
        BackendError: the candidate cannot be used at all. UsageError: it has no such option.
    """
    if isinstance(e, WorkerDied):
        return Verdict(Status.FAIL, Signature(e.signature), e.what, (), e.process, build, run)
    if isinstance(e, BackendError) or (isinstance(e, UsageError) and not isinstance(e, InputError)):
        raise e
    process = process_end(worker.last_lines())
    if isinstance(e, Refused):
        return Verdict(Status.UNRESOLVED, Signature.REFUSED, e.what, (), process, build, run)
    signature = Signature.MEMORY if lacks_memory(e) else Signature.THROWS
    return Verdict(Status.FAIL, signature, e.what, (), process, build, run)


def merge(parts: Sequence[tuple[Sequence[int], RunResult]], samples: int) -> RunResult:
    """The results of groups of samples as one; each part comes with the numbers of its samples."""
    passes = max((len(part.later) for _, part in parts), default=0)
    first = _merge([(group, replace(part, later=())) for group, part in parts], samples)
    later = [
        _merge([(group, part.nth(n + 2)) for group, part in parts], samples) for n in range(passes)
    ]
    return replace(first, later=tuple(later))


def _merge(parts: Sequence[tuple[Sequence[int], RunResult]], samples: int) -> RunResult:
    """A pass of all parts; a failure of one is that of all."""
    if failed := next((part for _, part in parts if part.failure), None):
        return failed
    tensors: list[Records] = [{}] * samples
    others: list[Strings] = [()] * samples
    for group, part in parts:
        for place, k in enumerate(group):
            tensors[k] = part.tensors[place]
            others[k] = part.others[place]
    build = sum(part.build for _, part in parts)
    run = sum(part.run for _, part in parts)
    made = min((part.made for _, part in parts), default=0.0)
    return RunResult(
        tuple(tensors), tuple(others), None, build, run, all(part.stored for _, part in parts), made
    )


def load_or_run(
    store: Store, keys: Sequence[str], run: Callable[[Path], RunResult]
) -> tuple[RunResult, str]:
    """The result under the first of `keys` that the store has, else that of a new run; and the key
    that it has.

    A new result is stored under `keys[0]`, or the key that follows from it where files have changed
    since. `run(folder)` writes tensors into `folder` and returns what `run_model` does. Where the
    store's disk is full, it is called again with another folder: a result that cannot be stored is
    still a result. Where the machine that runs the candidate does not answer, the result is
    unresolved and not stored.

    Raises:
        OutputError: not even a temporary folder can be written. What `run` raises.
    """
    places = []
    for key in keys:
        entry, place = _find(store, key)
        if entry is not None:
            return from_entry(entry), place
        places.append(place)
    folder = store.new_folder()
    try:
        try:
            result = run(folder)
        except OutputError:
            folder = store.new_folder(after=OSError(errno.ENOSPC, "No space left on device"))
            result = run(folder)
    except Unreachable as e:  # nothing is known, so nothing is stored
        return unresolved(e.what), places[0]
    return replace(
        from_entry(store.put(places[0], result.to_json(), folder)), stored=False
    ), places[0]


def _find(store: Store, key: str) -> tuple[StoreEntry | None, str]:
    """The entry under a key that is good still, and its key; without one, the key under which a new
    one belongs.

    An entry is not good once a file that the candidate had imported has changed; the result for the
    new contents stands under a key that follows from the old key and these contents.
    """
    while (entry := store.get(key)) is not None:
        sources = entry.document.get("sources", {})
        now = {path: contents(Path(path)) for path in sources}
        if now == sources:
            return entry, key
        key = digest(key, now)
    return None, key


def keys_to_try(key: Callable[[bool], str], *, fresh: bool) -> list[str]:
    """Keys for `load_or_run`, where `key(fresh)` names a result by whether its process had run
    nothing before.

    A result of a fresh process serves every caller; that of a used process serves only callers who
    do not ask for a fresh one.
    """
    return [key(True)] if fresh else [key(False), key(True)]
