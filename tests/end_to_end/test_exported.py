"""Faults planted into what PyTorch's exporter writes, found with their lines of code; all:
`benchmarks.exported`."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.exported import FAULTS, Fault, outcome

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (find_spec("torch") and find_spec("onnxscript")),
        reason="torch and onnxscript are not installed",
    ),
    pytest.mark.filterwarnings("ignore"),  # torch uses its own deprecated functions
]
TRIED = ("epsilon", "another activation", "threshold of NMS")


@pytest.mark.parametrize(
    "fault", [fault for fault in FAULTS if fault.name in TRIED], ids=lambda fault: fault.name
)
def test_the_line_whose_translation_is_wrong(fault: Fault, tmp_path: Path) -> None:
    found = outcome(fault.network, fault, tmp_path)
    assert found.names(fault), found


def test_healthy_export_is_not_blamed(tmp_path: Path) -> None:
    found = outcome("lstm", None, tmp_path)
    assert found.status == "right" and not found.named
