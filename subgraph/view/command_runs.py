"""Command lines of `subcut` -> child processes, whose progress and results are events, numbered
from 1 and kept.

A page that is reloaded, or a second one, reads the events from the first on and so sees the same.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Sequence
from typing import Any

from subgraph import system
from subgraph.children import make_python_command
from subgraph.documents import to_json
from subgraph.errors import UsageError
from subgraph.results.answer import ErrorEntry, ErrorResult
from subgraph.system import APART, interrupt
from subgraph.system.shared import disable_telemetry
from subgraph.text import clean
from subgraph.types import JsonObject

# `main` reads sys.argv, whose first word is "-c"
COMMAND = tuple(make_python_command("-c", "from subgraph.cli import main; main()"))
STOP_SECONDS = 20.0  # for a run that was interrupted, to store its state
INTERRUPTED = 130
MAX_KEPT = 20_000  # events
EVENTS = "SUBCUT_EVENTS"  # environment of the child: progress as JSON, a line per event


class CommandRun:
    """One command line in a child process."""

    def __init__(self, kind: str, words: Sequence[str]) -> None:
        """Begin no process yet.

        Attributes:
            kind: The sub-command.
            words: All words after `subcut`.
        """
        self.kind = kind
        self.words = tuple(words)
        self.process = subprocess.Popen(
            [*COMMAND, *words, "--json"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            env=disable_telemetry() | {EVENTS: "1"},
            **APART,  # Ctrl-C reaches the server, which stops the run in order
        )

    @property
    def shown(self) -> str:
        """The command line of a user."""
        return system.join(["subcut", *self.words])

    def interrupt(self) -> None:
        """Have the child store its state and end."""
        if self.process.poll() is None:
            interrupt(self.process)

    def end(self) -> None:
        """Interrupt it and wait; kill it if it does not end."""
        self.interrupt()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Runs:
    """The runs of a session, one at a time, and the events of all; safe for several threads.

    Attributes:
        events: `{"id", "run", "type", …}` of type `begin`, `progress` or `end`; ids ascend.
    """

    def __init__(
        self,
        links: Callable[[JsonObject, Sequence[str]], JsonObject] = lambda document, words: {},
    ) -> None:
        """Begin without runs.

        Args:
            links: Returns further fields of a run's last event for its document and words.
        """
        self.events: list[JsonObject] = []
        self._links = links
        self._current: CommandRun | None = None
        self._number = self._id = 0
        self._changed = threading.Condition()
        self._closed = False

    def start(self, kind: str, words: Sequence[str]) -> int:
        """Start a command line and return the number of its run.

        Raises:
            UsageError: another run is under way.
        """
        with self._changed:
            if self._current or self._closed:
                raise UsageError(
                    "another run is under way", "stop it, or wait for its end", code="view.busy"
                )
            run = self._current = CommandRun(kind, words)
            self._number += 1
            number = self._number
            self._add(number, "begin", kind=kind, command=run.shown)
        threading.Thread(target=self._follow, args=(run, number), daemon=True).start()
        return number

    def show(self, kind: str, command: str, document: JsonObject) -> None:
        """Show an earlier result, as if its run had ended now."""
        with self._changed:
            self._number += 1
            self._add(self._number, "begin", kind=kind, command=command)
            self._add_end(self._number, document, ())

    def stop(self) -> bool:
        """Interrupt the current run; return whether there is one."""
        with self._changed:
            run = self._current
        if run:
            run.interrupt()
        return run is not None

    def close(self) -> None:
        """End the current run; no other starts."""
        with self._changed:
            self._closed = True
            run = self._current
            self._changed.notify_all()
        if run:
            run.end()

    def wait_for_events(self, number: int, seconds: float) -> list[JsonObject] | None:
        """Wait for events with a greater id and return them; None if the session is closed."""
        with self._changed:
            if self._id <= number and not self._closed:
                self._changed.wait(seconds)
            if self._closed:
                return None
            return [event for event in self.events if event["id"] > number]

    def _add(self, run: int, type_: str, **fields: Any) -> None:
        """Append an event; the caller holds the lock."""
        self._id += 1
        self.events.append({"id": self._id, "run": run, "type": type_, **fields})
        if len(self.events) > MAX_KEPT:  # lines of progress are the first to go
            kinds = [event["type"] for event in self.events]
            del self.events[kinds.index("progress") if "progress" in kinds else 0]
        self._changed.notify_all()

    def _add_end(self, run: int, document: JsonObject, words: Sequence[str]) -> None:
        self._add(run, "end", document=document, **self._links(document, words))

    def _follow(self, run: CommandRun, number: int) -> None:
        """Read the output of the child until it ends."""
        output: list[str] = []
        process = run.process
        stdout = process.stdout
        assert stdout and process.stderr
        reader = threading.Thread(target=lambda: output.append(stdout.read()), daemon=True)
        reader.start()
        last = ""
        with process:  # closes the pipes
            for line in process.stderr:
                fields = _parse(line) or {}
                if not isinstance(fields.get("text"), str):  # a library wrote the line
                    fields = {"text": clean(line.strip())}
                last = fields["text"] or last
                with self._changed:
                    self._add(number, "progress", **fields)
            reader.join()
        document = _parse("".join(output))
        if document is None:
            code = process.returncode
            what = f"the run ended with code {code} and without a result: {last}"
            error = ErrorEntry("CrashError", code="run.no-result", what=what)
            document = dict(to_json(ErrorResult(exit_code=code, error=error)))
        with self._changed:
            self._current = None
            self._add_end(number, document, run.words)


def _parse(text: str) -> JsonObject | None:
    """Return the JSON object in a text; None for any other text."""
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
