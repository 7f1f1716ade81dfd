"""A device that takes its time: onnxruntime behind a pause, for `-c
benchmarks/simulated_device.py:seconds=4,log=DIR`.

seconds  that a load takes
log      a folder, whose file of the process's number gets a line `BEGIN END` per run, by
`time.time` faults   as of `benchmarks.faulty`
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks import faulty
from benchmarks.faulty import Run


def version() -> str:
    """It has one, as runtimes have."""
    return "1"


def load(model: Path, options: Mapping[str, str]) -> Run:
    """A session on the model, after the pause; what a run takes is noted when it ends."""
    begin = time.time()
    run = faulty.load(model, {name: options.get(name, "") for name in ("faults", "shy")})
    time.sleep(max(0.0, begin + float(options.get("seconds", 0)) - time.time()))
    if options.get("log"):
        with Path(options["log"], str(os.getpid())).open("a", encoding="ascii") as file:
            file.write(f"{begin:.6f} {time.time():.6f}\n")
    return run
