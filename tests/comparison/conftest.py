"""A region whose tensors are captured, for the tests of noise and of the criterion on top of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from subgraph.runtime.reference import Reference
from tests.helpers.captured_region import Make, region_maker


@pytest.fixture
def make(tmp_path: Path, reference: Reference) -> Make:
    return region_maker(tmp_path, reference)
