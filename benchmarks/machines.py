"""How commands grow with devices, and what each device does when: `compare`, `sweep`, a search, and
Dask's workers.

    python -m benchmarks.machines [--seconds 5] [--only compare,sweep,bisect,dask] [--picture
    FILE.svg]

A device is a process that waits `--seconds` in each run (`benchmarks.simulated_device`), so devices
share nothing but this machine, which also computes the reference and judges. *Busy*: the time that
all devices spent in runs, over devices × the time from the first run's begin to the last one's end;
1 is linear. Exit 1 if `compare` or `sweep` falls below 1/1.15, or a search names another node. The
picture has a row per device and a bar per run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import machine, narrow, simulated_device, suspects
from benchmarks.measure import floor
from benchmarks.report import Limit, table, verdicts

PARTS = ("compare", "sweep", "bisect", "dask")
DEVICES = 16
NODES = 254  # with the whole model, twice, 256 runs
SWEPT = ("Re*", "C*")  # operators
LINEAR = 1.15
CULPRIT = "n60"
WIDTH, ROW, LEFT, TOP = 760.0, 9.0, 150.0, 26.0  # pixels

Spans = Mapping[str, list[tuple[float, float]]]


@dataclass(frozen=True)
class Timed:
    """One command.

    Attributes:
        devices: as many as it may use. seconds: of the whole command. spans: begin and end of each
            run, by process.
        found: the nodes that a search named.
    """

    name: str
    devices: int
    seconds: float
    spans: Spans
    found: tuple[str, ...] = ()

    @property
    def runs(self) -> int:
        return sum(map(len, self.spans.values()))

    @property
    def first(self) -> float:
        return min(begin for spans in self.spans.values() for begin, _ in spans)

    @property
    def span(self) -> float:
        """Seconds from the first run's begin to the last one's end."""
        return max(end for spans in self.spans.values() for _, end in spans) - self.first

    @property
    def busy(self) -> float:
        """The share of the span in which a device is in a run."""
        return (
            sum(end - begin for spans in self.spans.values() for begin, end in spans)
            / self.span
            / self.devices
        )


def main() -> int:
    """Measure, print, draw; 1 if a limit is not kept."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    measured: dict[str, Callable[[float], Iterator[Timed]]] = {
        "compare": compared,
        "sweep": swept,
        "bisect": bisected,
        "dask": on_dask,
    }
    found = [timed for part in options.only.split(",") for timed in measured[part](options.seconds)]
    print(machine.line(floor(), "distributed"))
    head = ["command", "devices", "runs", "from first to last run", "whole command", "busy"]
    rows = [
        [
            t.name,
            str(t.devices),
            str(t.runs),
            f"{t.span:.1f} s",
            f"{t.seconds:.1f} s",
            f"{t.busy:.2f}",
        ]
        for t in found
    ]
    print(table(head, rows))
    limits = [Limit(f"{t.name}: times linear", LINEAR, 1 / t.busy) for t in found if not t.found]
    print(verdicts(limits))
    if options.picture:
        options.picture.write_text(picture([t for t in found if t.devices > 1]), encoding="utf-8")
    wrong = [t for t in found if t.found not in ((), (CULPRIT,))]
    print(*(f"wrong: {t.name} named {t.found}" for t in wrong), sep="\n")
    return int(bool(wrong) or not all(limit.kept for limit in limits))


# ------------------------------------------------------------ commands


def compared(seconds: float) -> Iterator[Timed]:
    """Each node of a chain, beside the whole model."""
    yield timed("compare", DEVICES, seconds, ["compare", "m.onnx", "--jobs", str(DEVICES)])


def swept(seconds: float) -> Iterator[Timed]:
    """Operator tests, which another sweep has collected."""
    only = [word for pattern in SWEPT for word in ("--only", pattern)]
    yield timed(
        "sweep",
        DEVICES,
        seconds,
        ["sweep", *only, "--jobs", str(DEVICES)],
        before=["sweep", "--only", "Abs"],
    )


def bisected(seconds: float) -> Iterator[Timed]:
    """A wrong node that vanishes where tensors beside it are read: only halving finds it."""
    for jobs in (1, 2, 4, 8):
        yield timed(
            "bisect",
            jobs,
            seconds,
            ["bisect", "m.onnx", "--jobs", str(jobs), "--json"],
            faults=CULPRIT,
            shy="1",
        )


