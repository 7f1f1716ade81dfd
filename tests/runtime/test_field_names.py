"""Names of the field that are no candidates: what is told of each exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from subgraph import plugins
from subgraph.errors import UsageError
from subgraph.runtime.candidate import RECIPES, parse
from subgraph.runtime.devices import DEVICES, FIELD_NAMES
from tests.helpers.refusals import raises

HOME = Path(__file__).parents[2]


def test_no_name_hides_a_candidate() -> None:
    known = {*plugins.names("backends"), *DEVICES, *RECIPES}
    assert known.isdisjoint(FIELD_NAMES)


@pytest.mark.parametrize("name", FIELD_NAMES)
def test_name_of_the_field_is_answered(name: str) -> None:
    with raises(UsageError, "candidate.other-name") as e:
        parse(name.upper())
    assert e.value.hint == FIELD_NAMES[name]


@pytest.mark.parametrize("answer", dict.fromkeys(FIELD_NAMES.values()))
def test_pages_and_devices_of_an_answer_exist(answer: str) -> None:
    for page in re.findall(r"docs/[\w/.-]+\.md", answer):
        assert (HOME / page).is_file()
    first = re.match(r"-c ([a-z][\w-]*)(?=$|,| \(|:ep)", answer)
    assert first is None or parse(first[1]).backend in plugins.names("backends")
