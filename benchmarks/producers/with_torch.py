# /// script
# dependencies = ["torch==2.13.0+cpu", "onnx==1.23.2", "numpy"]
# [tool.subcut]
# says = "torch 2.13.0, forward hooks of all modules"
# ///
"""torch's forward hooks: each module's output as `.npy`, by the module's name."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from networks import network


def main(place: Path, state: str, out: Path) -> None:
    """Record one run."""
    net, x = network(place.name, int((place / "seed").read_text()), faulty=state == "faulty")
    for name, module in net.named_modules():
        if name:
            module.register_forward_hook(
                lambda _module, _inputs, output, name=name: np.save(
                    out / f"{name}.npy", output.numpy()
                )
            )
    with torch.no_grad():
        net(x)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
