"""Tools that record, each on two networks, healthy and with one wrong node: what do compare and bisect say of its dump?

    python -m benchmarks.producers [NAME…] [--seed N]      all, or some; in build/producers/

Each is one script, `with_NAME.py`, whose head says what it needs and which options its dumps do; it runs in a venv of
its own as `with_NAME.py NETWORK healthy|faulty DUMP`. NETWORK is a folder that `networks.py` wrote; a tool that
converts from something else than ONNX leaves its own healthy.onnx, faulty.onnx and x.npy beside DUMP. Exit 1 where a
tool does not run, a healthy dump does not agree, or the only interval of a faulty one lacks the wrong node or is long.
"""  # noqa: E501

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from benchmarks import machine
from benchmarks.report import table

HERE = Path(__file__).parent
BUILD = HERE.parent.parent / "build" / "producers"
SUBCUT = Path(sys.executable).with_name("subcut")
NETWORKS = ("residual", "transformer")
STATES = ("healthy", "faulty")
INSTALLING, RUNNING = 1800, 600  # seconds
HEADS = [
    "tool",
    "network",
    "matched of",
    "healthy",
    "faulty: wrong of",
    "nodes",
    "holds the wrong node",
]
SAYS = {0: "agrees", 1: "disagrees", 2: "is refused", 5: "unresolved"}  # subcut's exit codes
MAX_NODES = 3  # of an interval: what the tools leave out between two tensors
REASON = 160  # characters


class Failed(Exception):
    """A tool cannot be installed or run; the text says why."""


@dataclass(frozen=True)
class Script:
    """A script with the head that says what it needs."""

    path: Path

    @property
    def name(self) -> str:
        """As it is called on the command line."""
        return self.path.stem.removeprefix("with_")

    @property
    def head(self) -> dict[str, Any]:
        """Its inline metadata."""
        found = re.search(
            r"^# /// script\n((?:#.*\n)+?)# ///$",
            self.path.read_text(encoding="utf-8"),
            re.MULTILINE,
        )
        return tomllib.loads(re.sub("^# ?", "", found[1], flags=re.MULTILINE)) if found else {}

    @property
    def own(self) -> Mapping[str, Any]:
        """The part of the head that is ours: `says`, `options`, `alone` (packages installed without what they need)."""  # noqa: E501
        return dict(self.head.get("tool", {}).get("subcut", {}))

    def run(self, *words: str | Path) -> None:
        """Run it in its venv, which is made where it is missing. Raises: Failed."""
        python = self._installed()
        log = BUILD / f"{self.name}.log"
        _run([python, "-W", "ignore", self.path, *words], RUNNING, log)

    def _installed(self) -> Path:
        wanted = json.dumps([self.head["dependencies"], self.own.get("alone")])
        place = BUILD / "venvs" / hashlib.sha256(wanted.encode()).hexdigest()[:8]
        mark = place / "installed"
        python = place / "bin" / "python"
        if not mark.exists():
            shutil.rmtree(place, ignore_errors=True)
            _run([sys.executable, "-m", "venv", place], INSTALLING, BUILD / "venv.log")
            pip: list[str | Path] = [
                python,
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
            ]
            _run([*pip, *self.head["dependencies"]], INSTALLING, BUILD / "venv.log")
            if alone := self.own.get("alone"):
                _run([*pip, "--no-deps", *alone], INSTALLING, BUILD / "venv.log")
            mark.write_text(wanted)
        return python


def _run(words: Sequence[str | Path], seconds: float, log: Path) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    try:
        with log.open("wb") as file:
            subprocess.run(
                words, stdout=file, stderr=subprocess.STDOUT, timeout=seconds, check=True
            )
    except (OSError, subprocess.SubprocessError) as e:
        lines = (
            log.read_text(encoding="utf-8", errors="replace").split("\n") if log.exists() else []
        )
        errors = [line.strip() for line in lines if "rror" in line] or [str(e)]
        raise Failed(f"{errors[-1][:REASON]} ({log})") from e


def ask(command: str, model: Path, dump: Path, options: Sequence[str]) -> dict[str, Any]:
    """The JSON of `subcut compare` or `bisect` on a dump, left beside it. Raises: Failed: there is none."""  # noqa: E501
    words: list[str | Path] = [
        SUBCUT,
        command,
        model,
        "--recorded",
        dump,
        *options,
        "-o",
        dump.parent / "subcut_out",
        "--json",
    ]
    words += ["--force"] if command == "bisect" else []
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SUBCUT_")}
    done = subprocess.run(
        words, env=environment, capture_output=True, text=True, timeout=RUNNING, check=False
    )
    (dump.parent / f"{command}.json").write_text(done.stdout, encoding="utf-8")
    try:
        return dict(json.loads(done.stdout))
    except ValueError as e:
        raise Failed(f"subcut {command} wrote no JSON: {done.stderr[:REASON]}") from e


