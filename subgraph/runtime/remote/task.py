"""One task of a cluster: a run of a candidate in a child process, with the limits of a run on one
machine.

A task is JSON and bytes both ways. It never raises and never crashes its worker: an error is a
result. Files go by path if the worker sees the same ones, which a file with a random content
shows; else by content, large ones once. The same file is the leash: a run whose file is gone, or is
held by nobody any more, is not wanted and ends.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import platform
import secrets
import threading
from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from functools import cache
from pathlib import Path

from subgraph.documents import from_json, to_json
from subgraph.errors import BackendError, SubcutError
from subgraph.iterables import flatten
from subgraph.runtime.candidate import Candidate
from subgraph.runtime.protocol import BackendInfo
from subgraph.runtime.run_result import Job, StoredResult
from subgraph.runtime.worker_pool import Cancel, Workers
from subgraph.storage import folders
from subgraph.storage.digest import digest, digest_file
from subgraph.system import Lock
from subgraph.types import Fields, StringMap, Strings, frozen
from subgraph.version import __version__

FileMap = Mapping[str, bytes]  # contents of files by digest, or by name
POLL_SECONDS = 0.3  # seconds between two looks whether a run is still wanted

_lock = threading.Lock()
_pools: dict[str, Workers] = {}


@frozen
class TaskVersion:
    """The part of a task that every version of subcut can read: the version of the sender."""

    version: str


@frozen
class ClusterTask(TaskVersion):
    """A request to a worker of a cluster: to run a job, or to describe the backend.

    Attributes:
        candidate: The candidate, without its executor.
        code: The digest of the code of the candidate.
        job: The run; None to describe the backend.
        token: The token of the leash of the run.
        packed: If files go by content: the job with paths in the worker's folder; else None.
        files: The digest of each file of `packed`, by its place.
    """

    candidate: Candidate
    code: str
    job: Job | None = None
    token: str = ""
    packed: Job | None = None
    files: StringMap = field(default_factory=dict)


@frozen
class TaskReply:
    """The reply to a task.

    Attributes:
        error: The error that the worker reports, as `SubcutError.to_json` returns it, if any.
        about: The properties of the backend.
        result: The result of the job.
        ended: Whether the process of the candidate did not survive the job.
        by_content: Whether the worker does not see the files of the job.
        missing: Digests of the files that the worker lacks.
    """

    error: Fields | None = None
    about: BackendInfo | None = None
    result: StoredResult | None = None
    ended: bool = False
    by_content: bool = False
    missing: Strings = ()


def perform(request: str, content: FileMap) -> tuple[str, FileMap]:
    """Perform a task.

    Args:
        request: A `ClusterTask`, as JSON.
        content: Files by digest.

    Returns:
        A `TaskReply`, as JSON, and output files by name if they go by content.
    """
    try:
        reply, files = _perform(json.loads(request), content)
    except SubcutError as e:
        reply = TaskReply(e.to_json())
        files = {}
    return json.dumps(to_json(reply)), files


def _perform(document: object, content: FileMap) -> tuple[TaskReply, FileMap]:
    here = platform.node() or "a worker"
    sender = from_json(TaskVersion, document).version
    if sender != __version__:
        raise BackendError(
            f"subcut {__version__} runs on {here}, {sender} on this machine",
            "install the same version on both",
            code="executor.other-version",
        )
    task = from_json(ClusterTask, document)
    candidate = task.candidate
    if candidate.identity("")["code"] != task.code:
        raise BackendError(
            f"the files of candidate {candidate.name} differ on {here}, or are not there",
            "put them there under the same path, or use a shared file system",
            code="executor.other-files",
        )
    key = digest(json.dumps(to_json(candidate), default=str))
    with _lock:  # its processes are kept from task to task
        if key not in _pools:
            _pools[key] = Workers(candidate)
            atexit.register(_pools[key].close)
        workers = _pools[key]
    job = task.job
    if job is None:
        return TaskReply(about=workers.about()), {}
    if find_leash(job.into, task.token).exists() and has_files(job):
        with _run_while_wanted(job, task.token):
            return _run(workers, job), {}
    if task.packed is None:
        return TaskReply(by_content=True), {}
    with folders.make_temporary("subcut-task") as folder:
        if missing := _place(task.files, content, folder):
            return TaskReply(missing=tuple(missing)), {}
        job = task.packed.relocate(folder)
        job.into.mkdir()
        with _make_cancellable(task.token):
            reply = _run(workers, job)
        return reply, {path.name: path.read_bytes() for path in job.into.iterdir()}


def _run(workers: Workers, job: Job) -> TaskReply:
    result = workers.run(job)
    return TaskReply(result=result.to_stored(), ended=result.ended)


def has_files(job: Job) -> bool:
    """Return whether this machine has the model and its inputs."""
    files = flatten(record.files for record in flatten(job.feeds))
    return all(Path(file).is_file() for file in (str(job.model), *files))


# ------------------------------------------------------------ the leash


@contextlib.contextmanager
def hold_leash(folder: Path) -> Iterator[str]:
    """Hold a file with a random name as long as this process waits for a run; yield its token."""
    token = secrets.token_hex(16)
    file = find_leash(folder, token)
    file.touch()
    try:
        with Lock(file):
            yield token
    finally:
        file.unlink(missing_ok=True)


def find_leash(folder: Path, token: str) -> Path:
    """Return the leash of the run that writes into a folder."""
    return folder / f".leash-{token}"


_running: dict[str, Cancel] = {}


def end(token: str) -> None:
    """End the run with this token, if it runs in this process."""
    with _lock:
        cancel = _running.get(token)
    if cancel:
        cancel.set()


@contextlib.contextmanager
def _make_cancellable(token: str) -> Iterator[Cancel]:
    with Cancel() as cancel:
        with _lock:
            _running[token] = cancel
        try:
            yield cancel
        finally:
            with _lock:
                _running.pop(token, None)


@contextlib.contextmanager
def _run_while_wanted(job: Job, token: str) -> Iterator[None]:
    """End the run of this block once nobody wants it."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(POLL_SECONDS):
            if not _is_held(find_leash(job.into, token)):
                cancel.set()
                return

    with _make_cancellable(token) as cancel:
        threading.Thread(target=watch, daemon=True).start()
        try:
            yield
        finally:
            over.set()


