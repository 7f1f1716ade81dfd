"""Log messages -> lines on standard error; on a terminal, messages of progress are one live line.

A message with `extra={"live": {...}}` belongs to the live line. Elsewhere it is a plain line,
unless it only says what is `asking`. `done` and `of` fill the bar; `left`, `estimate` and `asking`
are texts beside it. A message with `step` and `of` is a progress bar over a known number of steps.
"""

from __future__ import annotations

import json
import logging
import os
from typing import Any

from subgraph.commands.color import colored
from subgraph.text import clean, clean_lines
from subgraph.types import Fields

EVENTS = "SUBCUT_EVENTS"  # environment: messages are lines of JSON
FIRST_ANSWER = 25  # level of the first answer of a search, which --quiet does not hide
SPARSE_LINES = 10  # lines at most for many small steps where there is no progress bar


class ProgressHandler(logging.StreamHandler[Any]):
    """A line per message; on a terminal, one live line for messages of progress.

    Of messages with `sparse` there are at most `SPARSE_LINES` lines. `live`: may there be a live
    line? `verbose`: steps are lines as well, above the live line.
    """

    def __init__(self, stream: Any, *, live: bool = True, verbose: bool = False) -> None:
        super().__init__(stream)
        terminal = stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"
        self.live = live and terminal
        self.verbose = verbose
        self.bar: Any = None

    def emit(self, record: logging.LogRecord) -> None:
        step = getattr(record, "step", 0)
        of = getattr(record, "of", 0)
        live: Fields | None = getattr(record, "live", None)
        if live is not None:
            if self.live:
                self._show_live(live)
            if "asking" not in live and (self.verbose or not self.live):
                self._line(record)
        elif step and self.live:
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

            text = TextColumn("{task.description}", markup=False)
            bar = self._open(text, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            bar.update(0, completed=step, total=of, description=clean_lines(record.getMessage()))
            if step == of:
                self.close_bar()
        elif not (self.bar and getattr(record, "heartbeat", False)):
            interval = -(-of // SPARSE_LINES) if getattr(record, "sparse", False) else 1
            if step % interval == 0 or step == of:
                self._line(record)

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return text if self.bar else colored(text, self.stream)

    def _line(self, record: logging.LogRecord) -> None:
        """A line, above the live line if there is one."""
        if self.bar is None:
            super().emit(record)
        else:
            self.bar.console.print(
                self.format(record), markup=False, highlight=False, soft_wrap=True
            )

    def _show_live(self, live: Fields) -> None:
        from rich.progress import BarColumn, SpinnerColumn, TextColumn
        from rich.table import Column

        def text(field: str, style: str, column: Column | None = None) -> TextColumn:
            return TextColumn(
                "{task.fields[" + field + "]}", style=style, markup=False, table_column=column
            )

        end = Column(no_wrap=True, overflow="ellipsis", ratio=1)
        bar = self._open(
            SpinnerColumn(),
            text("left", "bold"),
            BarColumn(bar_width=16),
            text("estimate", "cyan"),
            text("asking", "dim", end),
            expand=True,
        )
        words = {
            key: clean(str(live[key])) for key in ("left", "estimate", "asking") if key in live
        }
        bar.update(0, completed=live.get("done"), total=live.get("of"), **words)

    def _open(self, *columns: Any, **options: Any) -> Any:
        """The bar, made at its first message."""
        if self.bar is None:
            from rich.console import Console
            from rich.progress import Progress

            self.bar = Progress(
                *columns, console=Console(file=self.stream), transient=True, **options
            )
            self.bar.add_task("", total=None, left="", estimate="", asking="")
            self.bar.start()
        return self.bar

    def close_bar(self) -> None:
        """Remove the live line from the terminal."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None


class EventHandler(logging.StreamHandler[Any]):
    """A line of JSON per message, for `subcut view`: its text, and what it tells of the
    progress."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {key: vars(record)[key] for key in ("live", "step", "of") if key in vars(record)}
        return json.dumps({"text": clean(record.getMessage()), **fields})


class LineFormatter(logging.Formatter):
    """One line per message, safe to show."""

    def format(self, record: logging.LogRecord) -> str:
        prefix = "warning: " if record.levelno >= logging.WARNING else ""
        return clean(prefix + record.getMessage())
