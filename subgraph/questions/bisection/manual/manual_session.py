"""A manual bisection on disk: the request, the tasks, and the answers.

manual-device/
    state.json   the request and the log: the only source. Replaced atomically, after every file
        that it refers to
    answers/3/   the outputs taken for task 3, an entry as those of the store
    todo/3/      what is to be run: see `manual.tasks`

A session is immutable: each command derives the next one and saves it. Everything else is computed
from the log again (`manual.advance`), so a kill at any moment loses nothing.

Below the session is its folder: locked while a command works on them, removed.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Final, Literal

from subgraph.documents import json_key, read_document, to_json
from subgraph.errors import InputError, ResultExists, UsageError
from subgraph.iterables import drop_repeats
from subgraph.log import log
from subgraph.precision import Precision
from subgraph.questions.bisection.manual import MAX_BATCH, tasks
from subgraph.questions.bisection.manual.outputs import TaskFolders
from subgraph.questions.bisection.manual.tasks import TaskFormat
from subgraph.runtime.inputs import Feeding, FeedingOptions
from subgraph.runtime.run_result import RunResult, from_entry
from subgraph.storage import folders, store_entry
from subgraph.storage.store import StoreEntry
from subgraph.system import Lock, flush
from subgraph.text import count
from subgraph.types import frozen, frozen_keywords
from subgraph.verdict import Signature, Status, Verdict

SCHEMA: Final = "subcut.manual-state/1"
DEVICE = "device"
STATE = "state.json"
ANSWERS = "answers"
TODO = "todo"
FOLDERS = ("inputs", "drawn", "recorded", ANSWERS, TODO)
WORDS = {
    "good": Verdict(Status.AGREE, None, "marked good by hand"),
    "bad": Verdict(Status.FAIL, Signature.MISMATCH, "marked bad by hand"),
    "skip": Verdict(Status.UNRESOLVED, Signature.REFUSED, "skipped by hand: it cannot be run"),
}
TAKEN = "taken"  # the word of an answer with outputs
COPIES = ("state-before.json", "state-damaged.json")  # which older versions wrote


@frozen
class ManualRequest:
    """The options of `subcut manual start`.

    Attributes:
        export: the form of the inputs, as `TaskFormat.parse` reads it.
        by_rewriting: whether no cut is handed out; the full model is rewritten at once.
    """

    export: str
    batch: int
    within: str
    criterion: str
    precision: Precision | None
    freeze: bool
    reference: str
    custom_ops: str
    feeding: FeedingOptions
    command: str
    notes: Sequence[str]
    force: bool
    by_rewriting: bool = False


@frozen
class ModelIdentity:
    """The model's absolute path, and the digest of its structure and weights."""

    path: str
    digest: str


@frozen
class LoggedTask:
    """A task that was handed out.

    Attributes:
        what: the task in words.
        round: the number of the round in which it was handed out.
        needed: whether the search waits for it; otherwise it is only likely to be requested next.
    """

    number: int
    key: str
    what: str
    round: int = json_key("trip")
    needed: bool = True


@frozen
class LoggedAnswer:
    """The answer to a task.

    Attributes:
        word: a key of `WORDS`, or `TAKEN`.
        command: the number of the command that recorded it; `undo` reverts all answers of one
            command.
    """

    number: int
    word: str
    when: str
    command: int = json_key("step")


@frozen_keywords
class SavedSession:
    """The document of a session.

    Attributes:
        fed: digest of the inputs; "" in sessions of older versions.
        tasks: every task that was handed out.
        open: numbers of the unanswered ones, the one needed first in front.
        shown: number of steps of the search that were shown.
        settled: whether the search was run over the whole log.
    """

    schema: Literal["subcut.manual-state/1"] = SCHEMA
    request: ManualRequest
    model: ModelIdentity
    fed: str = ""
    tasks: Sequence[LoggedTask] = json_key("asked")
    log: Sequence[LoggedAnswer]
    open: Sequence[int]
    shown: int = json_key("told")
    settled: bool