def _is_held(file: Path) -> bool:
    """Return whether the file exists and a process holds its lock. A killed owner holds none."""
    try:
        with Lock(file, wait=False, shared=True) as lock:
            return not lock.works  # a file system without locks
    except BlockingIOError:
        return True
    except OSError:
        return False


# ------------------------------------------------------------ by content


def pack(job: Job) -> tuple[Job, dict[str, Path]]:
    """Return a job with paths in the worker's folder, and the files that belong there."""
    model = job.model
    places = {
        f"model/{path.relative_to(model.parent).as_posix()}": path
        for path in model.parent.rglob("*")
        if path.is_file()
    }
    feeds = []
    for k, sample in enumerate(job.feeds):
        records = []
        for i, record in enumerate(sample):
            names = []
            for j, file in enumerate(map(Path, record.files)):
                names.append(f"feeds/{k}-{i}-{j}{file.suffix}")
                places[names[-1]] = file
            records.append(replace(record, files=tuple(names)))
        feeds.append(records)
    return replace(job, model=Path("model", model.name), feeds=feeds, into=Path("out")), places


@cache
def _make_store() -> Path:
    """Return a folder for large files, by digest, that lives as long as this process."""
    return folders.make_lasting("subcut-content")


def _place(files: StringMap, content: FileMap, folder: Path) -> list[str]:
    """Put files into a folder by their names; return the digests of those that are missing.

    Raises:
        BackendError: A name leads out of the folder, or a content is another one.
    """
    store = _make_store()
    for key, data in content.items():
        part = store / f"{key}.{threading.get_ident()}"
        part.write_bytes(data)
        if digest_file(part) != key:
            raise BackendError(
                "a file arrived damaged", "the same command again", code="executor.file-damaged"
            )
        part.replace(store / key)
    missing = sorted({key for key in files.values() if not (store / key).is_file()})
    for name, key in {} if missing else files.items():
        target = folder / name
        if folders.is_outside(name):
            raise BackendError(
                f"a file's name leads out of its folder: {name}", code="executor.unsafe-name"
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        # A symbolic link would not do: onnxruntime follows none out of the model's folder.
        folders.link_or_copy(store / key, target)
    return missing
