"""`make gpu`: an NVIDIA GPU by onnxruntime's CUDA provider, beside onnxruntime on the CPU.

    python -m benchmarks.gpu [--python PATH] [--only healthy,faults,sweep,peer]

Healthy: two networks by `compare`, with TF32, the provider's default, and without. Faults: TF32 and
float16 where float32 is claimed, and one layer in float16, each by `bisect`; `blame` says which
switch is the cause. Sweep: onnx's operator tests. Peer: `polygraphy debug reduce` on the layer in
float16, with a check of its own. `--python`: of an environment that has onnxruntime-gpu; else `-c
cuda` makes one. Without a GPU it says so and ends.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from benchmarks import machine, narrow
from benchmarks.report import table
from fixtures import converted, networks, resnet50
from subgraph.runtime.devices import DEVICES

FOLDER = Path("build/bench/gpu").resolve()
PARTS = ("healthy", "faults", "sweep", "peer")
LAYER = 20  # of the network's Conv or MatMul nodes, the one that is planted
ANSWERED = (0, 1, 5)  # exit codes of subcut that are answers


@dataclass(frozen=True)
class Row:
    """A command on a network, and what it answered."""

    network: str
    command: str
    answer: str
    seconds: float


@dataclass(frozen=True)
class Network:
    """A model in a folder of its own, with an input."""

    name: str
    folder: Path
    feeds: dict[str, Any]

    @property
    def model(self) -> onnx.ModelProto:
        """As it was written."""
        return onnx.load(self.folder / "model.onnx")


def prepare() -> list[Network]:
    """ResNet-50 at full width and a small transformer."""
    rng = np.random.default_rng(5)
    pixels = rng.standard_normal((1, 3, 224, 224)).astype(np.float32)
    tokens = rng.integers(0, networks.VOCABULARY, (1, 24))
    found = []
    for name, model, feeds in (
        ("ResNet-50", resnet50.build(), {"data": pixels}),
        ("transformer", networks.transformer(), {"tokens": tokens}),
    ):
        network = Network(name, FOLDER / name, feeds)
        network.folder.mkdir(parents=True, exist_ok=True)
        onnx.save(model, network.folder / "model.onnx")
        onnx.save(converted.fp16(model, feeds), network.folder / "fp16.onnx")
        onnx.save(one_layer(network.model), network.folder / "layer.onnx")
        for tensor, value in feeds.items():
            np.save(network.folder / f"{tensor}.npy", value)
        found.append(network)
    return found


def one_layer(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with one Conv or MatMul computed in float16, between two casts."""
    products = [k for k, node in enumerate(model.graph.node) if node.op_type in ("Conv", "MatMul")]
    place = products[min(LAYER, len(products) - 1)]
    node = model.graph.node[place]
    nodes = list(model.graph.node)
    made = node.output[0]
    casts = [helper.make_node("Cast", [n], [f"{n}:16"], to=TensorProto.FLOAT16) for n in node.input]
    inner = onnx.NodeProto()
    inner.CopyFrom(node)
    inner.input[:], inner.output[:] = [f"{n}:16" for n in node.input], [f"{made}:16"]
    nodes[place : place + 1] = [
        *casts,
        inner,
        helper.make_node("Cast", [f"{made}:16"], [made], to=TensorProto.FLOAT),
    ]
    copies = [onnx.NodeProto.FromString(n.SerializeToString()) for n in nodes]
    del model.graph.node[:]
    model.graph.node.extend(copies)
    return model


@dataclass(frozen=True)
class Gpu:
    """The candidate. `python`: of an environment that has the provider; "" for one that is made."""

    python: str = ""

    def spec(self, **options: object) -> str:
        """`cuda` with options."""
        given = options | ({"python": self.python} if self.python else {})
        words = ",".join(f"{key}={value}" for key, value in given.items())
        return f"cuda:{words}" if words else "cuda"

    def without_path(self, words: str) -> str:
        """A command as another machine would have it."""
        return (
            words.replace(f":python={self.python}", "").replace(f",python={self.python}", "")
            if self.python
            else words
        )

    def ask(self, network: Network, words: list[str], says: Any) -> Row:
        """One command in the network's folder; `says`: what it answers, of its document."""
        given = [word for tensor in network.feeds for word in ("-i", f"{tensor}={tensor}.npy")]
        found, seconds = run([words[0], "model.onnx", *given, *words[1:]], network.folder)
        row = Row(network.name, self.without_path(" ".join(words)), says(found), seconds)
        print(
            f"  {row.network}: {row.command}: {row.answer}, {row.seconds:.1f} s",
            file=sys.stderr,
            flush=True,
        )
        return row


