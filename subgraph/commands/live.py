"""Log messages -> lines on standard error; on a terminal, messages of progress are one live line.

A message with `extra={"live": {...}}` belongs to the live line. Elsewhere it is a plain line,
unless it has the field of the running query. `done` and `of` fill the bar; the other fields are
texts next to it. A message with `step` and `of` is a progress bar over a known number of steps.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from subgraph.commands import OUTCOMES
from subgraph.iterables import pick
from subgraph.log import log
from subgraph.text import clean, clean_lines, count, make_distinct_labels, wrap
from subgraph.types import Fields

if TYPE_CHECKING:
    from subgraph.questions.bisection.items import Remaining
    from subgraph.search import Step


EVENTS = "SUBCUT_EVENTS"  # environment: messages are lines of JSON
FIRST_ANSWER_LEVEL = 25  # level of the first answer of a search, which --quiet does not hide
MAX_SPARSE_LINES = 10  # lines at most for many small steps if there is no progress bar


class ProgressHandler(logging.StreamHandler[Any]):
    """A line per message; on a terminal, one live line for messages of progress.

    Of messages with `sparse` there are at most `MAX_SPARSE_LINES` lines. `live`: may there be a
    live line? `verbose`: steps are lines as well, above the live line.
    """

    def __init__(self, stream: Any, *, live: bool = True, verbose: bool = False) -> None:
        super().__init__(stream)
        self.live = live and _is_terminal(stream)
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
                self._write_line(record)
        elif step and self.live:
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

            text = TextColumn("{task.description}", markup=False)
            bar = self._open(text, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            bar.update(0, completed=step, total=of, description=clean_lines(record.getMessage()))
            if step == of:
                self.close_bar()
        elif not (self.bar and getattr(record, "heartbeat", False)):
            interval = -(-of // MAX_SPARSE_LINES) if getattr(record, "sparse", False) else 1
            if step % interval == 0 or step == of:
                self._write_line(record)

    def format(self, record: logging.LogRecord) -> str:
        adapt = fit_to_terminal if self.bar else adapt_to_stream
        return adapt(super().format(record), self.stream)

    def _write_line(self, record: logging.LogRecord) -> None:
        """Write a line, above the live line if there is one."""
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
        """Return the bar, made at its first message."""
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
    """A line of JSON per message, for `subcut view`: its text, and the fields of progress."""

    def format(self, record: logging.LogRecord) -> str:
        fields = pick(vars(record), ("live", "step", "of"))
        return json.dumps({"text": clean(record.getMessage()), **fields})


class LineFormatter(logging.Formatter):
    """One line per message, safe to show."""

    def format(self, record: logging.LogRecord) -> str:
        prefix = "warning: " if record.levelno >= logging.WARNING else ""
        return clean(prefix + record.getMessage())


RED = "1;31"
GREEN = "32"
YELLOW = "33"
_VERDICTS = re.compile(
    r"(?P<red>^(?:error|wrong):|^[✗!] \w+|\bFAIL\b)|(?P<green>^(?:✓ )?right\b|\bagree\b)"
    r"|(?P<yellow>^[≈?] \w+|\bunresolved\b)",
    re.MULTILINE,
)
_LABEL = re.compile(r"^\s*(?:\S+(?: \S+)*\s{2,})?")  # of a line, with the blanks around it
_STYLES = {"red": RED, "green": GREEN, "yellow": YELLOW}


def adapt_to_stream(text: str, stream: Any) -> str:
    """Return a text in lines of the terminal's width, if the stream is one, and with the words of
    its verdicts in color, if it shows colors."""
    text = fit_to_terminal(text, stream)
    if not shows_color(stream):
        return text
    return _VERDICTS.sub(lambda m: f"\x1b[{_STYLES[str(m.lastgroup)]}m{m[0]}\x1b[0m", text)


def fit_to_terminal(text: str, stream: Any) -> str:
    """Return a text in lines of the terminal's width, if the stream is one.

    Lines are indented below their text; a command is not broken.
    """
    if not _is_terminal(stream):
        return text
    width = shutil.get_terminal_size().columns
    lines = []
    for line in text.split("\n"):
        is_whole = not line or "subcut " in line
        indent = min(len(line) - len(_LABEL.sub("", line)), width // 3)
        lines += [line] if is_whole else wrap(line, width, indent)
    return "\n".join(lines)


def shows_color(stream: Any) -> bool:
    """Return whether a stream shows colors: by `--color`, NO_COLOR, FORCE_COLOR, or a terminal."""
    option = re.search(r" --color[= ](always|never)\b", " ".join(sys.argv))
    if option:
        return option[1] == "always"
    if os.environ.get("NO_COLOR"):
        return False
    return bool(_is_terminal(stream) or os.environ.get("FORCE_COLOR"))


def _is_terminal(stream: Any) -> bool:
    return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"


NAME_WIDTH = 24  # characters of a node's name in a line


def log_step(
    step: Step, remaining: Remaining, labels: Sequence[str], nodes: Sequence[int] = ()
) -> None:
    """Log the step that was added to `remaining` last. `labels`, `nodes`: of its nodes; none for
    the whole model."""
    live = {
        "done": remaining.size - remaining.left,
        "of": remaining.size,
        "left": remaining.describe_progress(step),
    }
    live |= {"nodes": list(nodes), "outcome": step.outcome.value, "query": step.query.kind.value}
    log.info(
        format_step(step, remaining, labels),
        extra={"live": live | {"estimate": remaining.estimate}},
    )


def format_step(step: Step, remaining: Remaining, labels: Sequence[str]) -> str:
    """Return a step as `  4  13 of 27 nodes left  conv1 … relu3   13 nodes  5.7e-01  FAIL …`.

    With -v, the name of the pass follows.
    """
    learned = remaining.describe_progress(step).ljust(
        len(f"{remaining.size} of {remaining.size} nodes left")
    )
    nodes = count(len(labels) or remaining.size, "node")
    purpose = f" [{step.purpose.value}]" if log.isEnabledFor(logging.DEBUG) else ""
    # `/pad/Pad … /pool/MaxPool`; empty for the full model
    names = map(clean, (*labels[:1], *labels[-1:]))
    ends = " … ".join(make_distinct_labels(names, NAME_WIDTH).values()).ljust(2 * NAME_WIDTH)
    worst = step.answer.verdict.worst if step.answer.verdict else None
    relative = worst.errors.get("max_rel") if worst else None
    error = "" if relative is None else f"{relative:.1e}"
    if step.answer.signature == "nan":
        error = "NaN"
    return (
        f"{step.number:>3}  {learned}  {ends}  {nodes:>11}  {error:>7} "
        f" {_describe_outcome(step)}{purpose}"
    )


def _describe_outcome(step: Step) -> str:
    """Describe an outcome: `agree`, `FAIL explains 93 %`, `FAIL (crash)`; `(stored)` if nothing
    ran."""
    from subgraph.reports import format_percent

    answer = step.answer
    outcome = step.outcome.value
    words = [OUTCOMES.get(outcome, outcome)]
    if answer.signature and answer.signature != "mismatch":
        words.append(f"({answer.signature})")
    share = answer.share.of_target
    if share is not None and outcome == "fail":
        words.append(f"explains {format_percent(share)}")
    if answer.verdict and answer.verdict.stored:
        words.append("(stored)")
    return " ".join(words)
