"""Transcripts: Markdown files that hold commands with their whole output, for people to read and
tests to compare.

A transcript is written by hand up to its output: a line "Folder: `NAME`" starts an empty folder
that `fill` fills; a `console` block holds one command of subcut, or `cat FILE`; a `python` block is
code that prints. `renew` runs them in order and puts exit code, standard output and standard error
below each one. Values that vary (times, paths, versions) are placeholders. An output that differs
only in the digits of measured numbers is kept.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import onnx

import subgraph
from benchmarks import answers
from fixtures import ROOT, compared, device, given, runs
from subgraph import notebook
from tests.helpers import text_models
from tests.helpers.pages import steady
from tests.helpers.run_command import SUBCUT, Done, in_process, subcut

ENTRY = re.compile(
    r"^Folder: `(?P<folder>\w+)`"
    r"|^```(?P<language>console|python)\n(?P<source>.*?)^```\n"
    r"(?P<recorded>(\nExit code \d+\n)?(\n(?P<fence>`{3,})(stdout|stderr)\n.*?^(?P=fence)\n)*)",
    re.MULTILINE | re.DOTALL,
)
UNREAD = {"script", "style", "svg"}  # elements of a page without text for a reader
MACHINE = (  # further values that vary from machine to machine
    (r"(<environment>/bin/python)[\d.]+", r"\1"),
    (r"\b(Linux|macOS|Darwin) \w+, \d+ cores", "<machine>"),
    (r"\benvironments/[0-9a-f]{20}", "environments/<digest>"),
    (r"\bthreads=\d+", "threads=<threads>"),
    (r"\| threads \| `\d+` \|", "| threads | `<threads>` |"),
)
LINES = {*"p tr h1 h2 h3 h4 li div pre table section summary dt dd br".split()}


def renew(page: str, place: Path, operator_tests: Path | None = None) -> str:
    """Run the commands of a transcript in folders below a place, and return the transcript with
    their output.

    Args:
        page: The transcript.
        place: An empty folder.
        operator_tests: A store with onnx's operator tests, which the folder `swept` holds.
    """
    return ENTRY.sub(_Session(place, operator_tests).renew_entry, page)


def fill(name: str, folder: Path) -> None:
    """Write what the commands of a transcript need into an empty folder."""
    match name:
        case "demo":
            in_process("demo", folder)
        case "faults" | "swept":
            given.demo(folder, SUBCUT)
        case "runs":
            for title, build in (runs.RUNS | compared.COMPARED).items():
                (folder / title).mkdir()
                (folder / title / "run.json").write_text(json.dumps(build()), encoding="utf-8")
        case "board":
            device.board(folder)
        case _:
            given.FOLDERS[name](folder, SUBCUT)


class _Session:
    """The folder that the next command runs in, and the names that Python code sees."""

    def __init__(self, place: Path, operator_tests: Path | None) -> None:
        self.place = place
        self.operator_tests = operator_tests
        self.folder = place
        self.names: dict[str, Any] = {}

    def renew_entry(self, entry: re.Match[str]) -> str:
        if entry["folder"]:
            self.folder = Path(tempfile.mkdtemp(dir=self.place))
            self.names = {"subgraph": subgraph, "Path": Path, "show": show, "write": self.write}
            fill(entry["folder"], self.folder)
            if entry["folder"] == "swept" and self.operator_tests:
                shutil.copytree(
                    self.operator_tests,
                    self.folder / "subcut_out" / ".store",
                    copy_function=os.link,
                )
            return entry[0]
        run = self.run_code if entry["language"] == "python" else self.run_line
        recorded = self.record(run(entry["source"]))
        if _steady_lines(recorded) == _steady_lines(entry["recorded"]):
            return entry[0]
        return entry[0].removesuffix(entry["recorded"]) + recorded

    def run_line(self, source: str) -> Done:
        program, *words = shlex.split(source.removeprefix("$ "), comments=True)
        if program == "cat":
            text = (self.folder / words[0]).read_text(encoding="utf-8")
            return Done(0, html_text(text) if words[0].endswith(".html") else text, "")
        assert program == "subcut", source
        return subcut(*words, cwd=self.folder)

    def run_code(self, source: str) -> Done:
        printed = io.StringIO()
        error = ""
        with contextlib.chdir(self.folder), contextlib.redirect_stdout(printed):
            try:
                exec(source, self.names)
            except subgraph.SubcutError as e:
                error = f"{type(e).__name__}: {e.what}\n  {e.hint}\n"
        return Done(-1, printed.getvalue(), error)

    def write(self, name: str, text: str, **weights: Any) -> None:
        """Write a model given in ONNX's text form."""
        onnx.save(text_models.model(text, **weights), name)

    def record(self, done: Done) -> str:
        """Return the part of a transcript below a command."""
        parts = [f"\nExit code {done.code}\n"] if done.code >= 0 else []
        parts += [
            _fence(stream, self.mask(text))
            for stream, text in (("stdout", done.out), ("stderr", done.err))
            if text
        ]
        return "".join(parts)

    def mask(self, text: str) -> str:
        places = {
            str(self.folder.resolve()): "<here>",
            str(self.folder): "<here>",
            os.environ["XDG_CACHE_HOME"]: "<cache>",
            sys.prefix: "<environment>",
            str(ROOT): "<project>",
        }
        text = answers.answer_text(text, places)
        for pattern, placeholder in MACHINE:
            text = re.sub(pattern, placeholder, text)
        return text


def _fence(stream: str, text: str) -> str:
    fence = "````" if "```" in text else "```"
    return f"\n{fence}{stream}\n{text.rstrip()}\n{fence}\n"


def _steady_lines(text: str) -> list[str]:
    return [steady(line) for line in text.splitlines()]


def show(item: Any) -> None:
    """Print the text of the HTML that a notebook shows for an object."""
    print(html_text(notebook.render_html(item)))


def html_text(page: str) -> str:
    """Return what a reader of a page sees: a line for each block of text and row of a table."""
    reader = _Reader()
    reader.feed(page)
    lines = (re.sub(r"[ \n]+", " ", line).strip() for line in reader.text.split("\r"))
    return "\n".join(line for line in lines if line) + "\n"


class _Reader(HTMLParser):
    """The text of a page, with a carriage return between blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""
        self.unread = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.unread += tag in UNREAD
        if tag == "svg" and self.unread == 1:
            self.text += "\r(drawing)\r"
        self.text += "\r" if tag in LINES else " | " if tag in {"td", "th"} else ""

    def handle_endtag(self, tag: str) -> None:
        self.unread -= tag in UNREAD
        self.text += "\r" if tag in LINES else ""

    def handle_data(self, data: str) -> None:
        if not self.unread:
            self.text += data
