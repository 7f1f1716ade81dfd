"""The state of a manual bisection on disk: its tasks, and a log of the answers.

manual-NAME/
    state.json   the request and the log: the only source. Replaced atomically, after every file
        that it refers to
    inputs/ drawn/   values fed to the model, and drawn by its random nodes, when the session began
    recorded/    the model's outputs in the recording with which it began
    answers/3/   the outputs taken for task 3, with checksums, in the model's type and layout
    todo/3/      what is to be run: see `manual.tasks`

Insight: everything else is made from the log again (`manual.advance`), so a kill at any moment
loses nothing.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from subgraph.bisection.manual import results, tasks
from subgraph.bisection.manual.records import (
    MAX_BATCH,
    MAX_REPEAT,
    OWN_FILE,
    FedSample,
    LoggedAnswer,
    LoggedTask,
    ManualRequest,
    ModelIdentity,
    RecordedEvidence,
)
from subgraph.bisection.manual.tasks import TaskFormat
from subgraph.documents import absent, keyed, read_document, to_json
from subgraph.errors import InputError, UsageError
from subgraph.runtime.inputs import Feeding
from subgraph.runtime.run_result import RunResult, from_entry
from subgraph.storage import folders, store_entry
from subgraph.storage.store import StoreEntry
from subgraph.system import flush
from subgraph.text import clean, count
from subgraph.verdict import Signature, Status, Verdict

log = logging.getLogger("subcut")

SCHEMA: Final = "subcut.manual-state/1"
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


@dataclass(kw_only=True)
class SavedState:
    """A session as it lies on disk.

    Attributes:
        samples: values fed when the session began.
        tasks: every task ever handed out. open: numbers of the unanswered ones, the one needed
            first in front.
        shown: steps of the search that were shown. settled: the search was run over the whole log.
        recorded: what a recording told when the session began.
    """

    schema: Literal["subcut.manual-state/1"] = SCHEMA
    request: ManualRequest
    model: ModelIdentity
    samples: list[FedSample]
    tasks: list[LoggedTask] = keyed("asked")
    log: list[LoggedAnswer]
    open: list[int]
    shown: int = keyed("told")
    settled: bool
    recorded: RecordedEvidence | None = absent()


@dataclass(kw_only=True)
class ManualState(SavedState):
    """A session and its folder."""

    folder: Path

    # ------------------------------------------------------------ on disk

    @classmethod
    def read(cls, folder: Path) -> ManualState:
        """
        Raises:
            UsageError: the state is damaged.
        """
        hint = "put back a copy of it; or subcut manual reset, and start anew"
        state = cls(folder=folder, **vars(read_document(folder / STATE, SavedState, hint)))
        try:
            state._check()
        except (ValueError, KeyError) as e:
            what = f"{clean(str(folder / STATE))} is damaged: {type(e).__name__} {clean(str(e))}"
            raise UsageError(what, hint, code="manual.damaged") from e
        return state

    def _check(self) -> None:
        """
        Raises:
            ValueError, KeyError, UsageError: the parts of the state do not fit each other.
        """
        for sample in self.samples:
            held = {"origins": sample.origins, "value": {record.name for record in sample.tensors}}
            for what, known in held.items():
                if missing := [record.name for record in sample.fed if record.name not in known]:
                    raise KeyError(f"{what} of {missing[0]}")
        request = self.request
        outputs = self.recorded.outputs if self.recorded else ()
        if not (1 <= request.batch <= MAX_BATCH and 1 <= request.repeat <= MAX_REPEAT):
            raise ValueError("batch or repeat is out of bounds")
        kept = [*(sample.tensors for sample in self.samples), *outputs]
        if outside := [
            f for records in kept for r in records for f in r.files if not OWN_FILE.fullmatch(f)
        ]:
            raise ValueError(f"{outside[0]} is not a file of a manual session")
        _ = [self.task(n) for n in (*self.open, *(a.number for a in self.log))], self.task_format
        _ = [WORDS[a.word] for a in self.log if a.word != TAKEN]

    def save(self) -> None:
        """Write the state atomically, also if the power fails.

        Raises:
            OutputError: it cannot be written.
        """
        document = {k: v for k, v in to_json(self).items() if k != "folder"}
        aside = self.folder / f".{STATE}.new"
        try:
            with aside.open("w", encoding="utf-8") as file:
                json.dump(document, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(self.folder / STATE)
            _sync(self.folder, STATE)
        except OSError as e:
            raise folders.unwritable(self.folder, e) from e

    @property
    def name(self) -> str:
        """The user's name for the device."""
        return self.request.name

    @property
    def origin(self) -> str:
        """The file that names what the session runs."""
        return str((self.folder / STATE).resolve())

    @property
    def feeding(self) -> Feeding:
        """What the user feeds."""
        return Feeding(**vars(self.request.feeding))

    @property
    def todo(self) -> Path:
        """The folder of the tasks."""
        return self.folder / TODO

    @property
    def task_format(self) -> TaskFormat:
        """The form in which inputs are handed out."""
        return TaskFormat.parse(self.request.export)

    @property
    def rounds(self) -> int:
        """Number of rounds: tasks that were run on the device together."""
        return len({self.task(a.number).round for a in self.log})

    def task(self, number: int) -> LoggedTask:
        """
        Raises:
            UsageError: there is no task of this number.
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

    # ------------------------------------------------------------ answers

    def answer(self, numbers: Sequence[int], word: str) -> None:
        """Answer tasks without outputs; no number: the only open one.

        Raises:
            UsageError: nothing is open, or several are; a task was answered before.
        """
        if not numbers and len(self._open_tasks()) > 1:
            raise UsageError(
                f"several tasks are open: {', '.join(map(str, self.open))}",
                "name one",
                code="manual.ambiguous-task",
            )
        numbers = list(dict.fromkeys(numbers)) or self.open[:1]
        for number in numbers:
            self._require_unanswered(number)
        self._log(numbers, word)

    def _open_tasks(self) -> list[int]:
        if not self.open:
            raise UsageError(
                "no task is open",
                "subcut manual next shows where the search stands",
                code="manual.no-open-task",
            )
        return list(self.open)

    def _require_unanswered(self, number: int) -> None:
        self.task(number)
        for answer in self.log:
            if answer.number == number:
                what = f"task {number} was answered: {answer.word}, {answer.when}"
                raise UsageError(
                    what, "subcut manual undo takes it back", code="manual.already-answered"
                )

    def _log(self, numbers: Sequence[int], word: str) -> None:
        command = max((a.command for a in self.log), default=0) + 1
        when = time.strftime("%Y-%m-%d %H:%M:%S")
        self.log += [LoggedAnswer(n, word, when, command) for n in numbers]
        self.settled = False
        self.save()

    def take(
        self, source: Path | None, number: int | None
    ) -> tuple[list[int], dict[int, InputError]]:
        """Take outputs from `source`, or from the folders of the tasks.

        Returns the numbers of the answered tasks, and why others, of which something came, stay
        open: a file is missing, or of another shape, type or size.

        Raises:
            InputError: no task was answered.
        """
        if number is not None:
            self._require_unanswered(number)
        numbers = [number] if number is not None else self._open_tasks()
        cuts = {n: tasks.folders_of(self.todo, n) for n in numbers}
        sources = {
            n: results.source_folders(cuts[n], n, source, len(numbers) == 1) for n in numbers
        }
        taken = []
        problems = {}
        for n in numbers:
            try:
                if results.are_complete(cuts[n], sources[n]):
                    self._keep_outputs(n, cuts[n], sources[n])
                    taken.append(n)
            except InputError as e:
                problems[n] = e
        if not taken:
            raise next(
                iter(problems.values()), results.no_outputs(cuts[numbers[0]], sources[numbers[0]])
            )
        self._log(taken, TAKEN)
        return taken, problems

    def _keep_outputs(self, number: int, cuts: Sequence[Path], sources: Sequence[Path]) -> None:
        """Raises InputError: a file does not fit."""
        (self.folder / ANSWERS).mkdir(exist_ok=True)
        with folders.aside(self.folder / ANSWERS / str(number)) as room:
            result = results.read(cuts, sources, room)
            files = {name: store_entry.checksum(room / name) for name in store_entry.names(room)}
            store_entry.write(room, self.task(number).key, files, json.dumps(result.to_json()))
            _sync(room)

    def undo(self, commands: int) -> list[int]:
        """Remove the answers of the last commands; return the numbers of the tasks that are open
        again.

        Raises:
            UsageError: there were not so many commands.
        """
        steps = sorted({a.command for a in self.log})
        if not 1 <= commands <= len(steps):
            raise UsageError(
                f"undo {commands}: {count(len(steps), 'answer')} so far",
                "subcut manual log lists them",
                code="manual.nothing-to-undo",
            )
        removed = [a.number for a in self.log if a.command in steps[-commands:]]
        self.log = [a for a in self.log if a.number not in removed]
        self.shown = 0
        self.settled = False
        self.save()
        for number in removed:
            shutil.rmtree(self.folder / ANSWERS / str(number), ignore_errors=True)
        return removed

    @property
    def evidence(self) -> RecordedEvidence | None:
        """What the recording told, with absolute paths; without its outputs if a file of them is
        gone."""
        if self.recorded is None:
            return None
        home = str(self.folder.resolve())
        outputs = [[record.within(home) for record in sample] for sample in self.recorded.outputs]
        there = all(
            Path(file).is_file() for sample in outputs for record in sample for file in record.files
        )
        return replace(self.recorded, outputs=outputs if there else ())

    def results(self) -> dict[str, RunResult]:
        """The recorded results by key of the task. An answer whose outputs are damaged is removed,
        with a warning."""
        recorded = {}
        for answer in list(self.log):
            key = self.task(answer.number).key
            if answer.word != TAKEN:
                recorded[key] = RunResult(failure=WORDS[answer.word])
                continue
            place = (self.folder / ANSWERS / str(answer.number)).resolve()
            try:
                recorded[key] = from_entry(StoreEntry(store_entry.verified(place, key), place))
            except (store_entry.Damaged, OSError, ValueError, InputError) as e:
                log.warning(
                    "the outputs of task %d are damaged (%s): it is open again", answer.number, e
                )
                self.log.remove(answer)
                self.settled = False
        return recorded

    def remove_closed_tasks(self) -> None:
        """Remove the folders of tasks that are not open, unless somebody else put files there."""
        for folder in sorted(self.todo.glob("*")):
            number = folder.name.partition("-")[0]
            if number.isdigit() and int(number) not in self.open:
                tasks.remove(folder)


def _sync(folder: Path, files: str = "*") -> None:
    """fsync the files of a folder, before the state refers to them: a power cut must not lose
    outputs."""
    for path in (*folder.glob(files), folder):
        flush(path)