def on_dask(seconds: float) -> Iterator[Timed]:
    """The same comparison by a scheduler and four workers, each a process with one device."""
    with cluster(4) as address:
        yield timed(
            "compare, Dask",
            4,
            seconds,
            ["compare", "m.onnx", "--executor", f"dask://{address}"],
            nodes=126,
        )


def timed(
    name: str,
    devices: int,
    seconds: float,
    words: list[str],
    *,
    before: list[str] | None = None,
    nodes: int = NODES,
    **faults: str,
) -> Timed:
    """A command with simulated devices. `before`: one with plain onnxruntime that is not
    measured."""
    folder = narrow.empty("machines")
    suspects.chain(folder / "m.onnx", nodes)
    (folder / "log").mkdir()
    options = {"seconds": seconds, "log": folder / "log", **faults}
    spec = f"{simulated_device.__file__}:" + ",".join(
        f"{key}={value}" for key, value in options.items()
    )
    if before:
        run([*before, "-c", "ort"], folder)
    begin = time.perf_counter()
    done = run([*words, "-c", spec, "--criterion", "numpy:rtol=1e-3"], folder)
    taken = time.perf_counter() - begin
    named = (
        [n for f in json.loads(done)["findings"] for n in f["nodes"]] if "--json" in words else []
    )
    return Timed(name, devices, taken, spans_in(folder / "log"), tuple(named))


def run(words: list[str], folder: Path) -> str:
    """What `subcut` prints.

    Raises:
        RuntimeError: it failed.
    """
    command = [str(narrow.BIN / "subcut"), *words]
    done = subprocess.run(
        command, cwd=folder, env=narrow.environment(), capture_output=True, text=True, check=False
    )
    if done.returncode not in (0, 1):
        raise RuntimeError(
            f"subcut {words}: exit code {done.returncode}\n{done.stderr}{done.stdout}"
        )
    return done.stdout


def spans_in(folder: Path) -> Spans:
    """Begin and end of each run, by the process that noted it."""
    lines = {path.name: path.read_text().split() for path in sorted(folder.iterdir())}
    return {
        name: list(zip(map(float, w[::2]), map(float, w[1::2]), strict=True))
        for name, w in lines.items()
    }


@contextmanager
def cluster(workers: int) -> Iterator[str]:
    """HOST:PORT of a Dask scheduler with this many worker processes, which end with the block."""
    import distributed

    with distributed.LocalCluster(
        n_workers=workers, threads_per_worker=1, resources={"npu": 1}, dashboard_address=None
    ) as local:
        yield local.scheduler_address.removeprefix("tcp://")


# ------------------------------------------------------------ the picture


def picture(found: list[Timed]) -> str:
    """SVG: a row per device, a bar per run, each command on a time axis of its own."""
    parts = list[str]()
    y = 0.0
    for each in found:
        parts.append(
            f'<text x="0" y="{y + 16:.0f}">{each.name}, {each.devices} devices, {each.runs}'
            " runs</text>"
        )
        scale, y = (WIDTH - LEFT - 10) / each.span, y + TOP
        for k, spans in enumerate(sorted(each.spans.values())):
            parts.append(
                f'<text class="soft" x="{LEFT - 8:.0f}" y="{y + 7:.0f}"'
                f' text-anchor="end">{k + 1}</text>'
            )
            for begin, end in spans:
                x = LEFT + (begin - each.first) * scale
                width = max((end - begin) * scale - 1, 0.5)
                parts.append(
                    f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{ROW - 2}"/>'
                )
            y += ROW
        labels = ((LEFT, "start", "0 s"), (WIDTH - 10, "end", f"{each.span:.0f} s"))
        parts += [
            f'<text class="soft" x="{x:.0f}" y="{y + 10:.0f}" text-anchor="{side}">{words}</text>'
            for x, side, words in labels
        ]
        y += 24
    style = (
        "text{font:12px"
        " system-ui,sans-serif;fill:#1d2126}.soft{font-size:9px;fill:#59616b}rect{fill:#1f5fbf}"
        "@media(prefers-color-scheme:dark){text{fill:#e5e8eb}.soft{fill:#a3acb6}rect{fill:#7fb3ea}}"
    )
    size = f'viewBox="0 0 {WIDTH:.0f} {y:.0f}" width="{WIDTH:.0f}" height="{y:.0f}"'
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}'
        f' role="img"><style>{style}</style>\n{body}\n</svg>\n'
    )


if __name__ == "__main__":
    sys.exit(main())
