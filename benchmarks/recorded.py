"""A device that can only be recorded, with a fault in each of its 50 layers in turn: is the
interval right?

    python -m benchmarks.recorded [--seed N]

Right: the wrong node is in the first interval, and the interval is all that lies between what was
seen right and what was first seen wrong; where names are fused and no value confirms them, up to
the end of the fused node. Exit 1 if not all are right.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import onnx

from benchmarks import machine
from benchmarks.measure import floor
from benchmarks.report import table
from fixtures import device
from subgraph.graph.graph import load
from subgraph.recordings import compare_recording, interval
from subgraph.recordings.device_runs import RecordedFolder, RecordingOptions, open_runs
from subgraph.runtime.inputs import Feeding
from subgraph.runtime.reference import Reference


def tried(
    reference: Reference, model: onnx.ModelProto, kind: device.Kind, wrong: int, seed: int
) -> tuple[bool, int]:
    """(is the interval right, how many nodes it has)."""
    with tempfile.TemporaryDirectory() as temporary:
        home = Path(temporary)
        onnx.save(model, home / "net.onnx")
        data = device.fed(seed)
        left = device.dumps(model, kind, seed + wrong)
        device.save(device.run(model, data, wrong, seed), data, left, home / "dump")
        graph = load(home / "net.onnx")
        with (
            open_runs(
                graph, RecordingOptions((RecordedFolder(home / "dump"),)), Feeding()
            ) as recorded,
            recorded.open_judge(graph, reference, home / "out") as (judge, runs),
        ):
            found = interval.find_intervals(compare_recording.compare_run(judge, runs[0]))
        if not found:
            return False, 0
        nodes = found[0].region.nodes
        truth = device.between(model, wrong, left.seen)
        exact = nodes == truth or (
            kind.fused > 0 and set(truth) <= set(nodes) and len(nodes) <= len(truth) + 2
        )
        return wrong in nodes and exact, len(nodes)


def main() -> int:
    """Print the table; 1 if an interval is wrong."""
    words = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    words.add_argument("--seed", type=int, default=0)
    seed = words.parse_args().seed
    print(machine.line(floor(), "onnxruntime", "numpy"))
    model = device.net(seed)
    rows = []
    wrong = 0
    with Reference() as reference:
        for kind in device.KINDS:
            begin = time.monotonic()
            results = [tried(reference, model, kind, layer, seed) for layer in range(device.LAYERS)]
            right = sum(ok for ok, _ in results)
            wrong += device.LAYERS - right
            sizes = sorted(size for _, size in results)
            each = (time.monotonic() - begin) / device.LAYERS
            middle = sizes[len(sizes) // 2]
            most = sizes[-1]
            rows.append(
                [kind.name, f"{right}/{device.LAYERS}", str(middle), str(most), f"{each:.2f}"]
            )
            print(rows[-1], [k for k, (ok, _) in enumerate(results) if not ok], file=sys.stderr)
    print(table(["dumps", "interval right", "nodes (median)", "nodes (most)", "s each"], rows))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
