"""A loop of questions that are answered by hand, on disk: what was asked, what was answered, in which order.

manual-NAME/
    state.json   the request and the log of answers: the only truth. Replaced in one step, after all that it speaks of;
                 state-before.json is the one before
    inputs/ drawn/   what the model was fed, and what its random nodes drew, when the loop began
    answers/3/   the outputs taken for question 3, with checksums, in the model's type and layout
    todo/3/      what is to be run: see `handout`

Insight: the log alone decides; all else is made from it again (`manual`). So a kill at any moment costs nothing.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from subgraph.bisection.manual import results, tasks
from subgraph.bisection.manual.tasks import TaskFormat
from subgraph.errors import InputError, ResultExists, UsageError
from subgraph.runtime.capture import Captured
from subgraph.runtime.inputs import Feeding, ImageOptions
from subgraph.runtime.run_result import RunResult, from_entry
from subgraph.storage import folders, store_entry
from subgraph.storage.store import StoreEntry
from subgraph.storage.tensors import Record
from subgraph.text import clean, count
from subgraph.verdict import Signature, Status, Verdict

log = logging.getLogger("subcut")

SCHEMA = "subcut.manual-state/1"
STATE, BEFORE, ANSWERS, TODO = "state.json", "state-before.json", "answers", "todo"
REQUEST = ("criterion", "precision", "within", "freeze", "reference", "custom_ops", "command", "notes", "force")
OURS = ("inputs", "drawn", ANSWERS, TODO)
WORDS = {
    "good": Verdict(Status.AGREE, None, "said to be good, by hand"),
    "bad": Verdict(Status.FAIL, Signature.MISMATCH, "said to be bad, by hand"),
    "skip": Verdict(Status.UNRESOLVED, Signature.REFUSED, "skipped: it cannot be run, said by hand"),
}
DAMAGE = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, UsageError)  # while it is read
TAKEN = "taken"  # with its outputs


@dataclass(frozen=True)
class LoggedTask:
    """A question that was handed out.

    Attributes:
        what: for people. trip: of the hand-outs that it was among.
    """

    number: int
    key: str
    what: str
    trip: int


@dataclass(frozen=True)
class LoggedAnswer:
    """An answer. `step`: the how manieth command brought it; what one command brought is undone together."""

    number: int
    word: str
    when: str
    step: int


@dataclass
class ManualState:
    """Attributes:
    request: what the first command was given, as plain data.
    model: path and digest. samples: what was fed, as plain data.
    asked: every question ever handed out; open: the numbers of those that wait, the one that is needed first.
    told: so many steps of the search were shown. settled: was the search run over the whole log?
    """

    folder: Path
    request: dict[str, Any]
    model: dict[str, str]
    samples: list[dict[str, Any]]
    asked: list[LoggedTask] = field(default_factory=list)
    log: list[LoggedAnswer] = field(default_factory=list)
    open: list[int] = field(default_factory=list)
    told: int = 0
    settled: bool = False

    # ------------------------------------------------------------------------------------------------ on disk

    def save(self) -> None:
        """Write the state, in one step that a power cut does not halve.

        Raises:
            OutputError: it cannot be written.
        """
        document = {"schema": SCHEMA} | {k: v for k, v in asdict(self).items() if k != "folder"}
        aside = self.folder / f".{STATE}.new"
        try:
            with aside.open("w", encoding="utf-8") as file:
                json.dump(document, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            with suppress(OSError):  # the first one, or a file system without links
                (self.folder / BEFORE).unlink(missing_ok=True)
                (self.folder / BEFORE).hardlink_to(self.folder / STATE)
            aside.replace(self.folder / STATE)
            _flush(self.folder, STATE)
        except OSError as e:
            raise folders.unwritable(self.folder, e) from e

    @property
    def name(self) -> str:
        """As the user named it."""
        return str(self.request["name"])

    @property
    def todo(self) -> Path:
        """Where hand-outs are."""
        return self.folder / TODO

    @property
    def export(self) -> TaskFormat:
        """The form of what is handed out."""
        return TaskFormat.parse(self.request["export"])

    @property
    def trips(self) -> int:
        """How often somebody went to the device."""
        return len({self.of(said.number).trip for said in self.log})

    def of(self, number: int) -> LoggedTask:
        """The question of this number.

        Raises:
            UsageError: it was never asked.
        """
        found = next((a for a in self.asked if a.number == number), None)
        if found is None:
            raise UsageError(f"there is no {number}", self._which())
        return found

    def _which(self) -> str:
        if not self.open:
            return "subcut manual next"
        return f"open {'is' if len(self.open) == 1 else 'are'} {', '.join(map(str, self.open))}: subcut manual next"

    # ------------------------------------------------------------------------------------------------ answers

    def say(self, numbers: Sequence[int], word: str) -> None:
        """Answer without outputs; no number: the only one that is open.

        Raises:
            UsageError: nothing is open, or several are; it was answered before.
        """
        for number in (chosen := list(dict.fromkeys(numbers)) or [self._only()]):
            self._require_new(number)
        self._add(chosen, word)

    def _only(self) -> int:
        if not self.open:
            raise UsageError("nothing is asked", "subcut manual next shows where the search stands")
        if len(self.open) > 1:
            raise UsageError(f"which one? {', '.join(map(str, self.open))} are open", "give its number")
        return self.open[0]

    def _require_new(self, number: int) -> None:
        self.of(number)
        before = next((said for said in self.log if said.number == number), None)
        if before:
            raise UsageError(f"{number} was answered: {before.word}, {before.when}", "subcut manual undo takes it back")

    def _add(self, numbers: Sequence[int], word: str) -> None:
        step = max((said.step for said in self.log), default=0) + 1
        self.log += [LoggedAnswer(n, word, time.strftime("%Y-%m-%d %H:%M:%S"), step) for n in numbers]
        self.settled = False
        self.save()

    def take(self, source: Path | None, number: int | None) -> list[int]:
        """Take the outputs that came back, from `source` or from where they were wanted; the numbers that they answer.

        Raises:
            InputError: something is missing, or of another shape, type or size; nothing is taken then.
        """
        if number is not None:
            self._require_new(number)
        chosen = [number] if number is not None else list(self.open)
        if not chosen:
            raise UsageError("nothing is asked", "subcut manual next shows where the search stands")
        given = {n: results.folders_of(tasks.places(self.todo, n), n, source, len(chosen) == 1) for n in chosen}
        complete = [n for n in chosen if results.came(tasks.places(self.todo, n), given[n])]
        if not complete:
            raise InputError(*results.nothing(tasks.places(self.todo, chosen[0]), given[chosen[0]]))
        (self.folder / ANSWERS).mkdir(exist_ok=True)
        for n in complete:
            with folders.aside(self.folder / ANSWERS / str(n)) as room:
                result = results.read(tasks.places(self.todo, n), given[n], room)
                files = {name: store_entry.checksum(room / name) for name in store_entry.names(room)}
                store_entry.write(room, self.of(n).key, files, json.dumps(result.to_json()))
                _flush(room)
        self._add(complete, TAKEN)
        return complete

    def undo(self, commands: int) -> list[int]:
        """Take back what the last commands answered; the numbers that are open again.

        Raises:
            UsageError: there were not so many.
        """
        steps = sorted({said.step for said in self.log})
        if not 1 <= commands <= len(steps):
            raise UsageError(f"undo {commands}: {count(len(steps), 'answer')} so far", "subcut manual log lists them")
        back = [said.number for said in self.log if said.step in steps[-commands:]]
        self.log = [said for said in self.log if said.number not in back]
        self.told, self.settled = 0, False
        self.save()
        for number in back:
            shutil.rmtree(self.folder / ANSWERS / str(number), ignore_errors=True)
        return back

    def answers(self) -> dict[str, RunResult]:
        """What was answered, by key. Outputs that are damaged on the disk count as not given, and that is said."""
        found = {}
        for said in list(self.log):
            key = self.of(said.number).key
            if said.word != TAKEN:
                found[key] = RunResult(failure=WORDS[said.word])
                continue
            place = (self.folder / ANSWERS / str(said.number)).resolve()
            try:
                found[key] = from_entry(StoreEntry(store_entry.verified(place, key), place))
            except (store_entry.Damaged, OSError, ValueError, KeyError) as e:
                log.warning("the outputs taken for %d are damaged (%s): it is asked again", said.number, e)
                self.log.remove(said)
                self.settled = False
        return found

    @property
    def feeding(self) -> Feeding:
        """What the model is fed, as the user said it."""
        fed = self.request["feeding"]
        picture = ImageOptions(tuple(fed["picture"]["mean"]), tuple(fed["picture"]["scale"]), fed["picture"]["bgr"])
        return Feeding(tuple(fed["inputs"]), fed["shapes"], fed["seed"], picture)

    def fed(self) -> list[Captured]:
        """Per sample, what was fed and drawn when the loop began; files are below `folder`.

        Raises:
            KeyError, TypeError, ValueError: the state is damaged.
        """
        found = []
        for d in self.samples:
            fed, tensors = ([Record.from_json(r) for r in d[key]] for key in ("fed", "tensors"))
            outside = [f for r in tensors for f in r.files if not re.fullmatch(r"(inputs|drawn)/\d+/\w+[\d#]*\.npy", f)]
            if outside:
                raise ValueError(f"{outside[0]} is no file of a loop")
            origins = {str(k): str(v) for k, v in d["origins"].items()}
            found.append(Captured(str(d["label"]), {r.name: r for r in tensors}, {r.name: r for r in fed}, origins))
        return found

    def clear(self) -> None:
        """Remove hand-outs that are answered or no longer wanted, but for what somebody else put there."""
        for place in sorted(self.todo.glob("*")):
            number = place.name.partition("-")[0]
            if number.isdigit() and int(number) not in self.open:
                tasks.drop(place)


def _flush(folder: Path, files: str = "*") -> None:
    """Have the disk write what is in a folder before anything speaks of it: a power cut must not lose a trip."""
    for path in (*folder.glob(files), folder):
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)


# ---------------------------------------------------------------------------------------------------- begin, find


def place_of(parent: Path, name: str) -> Path:
    """The folder of a loop."""
    return parent / f"manual-{folders.safe_name(name)}"


def find(parent: Path, name: str | None) -> Path:
    """The folder of the loop of this name; of the only one, where none is said.

    Raises:
        UsageError: there is none, or several.
    """
    if name is not None:
        if not (place_of(parent, name) / STATE).is_file():
            raise UsageError(f"no loop '{clean(name)}' in {clean(str(parent))}", "subcut manual start MODEL begins one")
        return place_of(parent, name)
    found = sorted(p.parent for p in parent.glob(f"manual-*/{STATE}"))
    if not found:
        raise UsageError(f"no loop was started in {clean(str(parent))}", "subcut manual start MODEL; -o says where")
    if len(found) > 1:
        names = ", ".join(p.name.removeprefix("manual-") for p in found)
        raise UsageError(f"which loop? there are {names}", "--name says")
    return found[0]


@contextmanager
def opened(folder: Path) -> Iterator[ManualState]:
    """A loop, nobody else's in the block.

    Raises:
        UsageError: its state is damaged, or another command works on it.
    """
    with alone(folder):
        yield _read(folder)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """
    Raises:
        UsageError: another command works on this loop.
    """
    try:
        handle = folders.lock(folder, wait=False)
    except BlockingIOError:
        raise UsageError(f"another command works on {clean(str(folder))}", "wait until it is done") from None
    try:
        yield
    finally:
        if handle is not None:
            os.close(handle)


def _read(folder: Path) -> ManualState:
    """The state; where it is damaged, the one before the last change: what was answered then is asked again."""
    try:
        return _parsed(folder, STATE)
    except DAMAGE as e:
        what = f"{clean(str(folder / STATE))} is damaged: {type(e).__name__} {clean(str(e))}"
        with suppress(*DAMAGE):
            before = _parsed(folder, BEFORE)
            log.warning("%s; the one before the last change is used", what)
            return before
        hint = "put back a copy of it; or subcut manual reset, and start anew"
        raise UsageError(what, hint) from e


def _parsed(folder: Path, file: str) -> ManualState:
    d = json.loads((folder / file).read_text(encoding="utf-8"))
    if d["schema"] != SCHEMA:
        raise ValueError(f"schema {d['schema']}")
    asked = [LoggedTask(int(a["number"]), str(a["key"]), str(a["what"]), int(a["trip"])) for a in d["asked"]]
    said = [LoggedAnswer(int(s["number"]), str(s["word"]), str(s["when"]), int(s["step"])) for s in d["log"]]
    loop = ManualState(
        folder, d["request"], d["model"], d["samples"], asked, said, list(map(int, d["open"])), int(d["told"]),
        bool(d["settled"]),
    )  # fmt: skip
    _ = [loop.of(n) for n in (*loop.open, *(s.number for s in said))], [WORDS[s.word] for s in said if s.word != TAKEN]
    _ = loop.feeding, loop.fed(), loop.export, loop.request["batch"] + 1, d["model"]["path"], d["model"]["digest"]
    _ = loop.name, [loop.request[k] for k in REQUEST]
    return loop


def require_none(folder: Path, force: bool) -> None:
    """
    Raises:
        ResultExists: a loop stands there.
    """
    if not (folder / STATE).exists() or force:
        return
    try:
        loop = _read(folder)
        so_far = f"{count(len(loop.log), 'answer')} so far, {count(len(loop.open), 'question')} open"
    except UsageError:
        so_far = "its state is damaged"
    hint = "subcut manual next goes on; --name begins another beside it; --force begins this one anew"
    raise ResultExists(f"{clean(str(folder))} holds a loop: {so_far}", hint)


def clear(folder: Path) -> list[Path]:
    """Remove a loop, its state first; what subcut did not write stays, and is returned."""
    for file in (STATE, BEFORE):
        (folder / file).unlink(missing_ok=True)
    left = [place for place in sorted((folder / TODO).glob("*")) if not tasks.drop(place)]
    for name in OURS:
        if name != TODO or not left:
            shutil.rmtree(folder / name, ignore_errors=True)
    return left
