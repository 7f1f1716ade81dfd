"""`make bench`: trained models on real runtimes and conversions. Is what the default criterion says
of them true?

    python -m benchmarks.agreement [--models yolo,nsfw] [--candidates ort,openvino]

Each model of `benchmarks.trained` runs whole, by the library's own trial, on each candidate. What
the criterion says is compared with an adjudication that knows nothing of it: did a decision of the
model's users change clearly (`benchmarks.decisions`), and how far is the worst slice off, of its
own scale? That the reference itself is right is confirmed by other runtimes whose slices agree with
it within 1e-3. Exit 1 if a verdict is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy.typing as npt
import onnx

from benchmarks import machine
from benchmarks.decisions import Change
from benchmarks.measure import floor
from benchmarks.report import table
from benchmarks.slices import worst_slice
from benchmarks.trained import Trained, models, write_inputs
from benchmarks.windows import read
from fixtures import converted
from subgraph.errors import SubcutError
from subgraph.graph.graph import load as load_graph
from subgraph.graph.quantization import is_quantized
from subgraph.runtime import candidate as candidates
from subgraph.runtime.inputs import Feeding
from subgraph.runtime.reference import Reference
from subgraph.runtime.worker_pool import Workers
from subgraph.trials.open_trials import Setup, open_trials
from subgraph.verdict import Status

FOLDER = Path("build/bench")
PACKAGES = ("openvino", "opencv-python-headless", "tract", "MNN")
Array = npt.NDArray[Any]

MAKERS = ("openvino", "mnn", "tract", "opencv")  # whose runtimes share nothing with the reference's
RUNTIMES = (
    "ort",
    "ort:opt=disable",
    "openvino:precision=f32",
    "openvino:precision=f16",
    "mnn",
    "tract",
    "opencv",
)
INTACT = {
    "fp32": 1e-2,
    "fp16": 0.1,
    "bf16": 0.2,
    "int8": 0.2,
}  # the worst slice's error, of its scale
BROKEN = {"fp32": 2e-2, "fp16": 0.4, "bf16": 0.4, "int8": 0.4}
CHANGED = (
    0.02  # share of decisions that may change clearly, below fp32, before the model is of no use
)
WITNESS = 1e-3  # a runtime whose slices are all within this confirms the reference

NOTHING = Change(0, 0, 0)


@dataclass(frozen=True)
class Answered:
    """One verdict.

    Attributes:
        status, signature, label, why: of the criterion; "none" where the candidate gave no outputs.
        error, at: the worst slice's error over its scale, and that slice.
        change: of the model's decisions.
        truth: intact, between, broken; "" where there is nothing to judge.
        witnesses: other runtimes that confirm the reference.
    """

    model: str
    candidate: str
    claim: str
    status: str
    signature: str
    label: str
    why: str
    error: float = 0.0
    at: str = ""
    change: Change = NOTHING
    truth: str = ""
    witnesses: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def judged(self) -> str:
        """right, wrong, defensible, unresolved or none."""
        if not self.truth:
            return "none"
        if self.status == "unresolved":
            return "unresolved"
        if self.truth == "between":
            return "defensible"
        return "right" if (self.status == "agree") == (self.truth == "intact") else "wrong"


def truth(claim: str, error: float, change: Change, quantizes: bool = False) -> str:
    """What an adjudicator says who sees decisions and slices only.

    `quantizes`: the user's own model does; a right runtime that adds in another order takes other
    steps of 1/255.
    """
    allowed = 0.0 if claim == "fp32" else CHANGED * change.total
    if change.clear > allowed or error > BROKEN["int8" if quantizes else claim]:
        return "broken"
    return "intact" if error <= INTACT[claim] else "between"


# ------------------------------------------------------------------------------------------------
# candidates

Feeds = dict[str, Array]
Convert = Callable[[onnx.ModelProto, Feeds], onnx.ModelProto]


CONVERSIONS: dict[str, Convert] = {
    "fp16 model": converted.fp16,
    "int8 model, dynamic": converted.dynamic,
    "int8 model, static": converted.quantized,
}


def answered(model: Trained, candidate: str, folder: Path, reference: Reference) -> Answered:
    """The verdict on one candidate, adjudicated; files go to `folder`."""
    begin = time.perf_counter()
    other = None
    words = write_inputs(model, folder)
    blank = Answered(model.name, candidate, "", "none", "", "", "")
    if candidate in CONVERSIONS:
        other = folder / "other.onnx"
        try:
            onnx.save(CONVERSIONS[candidate](onnx.load(model.path), dict(model.inputs())), other)
        except Exception as e:  # noqa: BLE001
            return replace(
                blank, why=f"not converted: {type(e).__name__}: {' '.join(str(e).split())[:160]}"
            )
    runner = candidates.parse("ort" if other else candidate)
    setup = Setup(
        runner, Feeding(tuple(words)), folder / "out", stored=False, candidate_model=other
    )
    try:
        with (
            Workers(runner) as workers,
            open_trials(load_graph(model.path), setup, reference, workers) as trials,
        ):
            whole = trials.model.whole()
            result = trials.run(whole)
            verdict = trials.judge.verdict(whole, result)
            claim = trials.judge.precision
            quantizes = is_quantized(trials.model.graph.ops)
            made = (
                {} if result.failure else {n: read(result.tensors[0][n]) for n in result.tensors[0]}
            )
            known = {n: read(trials.model.values.records[0][n]) for n in whole.outputs}
    except SubcutError as e:
        return replace(blank, why=f"{type(e).__name__}: {e.what}"[:200])
    label = next((j.label for j in verdict.outputs if j.label not in ("", "agrees")), "")
    row = Answered(
        model.name,
        candidate,
        claim,
        verdict.status.value,
        str(verdict.signature or ""),
        label,
        verdict.why[:200],
        seconds=time.perf_counter() - begin,
    )
    if set(made) < set(known):
        return row if verdict.status is Status.FAIL else replace(row, status="none")
    error, at = max((e, f"{n}, {s}") for n in known for e, s in [worst_slice(known[n], made[n])])
    change = model.decision.changes(known, made)
    return replace(
        row, error=error, at=at, change=change, truth=truth(claim, error, change, quantizes)
    )


def verdicts_on(model: Trained, names: Sequence[str]) -> list[Answered]:
    """One model on these candidates."""
    found = []
    with Reference(options={"threads": 1}) as reference:
        for name in names:
            with tempfile.TemporaryDirectory(prefix="subcut-bench-") as folder:
                found.append(answered(model, name, Path(folder), reference))
            print(f"  {_line(found[-1])}", file=sys.stderr, flush=True)
    right = [r.candidate for r in found if r.truth and r.claim == "fp32" and r.error <= WITNESS]
    makers = {_maker(name): name for name in right if _maker(name) in MAKERS}
    return [
        replace(r, witnesses=tuple(n for m, n in makers.items() if m != _maker(r.candidate)))
        for r in found
    ]


def _maker(candidate: str) -> str:
    return candidate.partition(":")[0]


def _line(row: Answered) -> str:
    what = f"{row.status}{f' ({row.signature or row.label})' if row.signature or row.label else ''}"
    change = f"{row.change.changed} of {row.change.total} decisions, {row.change.clear} clearly"
    who = f"{row.model}, {row.candidate} [{row.claim}]"
    return f"{who}: {what}; {row.truth} {row.error:.1e}, {change}: {row.judged}: {row.why}"


# ------------------------------------------------------------------------------------------------
# rendering


def summary(found: Sequence[Answered]) -> str:
    """Verdicts by candidate."""
    kinds = ("right", "wrong", "defensible", "unresolved", "none")
    lines = []
    for name in (*dict.fromkeys(r.candidate for r in found), "all"):
        counts = Counter(r.judged for r in found if name in (r.candidate, "all"))
        lines.append([name, *(str(counts[kind]) for kind in kinds)])
    return table(["candidate", *kinds[:-1], "no outputs"], lines)


def matrix(found: Sequence[Answered]) -> str:
    """Model × candidate: what was said, and how far the worst slice is off."""
    names = list(dict.fromkeys(r.candidate for r in found))
    lines = []
    for model in dict.fromkeys(r.model for r in found):
        by = {r.candidate: r for r in found if r.model == model}
        lines.append([model, *(_cell(by[name]) if name in by else "" for name in names)])
    return table(["model", *names], lines)


def _cell(row: Answered) -> str:
    if not row.truth:
        return row.signature or "–"
    said = (
        row.signature
        if row.status == "fail" and row.signature not in ("", "mismatch")
        else row.status
    )
    return f"{said} {row.error:.0e}{'' if row.judged == 'right' else f' **{row.judged}**'}"


def named(found: Sequence[Answered]) -> str:
    """Every verdict that is not right, with what it said and what is true."""
    lines = [
        [
            f"{r.model}, {r.candidate}",
            r.claim,
            f"{r.judged}: {r.status}",
            (
                f"{r.truth}: {r.error:.1e} at {r.at}; {r.change.clear} of {r.change.total}"
                " decisions clearly changed"
            ),
            ", ".join(r.witnesses) or "none",
            r.why,
        ]
        for r in found
        if r.judged in ("wrong", "unresolved", "defensible")
    ]
    return table(
        ["model, candidate", "claim", "verdict", "adjudicated", "reference confirmed by", "why"],
        lines,
    )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.agreement", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--models", default="", help="only these, by comma")
    parser.add_argument("--candidates", default="", help="only these, by semicolon")
    asked = parser.parse_args(arguments)
    chosen = [m for m in models() if not asked.models or m.name in asked.models.split(",")]
    names = asked.candidates.split(";") if asked.candidates else [*RUNTIMES, *CONVERSIONS]
    FOLDER.mkdir(parents=True, exist_ok=True)
    begin = time.perf_counter()
    command = " ".join(["python", "-m", "benchmarks.agreement", *arguments])
    found: list[Answered] = []
    for model in chosen:
        found += verdicts_on(model, names)
        heading = (
            f"`{command}` on {machine.line(floor(), *PACKAGES)};"
            f" {time.perf_counter() - begin:.0f} s"
        )
        text = "\n\n".join([heading, summary(found), matrix(found), named(found)])
        (FOLDER / "agreement.md").write_text(text + "\n")
        data = {"command": command, "verdicts": [asdict(r) | {"judged": r.judged} for r in found]}
        (FOLDER / "agreement.json").write_text(json.dumps(data, indent=1) + "\n")
    print((FOLDER / "agreement.md").read_text())
    return 1 if any(r.judged == "wrong" for r in found) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
