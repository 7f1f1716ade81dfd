"""Pages of `--help`, and replies to TAB.

A page: a command's docstring and options -> plain text of at most 80 columns, in
sections.

typer's own sections need rich, which takes longer to load than the page to write. A docstring's
paragraphs that begin with a word of `LAST_PARAGRAPHS` are at the end of the page, examples without
changes.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import typer.core

GROUPS = {
    "Find the fault": "bisect blame compare manual plan sweep report".split(),
    "Cut and carry": "cut bundle replay".split(),
    "Change a model": "replace merge remove convert".split(),
    "Look into a model": "inspect lint known draw view".split(),
    "Tensors and recordings": "dump export".split(),
    "Manage": "demo backends doctor".split(),
}
TASKS = {
    "find the fault": "subcut bisect model.onnx -c CANDIDATE",
    "cut a piece out": "subcut model.onnx --start A --end B",
    "look into a model": "subcut inspect model.onnx",
    "read a recording": "subcut bisect model.onnx --recorded DIR",
    "see what is installed": "subcut doctor",
}
GLOBAL_SECTION = "Everywhere"  # the section of the global options
MAX_LEFT_COLUMN = 27  # characters at most of the left column
LAST_PARAGRAPHS = ("Examples:", "Exit code", "Terms")


def make_start_page() -> str:
    """Return the page of `subcut` alone: the tasks, with one command each."""
    width = max(map(len, TASKS))
    return "\n".join(
        [
            "subcut finds the piece of an ONNX model that a runtime or device computes wrong.",
            "",
            *(f"  {task:<{width}}  {command}" for task, command in TASKS.items()),
            "",
            f"  {'try it first':<{width}}  subcut demo DIR",
            "",
            "subcut --help lists all commands, subcut COMMAND --help has examples.",
        ]
    )


def find_section(command: str) -> str:
    """Return the section of a command on the page of `subcut --help`."""
    return next(title for title, names in GROUPS.items() if command in names)


class HelpPage:
    """The methods that typer's commands and groups call to write their page."""

    help: str | None

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write the docstring up to its examples."""
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(
                "\n\n".join(
                    p for p in split_paragraphs(self.help) if not p.startswith(LAST_PARAGRAPHS)
                )
            )

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write a section per panel; the global options last."""
        panels: dict[str, list[tuple[str, str]]] = {}
        root = ctx.find_root()
        for param in self.get_params(ctx):  # type: ignore[attr-defined]
            if param.name != "help":
                panels.setdefault(_get_panel(param), []).append(_make_row(param, ctx))
        if isinstance(self, typer.core.TyperGroup):
            sections: dict[str, list[tuple[str, str]]] = {}
            for name in self.list_commands(ctx):
                command: Any = self.get_command(ctx, name)
                sections.setdefault(command.rich_help_panel or "Commands", []).append(
                    (name, split_paragraphs(command.help)[0])
                )
            _write(sections, formatter)
        if root is not ctx:
            for param in root.command.get_params(root):
                if _get_panel(param) == GLOBAL_SECTION:
                    panels.setdefault(GLOBAL_SECTION, []).append(_make_row(param, root))
        panels[GLOBAL_SECTION] = [*panels.pop(GLOBAL_SECTION), ("-h, --help", "Show this page.")]
        _write(panels, formatter)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write examples and exit codes; a command without arguments is its own example."""
        last = [p for p in split_paragraphs(self.help) if p.startswith(LAST_PARAGRAPHS)]
        if not any(p.startswith("Examples:") for p in last):
            last.insert(0, f"Examples:\n  {ctx.command_path}")
        for paragraph in last:
            formatter.write_paragraph()
            if paragraph.startswith("Examples:"):
                formatter.write(f"{paragraph}\n")
            else:
                formatter.write_text(paragraph)


class HelpGroup(HelpPage, typer.core.TyperGroup):
    """A command with sub-commands."""


def split_paragraphs(text: str | None) -> list[str]:
    """Return the paragraphs of a docstring; the first is the summary."""
    return inspect.cleandoc(text or "").split("\n\n")


def _get_panel(param: Any) -> str:
    is_argument = isinstance(param, typer.core.TyperArgument)
    return param.rich_help_panel or ("Arguments" if is_argument else "Options")


def _make_row(param: Any, ctx: Any) -> tuple[str, str]:
    name, text = param.get_help_record(ctx)
    return str(param.metavar) if isinstance(param, typer.core.TyperArgument) else name, text


def _write(panels: Mapping[str, list[tuple[str, str]]], formatter: Any) -> None:
    width = min(max(len(name) for name, _ in chain.from_iterable(panels.values())), MAX_LEFT_COLUMN)
    for title, rows in panels.items():
        with formatter.section(title):
            formatter.write_dl([(name.ljust(width), text) for name, text in rows], col_max=width)


# The characters of bash's COMP_WORDBREAKS that occur in names without quotes.
WORD_BREAKS = frozenset("=:@")


def join_words(words: Sequence[str], at: int) -> tuple[list[str], int, int]:
    """Return the words, the index of the current one, and the number of its kept characters.

    Bash keeps the first characters of a word. `--start=pool1` becomes two words.

    >>> join_words(["subcut", "--end", "layer", ":", "0"], 4)
    (['subcut', '--end', 'layer:0'], 2, 6)
    >>> join_words(["subcut", "--end", "=", "layer"], 3)
    (['subcut', '--end', 'layer'], 2, 0)
    """
    out: list[str] = []
    open_ended = False
    current = max(len(words) - 1, 0)
    kept = 0
    for i, word in enumerate(words):
        breaks = bool(word) and WORD_BREAKS.issuperset(word)
        if word == "=" and out and out[-1].startswith("--"):
            out.append("")
        elif out and (breaks or open_ended):
            out[-1] += word
        else:
            out += word.split("=", 1) if re.match(r"--[\w-]+=", word) else [word]
        open_ended = breaks
        if i == at:
            current = len(out) - 1
            kept = 0
            if out[-1].endswith(word):
                kept = len(out[-1]) - len(word) * (not breaks)
    return out, current, kept


def make_replies(names: Iterable[str], word: str, kept: int) -> list[str]:
    """Return the replies for `names`, if bash keeps the first `kept` characters of `word`.

    >>> make_replies(["layer:0", "layer:a b"], "layer:", 6)
    ['0', 'a\\\\ b']
    """
    if word.startswith("'"):
        return [name for name in names if "'" not in name]
    if word.startswith('"'):
        return [re.sub(r'([\\"$`])', r"\\\1", name) for name in names]
    return [re.sub(r"([^\w@%+=:,./-])", r"\\\1", name[kept:]) for name in names]
