"""Pages in Markdown, as tests run them: the commands of their blocks, the files that they show.

In a page, a `console` block holds commands and what they print; they are run in one folder, in
order. A line `…` stands for lines that are left out, a `…` at the end of a line for its rest. A
`py` or `toml` block whose first line is a comment with a file name is that file. An `sh` block
holds commands with placeholders, which cannot run.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path

from fixtures import ROOT
from tests.helpers.run_command import PATIENCE, environment, together

DOCS = ROOT / "docs"
# those are generated
PAGES = sorted(page for page in DOCS.rglob("*.md") if page.parent != DOCS / "commands")
LEFT_OUT = "…"
# Words that have pytest load subcut's plugin, where the package was installed before it had one.
PLUGIN = () if entry_points(group="pytest11", name="subcut") else ("-p", "subgraph.pytest_plugin")
BIN = Path(sys.executable).parent
WRONG = re.compile(
    r"\bFAIL\b|\bDIFFERS\b|"
    r"^wrong: |^✗ |^! |^≈ |^wrong by | computes .* wrong: |"
    r"\b[1-9]\d* of \d+ (tensors? )?wrong|, [1-9]\d* wrong$|^[1-9]\d* warnings?,|.exit_code.: 1"
)
VARYING = re.compile(  # what another machine rounds otherwise, times, and versions
    r"-?\d+(\.\d+)?e[-+]\d+|-?\d+(\.\d+)? ms\b|-?\d+\.\d+( s)?\b|"
    r"\d+(?= ×| %| of \d+ (values differ|recorded tensors?)| wrong$)|(?<=ort)  +\S+"
)


@dataclass(frozen=True)
class Command:
    """A command line and the lines that a page shows below it."""

    line: str
    shown: tuple[str, ...] = ()

    @property
    def codes(self) -> set[int]:
        """The exit codes that fit what is shown: those of an answer where everything is left
        out."""
        if any(line.startswith("error:") for line in self.shown):
            return {2, 3, 4, 5}
        if any(line.startswith("inconclusive:") for line in self.shown):
            return {5}
        if set(self.shown) <= {LEFT_OUT}:
            return {0, 1}
        return {1 if any(WRONG.search(line) for line in self.shown) else 0}


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of a page in this language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def console(text: str) -> list[Command]:
    """The commands of the page's console blocks, in order."""
    parts = (
        part
        for block in blocks(text, "console")
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
    )
    return [
        Command(line, tuple(shown))
        for line, *shown in (part.rstrip().split("\n") for part in parts)
    ]


def written(text: str) -> Iterator[Command]:
    """Every `subcut` command line of a page: in console and sh blocks, and in code between single
    backticks."""
    yield from (command for command in console(text) if command.line.startswith("subcut"))
    lines = (line for block in blocks(text, "sh") for line in block.splitlines())
    inline = re.findall(
        r"(?<!`)`(subcut [^`\n]+)`",
        re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE),
    )
    yield from (Command(line) for line in [*lines, *inline] if line.startswith("subcut "))


def files(text: str) -> dict[str, str]:
    """Name → content of the files that a page shows."""
    shown = blocks(text, "py") + blocks(text, "toml")
    return {
        name: block for block in shown for name in re.findall(r"\A# (\w+\.(?:py|toml))\n", block)
    }


def run_page(text: str, folder: Path, *, apart: bool = False) -> None:
    """Write the page's files into the folder, run its commands there, and compare what they print;
    `apart`: each in a process of its own."""
    for name, content in files(text).items():
        (folder / name).write_text(content, encoding="utf-8")
    for command in console(text):
        words = shlex.split(command.line)
        if words[0] == "cd":  # holds for the commands below it
            folder /= words[1]
            continue
        code, printed = run_words(words, folder, apart=apart)
        assert code in command.codes, f"{command.line}\n{printed}"
        _compare(command, printed)


def run_words(words: list[str], folder: Path, *, apart: bool = False) -> tuple[int, str]:
    """Run a command line there; its exit code and what a terminal shows. One of subcut runs in this
    process unless it shall run apart: pages have many, and half of their time would go into
    starting Python."""
    variables = {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    if words[0] == "subcut" and not apart:
        here = together(words[1:], folder, variables)
        return here.code, here.out
    words[1:1] = PLUGIN if words[0] == "pytest" else ()
    nowhere = subprocess.DEVNULL
    out = subprocess.PIPE
    both = subprocess.STDOUT
    done = subprocess.run(
        words,
        cwd=folder,
        env=environment(variables),
        stdin=nowhere,
        stdout=out,
        stderr=both,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    return done.returncode, done.stdout


def _compare(command: Command, output: str) -> None:
    """All lines that are shown were printed, in this order."""
    printed = iter([steady(line) for line in output.splitlines()])
    for line in (line for line in command.shown if line != LEFT_OUT):
        wanted = steady(line.removesuffix(LEFT_OUT))
        found = any(
            p.startswith(wanted) if line.endswith(LEFT_OUT) else p == wanted for p in printed
        )
        assert found, f"{command.line}: no line '{line}' (or not there) in\n{output}"


def steady(line: str) -> str:
    """Return a line without what other machines print otherwise, and without its alignment."""
    return " ".join(VARYING.sub("N", line).split())
