"""What tests share: one process that runs the reference, since starting one takes longer than most tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from subgraph.capture import Reference


@pytest.fixture(scope="session")
def reference() -> Iterator[Reference]:
    """A reference for all tests of a session; not for models that may bring it down."""
    with Reference() as shared:
        yield shared