@frozen_keywords
class Session(SavedSession):
    """A session and its folder."""

    folder: Path

    @classmethod
    def read(cls, folder: Path) -> Session:
        """Read the session in a folder.

        Raises:
            UsageError: it is damaged.
        """
        hint = "put back a copy of it; or subcut manual reset, and start again"
        saved = read_document(folder / STATE, SavedSession, hint)
        session = cls(folder=folder, **{f.name: getattr(saved, f.name) for f in fields(saved)})
        try:
            request = session.request
            if not 1 <= request.batch <= MAX_BATCH:
                raise ValueError("batch is out of bounds")
            TaskFormat.parse(request.export)
            for number in (*session.open, *(answer.number for answer in session.log)):
                session.task(number)
            for answer in session.log:
                if answer.word != TAKEN and answer.word not in WORDS:
                    raise ValueError(f"{answer.word} is not an answer")
        except (ValueError, KeyError) as e:
            raise UsageError(
                f"{folder / STATE} is damaged: {type(e).__name__} {e}", hint, code="manual.damaged"
            ) from e
        return session

    def save(self) -> Session:
        """Write the state atomically, also if the power fails; return the session.

        Raises:
            OutputError: it cannot be written.
        """
        document = to_json(self)
        del document["folder"]
        aside = self.folder / f".{STATE}.new"
        try:
            with aside.open("w", encoding="utf-8") as file:
                json.dump(document, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(self.folder / STATE)
            flush(self.folder / STATE)
            flush(self.folder)
        except OSError as e:
            raise folders.make_write_error(self.folder, e) from e
        return self

    @property
    def origin(self) -> str:
        """The file that names what the session runs."""
        return str((self.folder / STATE).resolve())

    @property
    def feeding(self) -> Feeding:
        """The inputs that the user feeds."""
        return Feeding(**vars(self.request.feeding))

    @property
    def todo(self) -> Path:
        """The folder of the tasks."""
        return self.folder / TODO

    @property
    def rounds(self) -> int:
        """Number of rounds: tasks that were run on the device together."""
        return len({self.task(answer.number).round for answer in self.log})

    def task(self, number: int) -> LoggedTask:
        """Find the task of a number.

        Raises:
            UsageError: no task has it.
        """
        task = next((t for t in self.tasks if t.number == number), None)
        if task is None:
            known = f"open: {', '.join(map(str, self.open))}; " if self.open else ""
            raise UsageError(
                f"no task {number}",
                f"{known}subcut manual next lists the open tasks",
                code="manual.unknown-task",
            )
        return task

    def place_of(self, number: int) -> Path:
        """Return the folder of the outputs that were taken for a task."""
        return (self.folder / ANSWERS / str(number)).resolve()

    def results(self) -> dict[str, RunResult]:
        """Read the recorded results, by key of the task; a result with damaged outputs is omitted,
        with a warning."""
        results = {}
        for answer in self.log:
            key = self.task(answer.number).key
            if answer.word != TAKEN:
                results[key] = RunResult(failure=WORDS[answer.word])
                continue
            place = self.place_of(answer.number)
            try:
                results[key] = from_entry(StoreEntry(store_entry.read_verified(place, key), place))
            except (store_entry.DamagedEntryError, OSError, ValueError, InputError) as e:
                number = answer.number
                log.warning("the outputs of task %d are damaged (%s): it is open again", number, e)
        return results

    def restrict_to(self, results: Mapping[str, RunResult]) -> Session:
        """Return the session without answers that have no result."""
        return replace(
            self, log=[answer for answer in self.log if self.task(answer.number).key in results]
        )


# ------------------------------------------------------------ answers


@frozen
class Taken:
    """Outputs that were taken.

    Attributes:
        session: the session with the new answers.
        numbers: the numbers of the answered tasks.
        problems: why others, of which something came, stay open: a file is missing, or of another
            shape, type or size.
    """

    session: Session
    numbers: Sequence[int]
    problems: Mapping[int, InputError]


def answer(session: Session, numbers: Sequence[int], word: str) -> Session:
    """Answer tasks without outputs; no number: the only open one.

    Raises:
        UsageError: no task is open, or several are; a task was answered before.
    """
    if not numbers and len(_require_open(session)) > 1:
        raise UsageError(
            f"several tasks are open: {', '.join(map(str, session.open))}",
            "name one",
            code="manual.ambiguous-task",
        )
    numbers = drop_repeats(numbers) or session.open[:1]
    for number in numbers:
        _require_unanswered(session, number)
    return _add_to_log(session, numbers, word)


def _require_open(session: Session) -> Sequence[int]:
    if not session.open:
        raise UsageError(
            "no task is open",
            "subcut manual next shows the state of the search",
            code="manual.no-open-task",
        )
    return session.open


def _require_unanswered(session: Session, number: int) -> None:
    session.task(number)
    for earlier in session.log:
        if earlier.number == number:
            raise UsageError(
                f"task {number} was answered: {earlier.word}, {earlier.when}",
                "subcut manual undo takes it back",
                code="manual.already-answered",
            )


def _add_to_log(session: Session, numbers: Sequence[int], word: str) -> Session:
    command = max((earlier.command for earlier in session.log), default=0) + 1
    when = time.strftime("%Y-%m-%d %H:%M:%S")
    answers = [LoggedAnswer(number, word, when, command) for number in numbers]
    return replace(session, log=[*session.log, *answers], settled=False).save()


def take(session: Session, source: Path | None, number: int | None) -> Taken:
    """Take outputs from `source`, or from the folders of the tasks.

    Raises:
        InputError: no task was answered.
    """
    if number is not None:
        _require_unanswered(session, number)
    numbers = _require_open(session) if number is None else [number]
    is_only = len(numbers) == 1
    places = {
        n: TaskFolders.find(tasks.list_folders(session.todo, n), n, source, is_only=is_only)
        for n in numbers
    }
    taken = []
    problems = {}
    for n, place in places.items():
        try:
            if place.are_complete():
                (session.folder / ANSWERS).mkdir(exist_ok=True)
                with folders.write_aside(session.folder / ANSWERS / str(n)) as room:
                    result = place.read(room)
                    files = {
                        name: store_entry.compute_checksum(room / name)
                        for name in store_entry.list_names(room)
                    }
                    store_entry.write(
                        room, session.task(n).key, files, json.dumps(to_json(result.to_stored()))
                    )
                    for path in (*room.iterdir(), room):
                        flush(path)
                taken.append(n)
        except InputError as e:
            problems[n] = e
    if not taken:
        raise next(iter(problems.values()), places[numbers[0]].no_outputs())
    return Taken(_add_to_log(session, taken, TAKEN), taken, problems)


def undo(session: Session) -> tuple[Session, list[int]]:
    """Remove the answers of the last command; return also the numbers of the tasks that are open
    again.

    Raises:
        UsageError: there are no answers.
    """
    if not session.log:
        raise UsageError(
            "no answers yet", "subcut manual next lists the tasks", code="manual.nothing-to-undo"
        )
    last = session.log[-1].command
    removed = [answer.number for answer in session.log if answer.command == last]
    kept = [answer for answer in session.log if answer.command != last]
    session = replace(session, log=kept, shown=0, settled=False).save()
    for number in removed:
        shutil.rmtree(session.place_of(number), ignore_errors=True)
    return session, removed


def find_folder(parent: Path) -> Path:
    """Return the folder of a session."""
    return parent / f"manual-{DEVICE}"


def find(parent: Path) -> Path:
    """Find the folder of the session.

    Raises:
        UsageError: It does not exist.
    """
    folder = find_folder(parent)
    if not (folder / STATE).is_file():
        raise UsageError(
            f"no manual session in {parent}",
            "subcut manual start MODEL; -o names the folder",
            code="manual.no-session",
        )
    return folder


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock a session in the block.

    Raises:
        UsageError: another command works on this session.
    """
    try:
        lock = Lock(folder, wait=False)
    except BlockingIOError:
        raise UsageError(
            f"another command works on {folder}",
            "wait until it is done",
            code="manual.locked",
        ) from None
    with lock:
        yield


def require_none(folder: Path, force: bool) -> None:
    """Require that a folder holds no session, unless `force`.

    Raises:
        ResultExists: it holds one.
    """
    if not (folder / STATE).exists() or force:
        return
    raise ResultExists(
        f"{folder} holds a manual session: {describe_progress(folder)}",
        "subcut manual next goes on; -o FOLDER begins another; --force loses these answers"
        " and begins again",
        code="manual.session-exists",
    )


def describe_progress(folder: Path) -> str:
    """Return the progress of a session in words."""
    try:
        session = Session.read(folder)
    except UsageError:
        return "its state is damaged"
    return f"{count(session.log, 'answer')} so far, {count(session.open, 'task')} open"


def clear(folder: Path) -> list[Path]:
    """Remove a session, its state first; return the folders of tasks that stay, because they hold
    other files."""
    for file in (STATE, *COPIES):
        (folder / file).unlink(missing_ok=True)
    left = [place for place in sorted((folder / TODO).glob("*")) if not tasks.remove(place)]
    for name in FOLDERS:
        if name != TODO or not left:
            shutil.rmtree(folder / name, ignore_errors=True)
    return left