def run(words: list[str], folder: Path) -> tuple[dict[str, Any], float]:
    """The document and the seconds of a command; what it prints is kept beside."""
    begin = time.perf_counter()
    done = subprocess.run(
        [narrow.BIN / "subcut", *words, "--json"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.perf_counter() - begin
    stem = f"{len(list(folder.glob('*.log')))}-{words[0]}"
    (folder / f"{stem}.log").write_text(" ".join(words) + "\n" + done.stderr)
    (folder / f"{stem}.json").write_text(done.stdout)
    if done.returncode not in ANSWERED:
        return {
            "says": f"exit code {done.returncode}: {done.stdout[-300:]}{done.stderr[-300:]}"
        }, seconds
    return json.loads(done.stdout), seconds


def of_compare(found: dict[str, Any]) -> str:
    """The outcome."""
    return str(found["says"])


def of_bisect(found: dict[str, Any]) -> str:
    """The outcome with what it names."""
    if "outcome" not in found:
        return str(found.get("says"))
    regions = [
        f"{f['kind']} {', '.join(f['nodes'][:3])}{' …' if len(f['nodes']) > 3 else ''}"
        for f in found["findings"]
    ]
    return f"{found['outcome']}: {'; '.join(regions)}" if regions else str(found["outcome"])


def of_blame(found: dict[str, Any]) -> str:
    """The switches that cure."""
    cures = [f"right with {name} off" for name in found.get("switches", ())]
    return "; ".join(cures) or str(found.get("answer", found.get("says")))


def of_sweep(found: dict[str, Any]) -> str:
    """How many tests ended how."""
    if "candidates" not in found:
        return str(found.get("says"))
    return ", ".join(
        f"{number} {word}" for word, number in found["candidates"][0]["totals"].items() if number
    )


def healthy(gpu: Gpu, known: list[Network]) -> Iterator[Row]:
    for network in known:
        yield gpu.ask(network, ["compare", "-c", gpu.spec()], of_compare)
        yield gpu.ask(network, ["compare", "-c", gpu.spec(use_tf32=0)], of_compare)


def faults(gpu: Gpu, known: list[Network]) -> Iterator[Row]:
    for network in known:
        strict = ["-c", gpu.spec(), "--precision", "fp32"]
        yield gpu.ask(network, ["bisect", *strict], of_bisect)
        yield gpu.ask(network, ["blame", *strict], of_blame)
        exact = ["-c", gpu.spec(use_tf32=0), "--precision", "fp32"]
        yield gpu.ask(network, ["bisect", *exact, "--candidate-model", "fp16.onnx"], of_bisect)
        yield gpu.ask(network, ["bisect", *exact, "--candidate-model", "layer.onnx"], of_bisect)


def sweep(gpu: Gpu) -> Iterator[Row]:
    for spec in (gpu.spec(), gpu.spec(use_tf32=0)):
        found, seconds = run(["sweep", "-c", spec, "-j", "4"], FOLDER)
        yield Row("operator tests", f"sweep -c {gpu.without_path(spec)}", of_sweep(found), seconds)


def peer(gpu: Gpu, network: Network) -> Row:
    """Polygraphy's answer where the provider itself is doubted: TF32 against float32."""
    narrow.FOLDER.mkdir(parents=True, exist_ok=True)
    work = narrow.empty("gpu")
    values = narrow.capture(network.folder / "model.onnx", [network.feeds], work / "captured")
    runtime = ["subgraph.runtime.backends.ort", "providers=CUDAExecutionProvider"]
    try:
        names, seconds, runs = narrow.reduced(
            network.folder / "model.onnx",
            values,
            runtime,
            work,
            python=gpu.python or sys.executable,
        )
    except (narrow.PeerFailed, OSError) as e:
        return Row(network.name, "polygraphy debug reduce", f"breaks off: {str(e)[-200:]}", 0.0)
    return Row(
        network.name,
        "polygraphy debug reduce",
        f"{len(names)} nodes, {runs} runs: {', '.join(sorted(names)[:3])}",
        seconds,
    )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--only", default=",".join(PARTS), help="parts to measure, by comma")
    parser.add_argument("--python", default="", help="of an environment that has onnxruntime-gpu")
    asked = parser.parse_args(arguments)
    if lacks := DEVICES["cuda"].missing():
        print(f"no GPU here: cuda {lacks}")
        return 0
    gpu = Gpu(asked.python)
    known = prepare()
    rows = list[Row]()
    parts = {
        "healthy": healthy(gpu, known),
        "faults": faults(gpu, known),
        "sweep": sweep(gpu),
        "peer": (peer(gpu, network) for network in known),
    }
    for row in itertools.chain(*(part for name, part in parts.items() if name in asked.only)):
        rows.append(row)
        written(rows)  # what is known is kept where the machine goes away
    print(written(rows))
    return 0


def written(rows: Sequence[Row]) -> str:
    """The table as it is in the file."""
    lines = [[row.network, f"`{row.command}`", row.answer, f"{row.seconds:.1f}"] for row in rows]
    made = table(["network", "command", "answer", "s"], lines)
    text = f"`python -m benchmarks.gpu` on {card()}, {machine.line(0.0)}\n\n{made}"
    (FOLDER / "gpu.md").write_text(text + "\n")
    return text


@cache
def card() -> str:
    """The GPU's name and the driver's version."""
    words = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