def wrong_nodes(healthy: Path, faulty: Path) -> list[str]:
    """The nodes whose weights differ between two files of one network; names of weights may differ as well."""  # noqa: E501
    graphs = [onnx.load(path).graph for path in (healthy, faulty)]
    weights = [{w.name: w.raw_data for w in graph.initializer} for graph in graphs]
    read = [
        [[values.get(n) for n in node.input] for node in graph.node]
        for graph, values in zip(graphs, weights, strict=True)
    ]
    return [
        node.name
        for node, right, wrong in zip(graphs[0].node, *read, strict=True)
        if right != wrong
    ]


def tried(script: Script, place: Path) -> tuple[list[str], bool]:
    """(a row, is it as it should be?) for one tool on one network. Raises: Failed."""
    found = {}
    dumps = {}
    for state in STATES:
        dump = dumps[state] = BUILD / script.name / place.name / state / "dump"
        shutil.rmtree(dump.parent, ignore_errors=True)
        dump.mkdir(parents=True)
        script.run(place, state, dump)
        home = dump.parent if (dump.parent / "healthy.onnx").exists() else place
        options = [*script.own.get("options", ())]
        options += ["-i", str(home / "x.npy")] if not list(dump.glob("inputs*")) else []
        found[state] = ask("compare", home / "healthy.onnx", dump, options)
    interval = ask("bisect", home / "healthy.onnx", dumps["faulty"], options)
    wrong = wrong_nodes(home / "healthy.onnx", home / "faulty.onnx")
    return row(found, interval, wrong)


def row(
    found: Mapping[str, Any], interval: Mapping[str, Any], wrong: Sequence[str]
) -> tuple[list[str], bool]:
    """What three documents say, in cells, and whether it is right."""
    healthy, faulty = (found[state] for state in STATES)
    findings = interval.get("findings") or [{}]
    nodes = findings[0].get("nodes", [])
    held = bool(set(wrong) & set(nodes))
    cells = [
        _matched(healthy),
        _verdict(healthy),
        _verdict(faulty),
        f"{len(nodes)}, and {len(findings) - 1} places behind"
        if len(findings) > 1
        else str(len(nodes)),
        f"{'yes' if held else '**no**'}, {', '.join(wrong)}",
    ]
    return cells, healthy.get("exit_code") == 0 and held and len(findings) == 1 and len(
        nodes
    ) <= MAX_NODES


def _matched(document: Mapping[str, Any]) -> str:
    rows = document.get("rows", [])
    return f"{sum(r['runs'][-1] is not None for r in rows)} of {len(rows)}"


def _verdict(document: Mapping[str, Any]) -> str:
    if "recordings" not in document:
        return str(document.get("error", {}).get("what", document))[:REASON]
    run = document["recordings"][-1]
    return f"{SAYS.get(document['exit_code'], document['exit_code'])}, {run['wrong']} of {run['compared']}"  # noqa: E501


def networks(seed: int) -> list[Path]:
    """Their folders. Raises: Failed."""
    Script(HERE / "networks.py").run(BUILD / "networks", str(seed))
    return [BUILD / "networks" / name for name in NETWORKS]


def scripts() -> list[Script]:
    """All tools."""
    return [Script(path) for path in sorted(HERE.glob("with_*.py"))]


def rows(chosen: Sequence[Script], places: Sequence[Path]) -> Iterator[tuple[list[str], bool]]:
    """A row for each tool and network, and whether it is as it should be."""
    for script in chosen:
        for place in places:
            try:
                cells, good = tried(script, place)
            except (Failed, subprocess.SubprocessError, OSError) as e:
                cells = ["-", f"failed: {e}"[: 2 * REASON], "-", "-", "-"]
                good = False
            yield [script.own["says"], place.name, *cells], good


def main() -> int:
    """Print each row as it comes, then the table."""
    words = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    words.add_argument("names", nargs="*", metavar="NAME")
    words.add_argument("--seed", type=int, default=0)
    given = words.parse_args()
    chosen = [s for s in scripts() if not given.names or s.name in given.names]
    found = []
    for cells, good in rows(chosen, networks(given.seed)):
        print("ok " if good else "BAD", " | ".join(cells), file=sys.stderr, flush=True)
        found.append((cells, good))
    print(machine.line(0), table(HEADS, [cells for cells, _ in found]), sep="\n")
    return int(not all(good for _, good in found))


if __name__ == "__main__":
    sys.exit(main())
