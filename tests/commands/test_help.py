"""Pages of `--help`: sections, widths, examples that can be typed in the folder of `subcut demo`.

Covers `commands.help`.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from fixtures import ROOT
from subgraph import cli
from subgraph.commands import help as pages
from subgraph.commands.manual import ACTIONS
from tests.helpers.pages import run_words
from tests.helpers.run_command import in_process, subcut

APP: Any = typer.main.get_command(cli.app)
SUMMARY = 80 - len("  backends  ") - 2
NAMES = [*cli.COMMANDS, *(f"manual {action}" for action in ACTIONS)]
GLOBAL = ("--json", "-v, --verbose", "-q, --quiet", "--color", "--progress", "-h, --help")


@functools.cache
def page(name: str) -> str:
    """What `subcut NAME --help` prints."""
    group = APP
    ctx = typer.Context(group, info_name="subcut")
    for word in name.split():
        group = group.get_command(ctx, word)
        ctx = typer.Context(group, info_name=word, parent=ctx)
    return str(group.get_help(ctx))


def sections(text: str) -> dict[str, list[str]]:
    """Title → lines."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if re.match(r"\w.*:$", line):
            found[line[:-1]] = []
        elif found:
            found[list(found)[-1]].append(line)
    return found


def examples(name: str) -> list[str]:
    """The commands that the page of a command shows."""
    lines = sections(page(name))["Examples"]
    return [line.strip() for line in lines if line.startswith("  ")]


@pytest.mark.parametrize("name", ["", *NAMES])
def test_page_fits_80_columns_and_has_examples_and_the_global_options(name: str) -> None:
    text = page(name)
    assert max(map(len, text.splitlines())) <= 80
    assert examples(name)
    shown = sections(text)
    assert all(
        any(line.strip().startswith(option) for line in shown["Everywhere"]) for option in GLOBAL
    )
    assert "<str>" not in text and "[[" not in text and "[default" not in text
    if "Exit code" in text:
        assert text.index("Exit code") > text.index("Examples:")


@pytest.mark.slow
def test_real_process_shows_that_page(tmp_path: Path) -> None:
    for name in ("", "bisect", "manual take"):
        done = subcut(*name.split(), "--help", cwd=tmp_path, env={"COLUMNS": "80"})
        assert (done.code, done.out.strip(), done.err) == (0, page(name).strip(), "")


def test_the_commands_stand_in_groups_with_whole_summaries() -> None:
    shown = sections(page(""))
    for title, names in pages.GROUPS.items():
        lines = [line for line in shown[title] if line]
        assert [line.split()[0] for line in lines] == names
        assert all(line.endswith(".") for line in lines)
    assert "docs/words.md" in page("") and (ROOT / "docs/words.md").exists()
    for name in NAMES:
        assert len(pages.split_paragraphs(_help(name))[0]) <= SUMMARY


def _help(name: str) -> str:
    first, _, action = name.partition(" ")
    command: Any = APP.get_command(None, first)
    return str((command.commands[action] if action else command).help)


def test_options_stand_in_sections() -> None:
    shown = sections(page("bisect"))
    assert [*shown][:3] == ["Arguments", "Candidate: what is tested", "Options"]
    assert any("--max-trials" in line for line in shown["Options"])
    assert any("--criterion" in line for line in shown["The rule of agreement"])
    assert any(
        "--recorded" in line for line in sections(page("cut"))["Recording: a device's layer dumps"]
    )


def test_subcut_alone_shows_five_tasks(tmp_path: Path) -> None:
    done = subcut(cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    tasks = [
        line.split("  ")[-1].strip() for line in done.out.splitlines() if line.startswith("  ")
    ]
    assert tasks == [*pages.TASKS.values(), "subcut demo DIR"]
    assert len(pages.TASKS) == 5
    assert max(map(len, done.out.splitlines())) <= 80
    assert subcut("--json", cwd=tmp_path).document["tasks"] == pages.TASKS


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_takes_the_global_options_behind_it(
    name: str, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    group = APP
    words = [name, "-q", "-v", "--json", "--color", "never", "--no-progress"]
    ctx = group.make_context("subcut", words)
    assert (ctx.params["as_json"], ctx.params["verbose"], ctx.params["quiet"]) == (True, True, True)
    assert (ctx.params["color"], ctx.params["progress"]) == ("never", False)
    assert [*ctx._protected_args, *ctx.args] == [name]


def commands(name: str) -> Iterator[list[str]]:
    """The words of each subcut command in the examples of a page, from the command's name on."""
    for line in examples(name):
        for part in line.split("  ")[0].split("&&"):
            words = shlex.split(part)
            if words[0] == "subcut":
                yield cli.arrange(words[1:], set(cli.COMMANDS))


@pytest.mark.parametrize("name", ["", *NAMES])
def test_examples_have_options_that_exist(name: str) -> None:
    group = APP
    for words in commands(name):
        ctx = group.make_context("subcut", [*words])
        command: Any = group.get_command(ctx, words[0])
        if words[0] == "manual":
            words = words[1:]
            command = command.commands[words[0]]
        inner = command.make_context(words[0], words[1:], parent=ctx)
        assert not inner.args


@pytest.mark.slow
def test_examples_run_in_the_folder_of_the_demo(tmp_path: Path, operator_tests: Path) -> None:
    """In the order of the pages, so that what one writes is there for the next."""
    in_process("demo", tmp_path / "d")
    shutil.copytree(operator_tests, tmp_path / "d" / "subcut_out" / ".store", copy_function=os.link)
    page = (ROOT / "docs" / "candidates.md").read_text(encoding="utf-8")
    script = re.search(r"```py\n(?:# run.py\n)?(import json\n.*?)```", page, re.DOTALL)
    assert script
    (tmp_path / "d" / "run.py").write_text(script[1])
    order = (
        "demo cut replace remove merge dump bisect bundle replay compare sweep export inspect lint"
        " report backends"
    )
    for line in (line for name in [*order.split(), "doctor"] for line in examples(name)):
        by_shell = (
            ["bash", "-c", line] if re.search("[&|>;]", line) else shlex.split(line, comments=True)
        )
        code, printed = run_words(by_shell, tmp_path / "d")
        wrong = "wrong.py" in line and not line.startswith(("subcut bundle", "subcut report"))
        assert code == (1 if wrong else 0), f"{line}\n{printed}"


@pytest.mark.parametrize("name", NAMES)
def test_tab_knows_the_candidates_and_criteria_of_each_command(name: str) -> None:
    command: Any = APP
    ctx = typer.Context(command, info_name="subcut")
    for word in name.split():
        command = command.get_command(ctx, word)
        ctx = typer.Context(command, info_name=word, parent=ctx)
    known = {"--candidate": ("o", {"ort", "opencv"}), "--criterion": ("n", {"noise", "numpy"})}
    for parameter in command.params:
        for option in known.keys() & {*parameter.opts}:
            begun, wanted = known[option]
            assert wanted <= {item.value for item in parameter.shell_complete(ctx, begun)}, option
