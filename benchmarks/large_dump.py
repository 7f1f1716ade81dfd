"""A dump folder larger than memory should be: `subcut compare --recorded` on 10 GB, and what memory
it takes.

    python -m benchmarks.large_dump [--gb 10] [--keep FOLDER]

A chain of Add and Mul, tensors of 100 MB, one layer off. RssAnon is summed over the process and all
its children, every 20 ms. Exit 1 if it is above 2 GB, or the first bad tensor is not the right one.
Takes 2 times as much disk again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks import machine
from benchmarks.measure import children, floor

SHAPE = (1, 25, 1000, 1000)
EACH = 100e6  # bytes
LIMIT = 2 << 30
WRONG = 0.6  # of the way


def chain(length: int) -> onnx.ModelProto:
    """x · 0.99, + 0.01, and so on."""
    nodes = [
        helper.make_node(
            ("Mul", "Add")[k % 2], [f"t{k - 1}" if k else "data", f"c{k % 2}"], [f"t{k}"], f"n{k}"
        )
        for k in range(length)
    ]
    constants = [
        numpy_helper.from_array(np.array(c, np.float32), f"c{k}")
        for k, c in enumerate((0.99, 0.01))
    ]
    ends = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, SHAPE)
        for n in ("data", f"t{length - 1}")
    ]
    graph = helper.make_graph(nodes, "large", ends[:1], ends[1:], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def dump(length: int, wrong: int, folder: Path) -> None:
    """What the device leaves: layer `wrong` is off, and all behind it."""
    value = np.random.default_rng(0).random(SHAPE, np.float32)
    np.save(folder / "data.npy", value)
    for k in range(length):
        value = value * np.float32(0.99) if k % 2 == 0 else value + np.float32(0.01)
        if k == wrong:
            value[..., :100] += np.float32(0.2)
        np.save(folder / f"t{k}.npy", value)


def rss_anon(pid: int) -> int:
    """Bytes of a process and all that it has started."""
    found = 0
    with contextlib.suppress(OSError, StopIteration):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        found = int(next(line.split()[1] for line in lines if line.startswith("RssAnon"))) << 10
    return found + sum(map(rss_anon, children(pid)))


def main() -> int:
    """Print what it took; 1 if a limit is not kept."""
    words = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    words.add_argument("--gb", type=float, default=10.0)
    words.add_argument("--keep", type=Path)
    said = words.parse_args()
    length = round(said.gb * 1e9 / EACH)
    wrong = int(length * WRONG)
    print(machine.line(floor(), "onnxruntime", "numpy"))
    home = said.keep or Path(tempfile.mkdtemp())
    try:
        (home / "dump").mkdir(parents=True, exist_ok=True)
        onnx.save(chain(length), home / "large.onnx")
        dump(length, wrong, home / "dump")
        begin = time.monotonic()
        most = 0
        command = [
            str(Path(sys.executable).with_name("subcut")),
            "compare",
            "large.onnx",
            "--recorded",
            "dump",
            "--json",
        ]
        with (
            (home / "out.json").open("wb") as out,
            subprocess.Popen(command, cwd=home, stdout=out) as running,
        ):
            while running.poll() is None:
                most = max(most, rss_anon(running.pid))
                time.sleep(0.02)
        seconds = time.monotonic() - begin
        found = json.loads((home / "out.json").read_text())
    finally:
        if not said.keep:
            shutil.rmtree(home)
    first = found["recordings"][0]["first_bad"] if "recordings" in found else found
    print(
        f"{said.gb:g} GB in {length} tensors: {seconds:.0f} s, RssAnon at most {most / 2**30:.2f}"
        f" GB, first bad {first}"
    )
    return 0 if most <= LIMIT and first == f"t{wrong}" else 1


if __name__ == "__main__":
    sys.exit(main())
