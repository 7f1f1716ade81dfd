"""How long a layout takes, beside dagre, elkjs and graphviz.

    python -m benchmarks.drawing [--peers DIR]

`--peers`: a folder in which `npm install @dagrejs/dagre elkjs @viz-js/viz` was run; node must be on
PATH. The networks are a ResNet-50, a transformer of 12 and of 360 layers, and a detector with heads
of many small nodes. Ours: the groups and the collapsed drawing, one more group of median size
opened, all groups opened (the median of five); peers lay out all nodes, since they make no groups.
Processor time, which a busy machine changes least. Exit 1 if a limit is not kept.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from fixtures import resnet50
from subgraph.drawing.layered import place_in_layers
from subgraph.drawing.layout import MAX_BOXES, Drawer
from subgraph.drawing.network import Network
from subgraph.graph.graph import load
from subgraph.inspection.drawn_network import make_network

PATIENCE = 60  # seconds for a peer
REPEATS = 5
COLLAPSED, ONE, ALL = 0.1, 0.02, 1.5  # seconds at 10,000 nodes
PEERS = ("dagre", "elkjs", "graphviz")
PEER = """
const [,, name, file] = process.argv;
const {createRequire} = require("module");
const need = createRequire(process.cwd() + "/");
const {nodes, edges} = JSON.parse(require("fs").readFileSync(file));
const now = () => { const used = process.cpuUsage(); return (used.user + used.system) / 1e6; };
const took = begin => console.log(now() - begin);
if (name === "dagre") {
  const dagre = need("@dagrejs/dagre"), g = new dagre.graphlib.Graph();
  g.setGraph({}); g.setDefaultEdgeLabel(() => ({}));
  for (const i of nodes) g.setNode(String(i), {width: 90, height: 36});
  for (const [a, b] of edges) g.setEdge(String(a), String(b));
  const begin = now(); dagre.layout(g); took(begin);
} else if (name === "elkjs") {
  const elk = new (need("elkjs"))();
  const begin = now();
  elk.layout({id: "r", layoutOptions: {"elk.algorithm": "layered", "elk.direction": "DOWN"},
    children: nodes.map(i => ({id: String(i), width: 90, height: 36})),
    edges: edges.map(([a, b], k) => ({id: "e" + k, sources: [String(a)], targets: [String(b)]}))
  }).then(() => took(begin));
} else {
  const {instance} = need("@viz-js/viz");
  instance().then(viz => {
    const text = "digraph {" + edges.map(([a, b]) => a + "->" + b).join(";") + "}";
    const begin = now(); viz.renderJSON(text); took(begin);
  });
}
"""


def transformer(layers: int) -> Network:
    """An encoder with scoped names, a mask that every layer reads, 28 nodes a layer."""
    names = ["/embed/Gather", "/Mask"]
    ops = ["Gather", "Sub"]
    reads = [["ids"], ["mask"]]
    makes = [["x"], ["m"]]

    def node(name: str, op: str, *read: str) -> str:
        names.append(name)
        ops.append(op)
        reads.append(list(read))
        makes.append([name])
        return name

    x = "x"
    for k in range(layers):
        scope = f"/encoder/layer.{k}"
        heads = []
        for part in ("query", "key", "value"):
            y = node(f"{scope}/attention/self/{part}/MatMul", "MatMul", x, "w")
            y = node(f"{scope}/attention/self/{part}/Add", "Add", y, "b")
            y = node(f"{scope}/attention/self/Reshape_{part}", "Reshape", y)
            heads.append(node(f"{scope}/attention/self/Transpose_{part}", "Transpose", y))
        y = node(f"{scope}/attention/self/MatMul", "MatMul", *heads[:2])
        y = node(f"{scope}/attention/self/Add", "Add", y, "m")
        y = node(f"{scope}/attention/self/Softmax", "Softmax", y)
        y = node(f"{scope}/attention/self/MatMul_1", "MatMul", y, heads[2])
        y = node(f"{scope}/attention/output/dense/MatMul", "MatMul", y, "w")
        y = node(f"{scope}/attention/output/dense/Add", "Add", y, "b")
        y = node(f"{scope}/attention/output/Add", "Add", y, x)
        x = node(f"{scope}/attention/output/Norm", "LayerNormalization", y)
        y = node(f"{scope}/intermediate/dense/MatMul", "MatMul", x, "w")
        y = node(f"{scope}/intermediate/dense/Add", "Add", y, "b")
        z = node(f"{scope}/intermediate/act/Erf", "Erf", y)
        y = node(f"{scope}/intermediate/act/Mul", "Mul", y, z)
        y = node(f"{scope}/output/dense/MatMul", "MatMul", y, "w")
        y = node(f"{scope}/output/dense/Add", "Add", y, "b")
        y = node(f"{scope}/output/Add", "Add", y, x)
        x = node(f"{scope}/output/Norm", "LayerNormalization", y)
    return Network(
        names, ops, reads, makes, ["ids", "mask"], [x], dict.fromkeys(names, "float32 1×128×768")
    )


def detector(blocks: int = 90, heads: int = 20) -> Network:
    """A backbone with residual blocks, five levels, heads of many small nodes; names that tell no
    scopes."""
    ops: list[str] = []
    reads: list[list[str]] = []

    def node(op: str, *read: str) -> str:
        ops.append(op)
        reads.append(list(read))
        return f"t{len(ops) - 1}"

    x = "image"
    levels = []
    ends = []
    for k in range(blocks):
        y = x
        for op in ("Conv", "Relu", "Conv", "Relu", "Conv", "BatchNormalization"):
            y = node(op, y)
        x = node("Relu", node("Add", y, x))
        if k % (blocks // 5) == blocks // 5 - 1:
            levels.append(x)
    shape = node("Shape", "image")
    for k in range(heads):
        y = levels[k % 5]
        for _ in range(20):
            y = node("Relu", node("Conv", y))
        for _ in range(20):
            y = node("Where", node("Greater", y, shape), node("Sigmoid", y), y)
        ends.append(y)
    end = node("NonMaxSuppression", node("Concat", *ends))
    names = [f"{op}_{i}" for i, op in enumerate(ops)]
    return Network(names, ops, reads, [[f"t{i}"] for i in range(len(ops))], ["image"], [end])


def ours(net: Network) -> list[float]:
    """Seconds: collapsed with the groups made, one more group, all groups; the median of each."""
    return [
        statistics.median(column)
        for column in zip(*(_once(net) for _ in range(REPEATS)), strict=True)
    ]


def _once(net: Network) -> tuple[float, float, float]:
    place_in_layers.cache_clear()
    begin = time.process_time()
    drawer = Drawer(replace(net))  # a copy, whose tables are not made yet
    drawer.layout()
    collapsed = time.process_time()
    closed = [
        g
        for g in drawer.tree.groups.values()
        if g.key and g.key not in drawer.tree.choose_open(MAX_BOXES)
    ]
    middle = sorted(closed, key=lambda g: len(g.leaves))[len(closed) // 2].key
    around = {*drawer.tree.choose_open(MAX_BOXES), *drawer.tree.list_around(middle)}
    drawer.layout(around - {middle})
    before = time.process_time()
    drawer.layout(around)
    one = time.process_time()
    drawer.layout(drawer.tree.numbers)
    return collapsed - begin, one - before, time.process_time() - one


def peer(name: str, folder: Path | None, net: Network) -> str:
    """Seconds that a peer takes for all nodes, or how it failed."""
    if folder is None:
        return "–"
    edges = {(m, i) for i in range(len(net.ops)) for m, _ in net.sources[i] if m < len(net.ops)}
    with tempfile.TemporaryDirectory() as place:
        script = Path(place) / "peer.cjs"
        data = Path(place) / "graph.json"
        script.write_text(PEER)
        data.write_text(json.dumps({"nodes": list(range(len(net.ops))), "edges": sorted(edges)}))
        try:
            done = subprocess.run(
                ["node", script, name, data],
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=PATIENCE,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"> {PATIENCE} s"
    if done.returncode:
        return "stack overflow" if "call stack" in done.stderr else "failed"
    return f"{float(done.stdout):.2f} s"


def main() -> int:
    """Print the table; 1 if a limit is not kept."""
    gc.set_threshold(500_000, 20, 20)  # as the command line does
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=Path)
    folder: Path | None = parser.parse_args().peers
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "resnet50.onnx"
        path.write_bytes(resnet50.build(width=4, size=32, classes=10).SerializeToString())
        resnet = make_network(load(path))
    nets = {
        "ResNet-50": resnet,
        "transformer": transformer(12),
        "detector": detector(),
        "large": transformer(360),
    }
    print(f"| network | nodes | collapsed | one group | all open | {' | '.join(PEERS)} |")
    print("|---|---|---|---|---|---|---|---|")
    kept = True
    for name, net in nets.items():
        collapsed, one, whole = ours(net)
        kept &= collapsed <= COLLAPSED and one <= ONE and whole <= ALL
        peers = " | ".join(peer(p, folder, net) for p in PEERS)
        times = " | ".join(f"{t * 1000:.0f} ms" for t in (collapsed, one, whole))
        print(f"| {name} | {len(net.ops):,} | {times} | {peers} |", flush=True)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
