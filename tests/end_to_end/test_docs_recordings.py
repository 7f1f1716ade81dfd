"""The pages docs/from-*.md are correct: each command, from a recording to the wrong node, prints what is shown."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fixtures import ROOT, board, device, recordings
from tests.helpers.run_command import PATIENCE, environment

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("from-*.md"))
LEFT_OUT = "…"
BIN = Path(sys.executable).parent
WRONG = re.compile(r"\bFAIL\b|smallest failing region|\b[1-9]\d* of \d+ tensors? wrong")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `python -m fixtures.recordings` writes."""
    place = tmp_path_factory.mktemp("recordings")
    recordings.write(place)
    return place


def _commands(page: Path) -> list[tuple[str, list[str]]]:
    """(command, the lines that it is to print) of each console block, in order."""
    pairs = []
    for block in re.findall(r"```console\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *shown = part.rstrip().split("\n")
            pairs.append((command, shown))
    return pairs


def _code(shown: list[str]) -> int:
    """The exit code that the shown lines mean."""
    return 1 if any(WRONG.search(line) for line in shown) else 0


def _steady(line: str) -> str:
    """Without the digits that another machine rounds otherwise, and without the blanks that align them."""
    line = re.sub(r"worst at \[.*|-?\d+\.\d+(e[-+]\d+)?|\d+(?= ×| of \d+ (values off|tensors? wrong))", "N", line)
    return " ".join(line.split())


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_command_of_a_page_prints_what_is_shown(page: Path, folder: Path) -> None:
    pairs = _commands(page)
    assert len(pairs) >= 3
    env = environment({"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"})
    for command, shown in pairs:
        done = subprocess.run(
            shlex.split(command),
            cwd=folder / page.stem.removeprefix("from-"),
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
        assert done.returncode == _code(shown), f"{command}\n{done.stdout}"
        printed = [_steady(line) for line in done.stdout.splitlines()]
        for line in shown:
            wanted = _steady(line.removesuffix(LEFT_OUT))
            found = any(p.startswith(wanted) if line.endswith(LEFT_OUT) else p == wanted for p in printed)
            assert found, f"{command}: no line '{line}' in\n{done.stdout}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_a_page_has_its_parts_and_its_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.splitlines()[2] == "| you do today | with subcut |"
    assert re.findall(r"^## (.*)", text, re.MULTILINE) == ["An example", "What differs", "What is not covered"]
    assert "not run" in text.lower() or "not from a board" in text
    assert 60 <= len(text.splitlines()) <= 120
    for link in re.findall(r"\]\(([^)#]+)", text):
        assert (page.parent / link).exists(), link


def test_the_board_is_right_up_to_its_fault() -> None:
    """So that what the pages find is what was put there."""
    model, fed = device.net(), {"data": device.fed()}
    names = [node.output[0] for node in model.graph.node]
    right = board.results(recordings.all_outputs(model, names), fed)
    wrong = board.results(recordings.all_outputs(board.altered(model, {"pads": "/block6/conv30"}), names), fed)
    first = next(n for n in names if not np.array_equal(right[n], wrong[n]))
    assert first == "/block6/conv30_output_0"
    untouched = board.results(recordings.all_outputs(board.altered(model, {"pads": "elsewhere"}), names), fed)
    assert all(np.array_equal(right[n], untouched[n]) for n in names)
