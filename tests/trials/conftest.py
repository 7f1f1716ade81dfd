"""What tests of trials share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from subgraph.runtime.worker_pool import Workers
from tests.helpers.open_trials import faulty_candidate


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    """Processes of the fake candidate; its faults are options, so the tests of a file share
    them."""
    with Workers(faulty_candidate()) as shared:
        yield shared
