"""The command line -> a page per command, written when the site is built: what `--help` shows, as
headings and lists.

The pages go to docs/commands/ and are not committed.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import typer

from subgraph import cli

FOLDER = Path(__file__).parent / "commands"
SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~$])")
OPTION = re.compile(r"(?<![\w-])(--?[a-z][\w-]*)")
GLOBAL_SECTION = "Everywhere"  # the section of the options that every command has


def pages() -> dict[str, str]:
    """File name -> Markdown: index.md, and a page per command."""
    group: Any = typer.main.get_command(cli.app)
    with group.make_context("subcut", [], resilient_parsing=True) as top:
        commands = {name: group.get_command(top, name) for name in group.list_commands(top)}
        result = {
            f"{name}.md": "\n".join(_page(command, top, f"subcut {name}"))
            for name, command in commands.items()
        }
        result["index.md"] = "\n".join(_index(group, top, commands))
    return result


def write() -> None:
    """Write pages that are new or have changed, and remove those of commands that are no more."""
    FOLDER.mkdir(exist_ok=True)
    wanted = pages()
    for stale in FOLDER.glob("*.md"):
        if stale.name not in wanted:
            stale.unlink()
    for name, text in wanted.items():
        path = FOLDER / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def setup(app: Any) -> dict[str, bool]:
    """Sphinx's entry: write the pages before it looks for them."""
    app.connect("builder-inited", lambda _: write())
    return {"parallel_read_safe": True}


def _index(group: Any, top: Any, commands: dict[str, Any]) -> Iterator[str]:
    yield "# Commands\n"
    yield "What `subcut COMMAND --help` shows, a page per command.\n"
    sections: dict[str, list[str]] = {}
    for name, command in commands.items():
        line = f"- [`subcut {name}`]({name}.md): {_markdown(_paragraphs(command.help)[0])}"
        sections.setdefault(command.rich_help_panel or "All", []).append(line)
    for title, lines in sections.items():
        yield from (f"## {title}\n", *lines, "")
    yield "## Options of every command\n"
    yield from _options(group, top)
    yield from ("```{toctree}", ":hidden:", "", *commands, "```")


def _page(command: Any, parent: Any, words: str, level: str = "#") -> Iterator[str]:
    """What one command's help says, under a heading of this level."""
    with command.make_context(words.split()[-1], [], parent=parent, resilient_parsing=True) as ctx:
        yield f"{level} {words}\n"
        first, *rest = _paragraphs(command.help)
        yield f"{_markdown(first)}\n"
        yield f"```text\n{' '.join(ctx.get_usage().split()).removeprefix('Usage: ')}\n```\n"
        for paragraph in rest:
            yield f"{_examples(paragraph) or _markdown(paragraph)}\n"
        yield from _options(command, ctx, level)
        for name in command.list_commands(ctx) if hasattr(command, "list_commands") else ():
            yield from _page(command.get_command(ctx, name), ctx, f"{words} {name}", f"{level}#")


def _options(command: Any, ctx: Any, level: str = "#") -> Iterator[str]:
    """A definition list per section of the help."""
    panels: dict[str, list[str]] = {}
    for param in command.get_params(ctx):
        if param.name == "help" or getattr(param, "hidden", False):
            continue
        is_argument = param.param_type_name == "argument"
        name, text = param.get_help_record(ctx)
        title = param.rich_help_panel or ("Arguments" if is_argument else "Options")
        shown = param.metavar or name if is_argument else name
        panels.setdefault(title, []).append(f"`{shown}`\n: {_markdown(text)}\n")
    for title, entries in panels.items():
        yield from ([] if title == GLOBAL_SECTION else [f"**{title}**\n"])
        yield from entries


def _examples(paragraph: str) -> str:
    """A paragraph of examples as a block of code; empty for any other."""
    title, _, lines = paragraph.partition("\n")
    return (
        f"**{title}**\n\n```sh\n{inspect.cleandoc(lines)}\n```"
        if title.startswith("Example")
        else ""
    )


def _paragraphs(text: str | None) -> list[str]:
    return inspect.cleandoc(text or "").split("\n\n")


def _markdown(text: str) -> str:
    """Plain text as Markdown that shows the same; options, and what stands between backticks, as
    code."""
    words = " ".join(text.split()).split("`")
    plain = (OPTION.sub(r"`\1`", SPECIAL.sub(r"\\\1", part)) for part in words[::2])
    return "".join(
        part + (f"`{code}`" if code else "")
        for part, code in zip_longest(plain, words[1::2], fillvalue="")
    )
