"""A model larger than memory: `subcut` within `--memory`, what each of its processes takes, and for
how long.

    python -m benchmarks.large [--layers 40 --hidden 4096 --inner 14336 --memory 4G] [--keep FOLDER]

The decoder of `fixtures.decoder` (the default: 19.5 GB of float16, 20 GB of disk) is dumped at its
output, in a memory control group of the size of `--memory` where this machine lets one be made
(version 1, as root), the files thrown out of the page cache before. `--memory` of the command is 15
% less: two processes share the group. Peaks are the largest resident size of each process, polled
every 10 ms, and its part that no file backs. The floor: all weights read once, and the layers
computed by plain onnxruntime, four of them at a time, in memory. Then a candidate that goes wrong
in one node, and may not take more either, is bisected (`--bisect`). Exit 1 if a process takes more
than the limit and 10 %, if it takes twice the floor, or if another node is named.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import machine
from benchmarks.measure import children, floor
from fixtures import decoder
from subgraph.runtime.candidate import parse_memory

GROUPS = Path("/sys/fs/cgroup/memory")
SHARE = 0.85  # of the group's memory, for each process
LENGTH = 16  # tokens
TOGETHER = 4  # layers that the floor computes at once
TIMES = 2.0
OVER = 1.1

PLAIN = """
import sys, time, numpy as np, onnxruntime as ort
s = ort.SessionOptions()
s.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
s.use_deterministic_compute, s.enable_cpu_mem_arena = True, False
session = ort.InferenceSession(sys.argv[1], s, providers=["CPUExecutionProvider"])
x = np.random.default_rng(0).standard_normal((1, int(sys.argv[3]), int(sys.argv[2]))).astype(np.float16)
session.run(None, {"h0": x})
begin = time.perf_counter()
session.run(None, {"h0": x})
print(time.perf_counter() - begin)
"""  # noqa: E501

WRONG = """
import onnx, onnxruntime as ort
def load(model, options):
    made = onnx.load(model, load_external_data=False)
    for node in made.graph.node:
        if node.name == "t%d":
            node.op_type = "Sigmoid"
    model.write_bytes(made.SerializeToString())
    s = ort.SessionOptions()
    s.enable_cpu_mem_arena = False
    session = ort.InferenceSession(str(model), s, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    return lambda feeds: dict(zip(names, session.run(names, dict(feeds))))
"""


@dataclass
class Command:
    """One run. `peaks`: by the process's role, resident and anonymous bytes at most."""

    seconds: float = 0.0
    code: int | None = None
    said: str = ""
    peaks: dict[str, list[int]] = field(default_factory=dict)

    def watch(self, pid: int) -> None:
        """Take the present size of a process and all below it."""
        with contextlib.suppress(OSError, LookupError, ValueError):  # it ends meanwhile
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            worker = b"subgraph.runtime.worker_main"
            role = words[words.index(worker) + 1].decode() if worker in words else "subcut"
            role = "reference" if role == "ort" else Path(role).name
            lines = dict(
                line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
            )
            now = [int(lines[key].split()[0]) << 10 for key in ("VmRSS", "RssAnon")]
            self.peaks[role] = [
                max(pair) for pair in zip(self.peaks.get(role, [0, 0]), now, strict=True)
            ]
        for child in children(pid):
            self.watch(child)


@contextlib.contextmanager
def group(limit: int) -> Iterator[Path | None]:
    """A memory control group for what this process starts; None where none can be made."""
    place = GROUPS / f"subcut-large-{os.getpid()}"
    try:
        place.mkdir()
        (place / "memory.limit_in_bytes").write_text(str(limit))
    except OSError:
        yield None
        return
    try:
        yield place
    finally:
        for _ in range(50):  # processes that were killed are still leaving it
            with contextlib.suppress(OSError):
                place.rmdir()
                break
            time.sleep(0.1)


def run(words: list[str], home: Path, inside: Path | None) -> Command:
    """Run a command in the group."""

    def enter() -> None:
        if inside:
            (inside / "tasks").write_text(str(os.getpid()))

    done = Command()
    log = home / "log"
    begin = time.monotonic()
    subcut = str(Path(sys.executable).with_name("subcut"))
    with (
        log.open("wb") as out,
        subprocess.Popen([subcut, *words], cwd=home, stderr=out, stdout=out, preexec_fn=enter) as p,
    ):
        while p.poll() is None:
            done.watch(p.pid)
            time.sleep(0.01)
    done.seconds, done.code, done.said = time.monotonic() - begin, p.returncode, log.read_text()
    return done


def forget(folder: Path) -> None:
    """Throw the model's files out of the page cache."""
    for file in folder.iterdir():
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read(folder: Path) -> float:
    """Seconds for reading all weights once."""
    begin = time.monotonic()
    buffer = bytearray(8 << 20)
    for file in folder.glob("*.bin"):
        with file.open("rb", buffering=0) as opened:
            while opened.readinto(buffer):
                pass
    return time.monotonic() - begin


def computed(home: Path, layers: int, hidden: int, inner: int) -> float:
    """Seconds that plain onnxruntime takes for all layers, of which it gets `TOGETHER` at a time,
    in memory."""
    small = decoder.write(home / "small", TOGETHER, hidden, inner)
    words = [sys.executable, "-c", PLAIN, str(small), str(hidden), str(LENGTH)]
    seconds = float(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    shutil.rmtree(home / "small")
    return seconds * layers / TOGETHER


def table(name: str, done: Command) -> None:
    sizes = ", ".join(
        f"{role} {rss / 2**20:.0f} ({anon / 2**20:.0f})" for role, (rss, anon) in done.peaks.items()
    )
    print(
        f"{name}: exit {done.code}, {done.seconds:.0f} s; MiB resident (of these anonymous) at"
        f" most: {sizes}",
        flush=True,
    )


def main() -> int:
    """Print what it took; 1 if a limit is not kept."""
    words = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    words.add_argument("--layers", type=int, default=40)
    words.add_argument("--hidden", type=int, default=4096)
    words.add_argument("--inner", type=int, default=14336)
    words.add_argument("--memory", default="4G")
    words.add_argument("--bisect", action="store_true")
    words.add_argument("--keep", type=Path)
    said = words.parse_args()
    limit = parse_memory(said.memory)
    own = f"{int(limit * SHARE) >> 20}M"
    print(machine.line(floor(), "onnxruntime", "numpy"), flush=True)
    found = True
    home = (said.keep or Path(tempfile.mkdtemp(dir="."))).resolve()
    try:
        compute = computed(home, said.layers, said.hidden, said.inner)
        decoder.write(home / "m", said.layers, said.hidden, said.inner)
        size = sum(file.stat().st_size for file in (home / "m").iterdir())
        forget(home / "m")
        once = read(home / "m")
        print(
            f"{size / 1e9:.1f} GB, {said.layers} layers; read once: {once:.0f} s, computed:"
            f" {compute:.0f} s",
            flush=True,
        )
        last = f"h{said.layers}"
        dump = [
            "dump",
            "m/model.onnx",
            last,
            "--shape",
            f"h0=1x{LENGTH}x{said.hidden}",
            "--memory",
            own,
        ]
        with group(limit) as inside:
            print(
                f"--memory {own}, control group:"
                f" {said.memory if inside else 'none can be made here'}",
                flush=True,
            )
            forget(home / "m")
            plain = run([*dump, "-o", "plain"], home, inside)
            table("dump", plain)
            if inside:
                top = int((inside / "memory.max_usage_in_bytes").read_text()) >> 20
                print(
                    f"control group: {top} MiB at most, with the page cache, of {limit >> 20}",
                    flush=True,
                )
            commands = [plain]
            if said.bisect:
                guilty = said.layers * 3 // 5
                (home / "wrong.py").write_text(WRONG % guilty)
                bisect = [
                    "bisect",
                    *dump[1:2],
                    *dump[3:],
                    "-c",
                    "wrong.py",
                    "-o",
                    "found",
                    "--trust",
                ]
                commands.append(run(bisect, home, inside))
                table(f"bisect, t{guilty} is wrong", commands[-1])
                says = [
                    line
                    for line in commands[-1].said.splitlines()
                    if line.startswith(("wrong", "unresolved"))
                ]
                print(*says, sep="\n")
                found = len(says) == 1 and says[0].endswith(f": t{guilty} (Tanh)")
    finally:
        if not said.keep:
            shutil.rmtree(home)
    most = max(rss for done in commands for rss, _ in done.peaks.values())
    times = plain.seconds / (once + compute)
    print(
        f"largest process {most / 2**20:.0f} MiB, {most / parse_memory(own):.2f} of --memory;"
        f" {times:.2f} × the floor"
    )
    kept = found and most <= OVER * parse_memory(own) and times <= TIMES
    return 0 if kept and not plain.code else 1


if __name__ == "__main__":
    sys.exit(main())
