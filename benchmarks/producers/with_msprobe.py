# /// script
# dependencies = ["torch==2.13.0+cpu", "mindstudio-probe==26.2.0"]
# [tool.subcut]
# says = "msprobe 26.2.0, PrecisionDebugger, level mix, on a CPU"
# ///
"""Ascend's msprobe on a CPU: modules and calls of functions, `dump.json` and `dump_tensor_data/`."""  # noqa: E501

from __future__ import annotations

import sys
from pathlib import Path

import torch
from msprobe.pytorch import PrecisionDebugger
from networks import network


def main(place: Path, state: str, out: Path) -> None:
    """Record one step."""
    net, x = network(place.name, int((place / "seed").read_text()), faulty=state == "faulty")
    debugger = PrecisionDebugger(dump_path=str(out), task="tensor", level="mix")
    debugger.start(model=net)
    with torch.no_grad():
        net(x)
    debugger.stop()
    debugger.step()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
