"""The texts that users read: each command of `tests/said/` prints what its transcript holds.

`make said` writes the transcripts anew; then the difference that version control shows is what to
read.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path

import pytest

from fixtures import ROOT
from subgraph import cli
from tests.helpers.transcripts import renew

pytestmark = pytest.mark.small_inputs
SAID = ROOT / "tests" / "said"
SLOW = [  # many processes
    *"bisect-candidates bisect-ends blame-found compare-faults".split(),
    *"notebook plan-made plugins sweep sweep-results".split(),
]
PAGES = [
    pytest.param(page, id=page.stem, marks=[pytest.mark.slow] if page.stem in SLOW else [])
    for page in sorted(SAID.glob("*.md"))
]
WRITES = os.environ.get("SAID") == "write"


@pytest.mark.posix("its transcripts have the paths and signals of POSIX")
@pytest.mark.parametrize("page", PAGES)
def test_each_command_prints_what_its_transcript_holds(
    page: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    text = page.read_text(encoding="utf-8")
    swept = "Folder: `swept`" in text
    renewed = renew(text, tmp_path, request.getfixturevalue("operator_tests") if swept else None)
    if WRITES:
        page.write_text(renewed, encoding="utf-8")
    elif renewed != text:
        changes = difflib.unified_diff(
            text.splitlines(), renewed.splitlines(), page.name, "printed now", lineterm=""
        )
        pytest.fail("\n".join(["`make said` writes it anew:", *changes]), pytrace=False)


def test_each_command_has_a_transcript() -> None:
    assert {*cli.COMMANDS} <= {page.stem for page in SAID.glob("*.md")}
