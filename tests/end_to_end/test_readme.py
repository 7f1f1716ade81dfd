"""The README is correct: its commands print what it shows, its Python runs, its `make` targets
exist.

`test_docs` checks its links and that each command line in it exists.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from PIL import Image

from fixtures import ROOT
from subgraph.runtime import devices
from tests.helpers.pages import blocks, console, run_page
from tests.helpers.run_command import in_process, run_program

pytestmark = pytest.mark.small_inputs
README = (ROOT / "README.md").read_text(encoding="utf-8")
MAX_LINES = 160
MAX_PICTURE = 120_000  # bytes


def test_the_readme_is_short_and_begins_with_the_problem() -> None:
    assert len(README.splitlines()) <= MAX_LINES
    first_screen = README[: README.index("## Your runtime")]
    assert "pip install ." in first_screen
    first, *_, last = (command.line for command in console(first_screen))
    assert first == "subcut demo d" and last.startswith("subcut bisect model.onnx -c wrong.py")


def test_readme_has_a_small_picture() -> None:
    (link,) = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", README)
    assert (ROOT / link).stat().st_size < MAX_PICTURE
    with Image.open(ROOT / link) as picture:
        assert picture.size[0] >= 800


@pytest.mark.parametrize("name", [*devices.DEVICES, "web", "arch=aarch64"])
def test_the_readme_names_each_device_with_its_status(name: str) -> None:
    (row,) = (
        line
        for line in README.splitlines()
        if re.match(rf"\| [^|]*\| [^|]*(?:`|:){re.escape(name)}`[^|]*\|", line)
    )
    assert re.search(r"\| (tested (on|in) [^|]*|not run by us) \|$", row)


@pytest.mark.slow
def test_console_blocks_print_what_the_readme_says(tmp_path: Path) -> None:
    assert len(console(README)) >= 5
    run_page(README, tmp_path, apart=True)


@pytest.mark.slow
def test_the_python_block_runs(tmp_path: Path) -> None:
    in_process("demo", tmp_path / "d")
    (block,) = blocks(README, "python")
    truth = "assert search.result.findings[0].nodes == ['stem/pad', 'stem/pool']"
    done = run_program([sys.executable, "-c", f"{block}\n{truth}"], cwd=tmp_path / "d")
    assert done.returncode == 0, done.stderr


def test_make_targets_in_the_readme_exist() -> None:
    targets = set(
        re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    )
    assert set(re.findall(r"make ([a-z-]+)", README)) <= targets
