"""`subcut blame` on real faults, with all releases of their runtimes; and on planted histories of a
toy runtime.

    python -m benchmarks.blame [--only real,toy,operators]      in build/blame/; installs releases
    into subcut's cache

Real: the bugs in `fixtures/cases/` and those of `fixtures/threads.py`, each by one command. Toy:
ten histories from a folder of wheels, non-monotone ones and broken installations among them; each
answer is compared with the truth, and an answer that is wrong is exit code 1. Operators: the cases
of `subcut sweep`, as it writes them; how many have a cure?
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.measure import floor
from benchmarks.report import table
from fixtures import threads, toy_releases
from subgraph.questions.blame.answer import format_states

CASES = Path("fixtures/cases").resolve()
BUILD = Path("build/blame")
SUBCUT = Path(sys.executable).with_name("subcut")
ALL = ("--versions", "..")
NEWEST = ("--reference", "ort==1.32.0")  # 1.31 refuses the IR version of the newest tests
SWEPT = ("opencv", "tract", "openvino:precision=f32")
HEADING = "model candidate region runs installs time passes releases cures slowdown".split()


@dataclass(frozen=True)
class Fault:
    """A model and a candidate; `words`: what else the command says."""

    model: str
    candidate: str
    words: Sequence[str] = ALL

    @property
    def command(self) -> list[str]:
        """The words behind `subcut blame`."""
        folder = CASES / self.model
        case = [str(folder / "model.onnx"), "-i", str(folder / "input_x.npy")]
        return [
            *(case if folder.is_dir() else [f"{self.model}.onnx"]),
            "-c",
            self.candidate,
            *self.words,
        ]


REAL = (
    Fault("ort_padfusion_clean", "ort==1.31.1"),
    Fault("cast_div_mul", "ort==1.32.0"),
    Fault("nbits_512", "ort==1.26.0", ("--reference", "ort==1.32.0", *ALL)),
    Fault("ov_topk_ties", "openvino:precision=f32"),
    Fault("int8_matmuls", "openvino:INFERENCE_PRECISION_HINT=f32"),
    Fault("ov_f16_isolation_misleads", "openvino:precision=f16", ()),
    Fault("cv_tanh_nan", "opencv"),
    Fault("rnn_reverse_cv_tract", "opencv"),
    Fault("rnn_reverse_cv_tract", "tract"),
    Fault("mnn_conv_add_lastdim", "mnn"),
    Fault("mnn_layernorm_oob", "mnn"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="real,toy")
    only = parser.parse_args().only.split(",")
    shutil.rmtree(BUILD, ignore_errors=True)
    threads.write(BUILD)
    print(machine.line(floor()))
    wrong = False
    if "real" in only:
        rows = []
        for fault in REAL:
            rows.append(_row(fault))
            print(rows[-1], flush=True)
        print(table(HEADING, rows))
    if "operators" in only:
        for candidate in SWEPT:
            _operators(candidate)
    if "toy" in only:
        for name, problem in _toys():
            wrong = wrong or bool(problem)
            print(f"{name}: {problem or 'right'}", flush=True)
    sys.exit(int(wrong))


def _row(fault: Fault) -> list[str]:
    begin = time.perf_counter()
    found, said = _blame(*fault.command)
    seconds = f"{time.perf_counter() - begin:.0f} s"
    if not found:
        return [
            fault.model,
            fault.candidate,
            said.strip().splitlines()[-1][:80],
            "",
            "",
            seconds,
            "",
            "",
            "",
            "",
        ]
    proven = [cure for cure in found["cures"] if cure["proven"]]
    kinds = ", ".join(sorted({cure["kind"] for cure in proven}))
    best = min((cure["slowdown"] for cure in proven if cure["slowdown"]), default=None)
    return [
        fault.model,
        fault.candidate,
        ", ".join(found["region"][:4]) if found["exit_code"] else "right",
        str(found["runs"]),
        str(found["installs"]),
        seconds,
        " or ".join("+".join(names) for names in found["passes"]),
        format_states(found["versions"]["tried"]) if found["versions"] else "",
        f"{len(proven)} of {len(found['cures'])} ({kinds})" if found["cures"] else "none",
        f"{best:.2f}" if best else "",
    ]


def _operators(candidate: str) -> None:
    """Print which operator tests that the candidate gets wrong have a proven cure."""
    command: list[str | Path] = [SUBCUT, "sweep", "-c", candidate, "-o", candidate, "-q"]
    subprocess.run(command, cwd=BUILD, check=False, stdout=subprocess.DEVNULL)
    cases = sorted(path.parent for path in (BUILD / candidate).glob("sweep-*/*/manifest.json"))
    cured = 0
    wrong = 0
    for case in cases:
        found, said = _blame(
            str(case.relative_to(BUILD)), "-c", candidate, "-o", f"blamed/{case.name}", *NEWEST
        )
        cures = sorted({f"{c['kind']}: {c['what']}" for c in found.get("cures", ()) if c["proven"]})
        cured, wrong = cured + bool(cures), wrong + bool(found.get("exit_code"))
        says = "; ".join(cures) or ("no cure" if found else said.strip().splitlines()[-2:])
        print(
            f"{candidate} {case.name}: {says if found.get('exit_code', 1) else 'right beside onnxruntime'}"[  # noqa: E501
                :200
            ],
            flush=True,
        )
    what = f"of {wrong} operator tests that are wrong beside onnxruntime have a proven cure"
    print(f"{candidate}: {cured} {what}; {len(cases) - wrong} more cases", flush=True)


def _toys() -> Iterator[tuple[str, str]]:
    """Name and problem of each planted history."""
    for name, planted in toy_releases.HISTORIES.items():
        wheels = (BUILD / "wheels" / name.replace(" ", "-")).resolve()
        toy_releases.releases(wheels, planted.releases)
        toy_releases.model(BUILD)
        offline = {
            f"{tool}_{key}": value
            for tool in ("PIP", "UV")
            for key, value in (("NO_INDEX", "1"), ("FIND_LINKS", str(wheels)))
        }
        offline["XDG_CACHE_HOME"] = str(wheels / "cache")
        found, said = _blame(
            "toy.onnx", "-i", "toy.npy", "-c", f"{wheels}/toy.py=={planted.used}", *ALL, env=offline
        )
        yield name, planted.problem(found) if found else said[-300:]


def _blame(*words: str, env: Mapping[str, str] | None = None) -> tuple[dict[str, Any], str]:
    """The document, and what was said on standard error; no document where there was an error."""
    done = subprocess.run(
        [SUBCUT, "blame", "--json", *words],
        cwd=BUILD,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    document = json.loads(done.stdout) if done.stdout.startswith("{") else {}
    return (
        ({}, done.stdout + done.stderr)
        if "error" in document or not document
        else (document, done.stderr)
    )


if __name__ == "__main__":
    main()
