"""A library is loaded when one of its names is first read."""

from __future__ import annotations

import sys

from tests.helpers.run_command import run_program

PROGRAM = """
import sys
from subgraph.lazy import np
assert "numpy" not in sys.modules
print(np.float32(1.5), "numpy" in sys.modules)
"""


def test_library_is_loaded_at_its_first_use() -> None:
    done = run_program([sys.executable, "-c", PROGRAM])
    assert done.stdout.split() == ["1.5", "True"]
