"""A search and its trials -> the one document that every report is made of (`reports/bisect.schema.json`)."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from subgraph.bisection.oracle import NodeOracle
from subgraph.cases.case import source_of, versions
from subgraph.comparison.pair import Pair
from subgraph.errors import SubcutError
from subgraph.graph.region import Region
from subgraph.search import Finding, FindingKind, Findings, Observation, Outcome, Purpose, Step
from subgraph.search.oracle import QueryKind
from subgraph.storage.tensors import load
from subgraph.text import count
from subgraph.trials.compare import ranking
from subgraph.trials.diagnosis import Evidence, diagnose
from subgraph.verdict import Judgement, Status, Verdict

if TYPE_CHECKING:
    pass

SCHEMA = "subcut.bisect/1"
SHOWN = 5  # pieces that could not be asked about
NEIGHBOURS = 40  # nodes around a region that are drawn
EXPLAINED = 3  # findings for which more is run
WORDS = {
    QueryKind.WHOLE: "whole model",
    QueryKind.CLAIMED: "at the claimed precision",
    QueryKind.PROFILE: "in place",
    QueryKind.ISOLATED: "alone",
    QueryKind.POOL: "pieces together",
    QueryKind.PREFIX: "first nodes",
}


def exit_code(found: Findings) -> int:
    """0 they agree; 1 a disagreement, whatever is known about it; 5 nothing could be established."""
    if found.outcome in (Outcome.AGREE, Outcome.CLAIMED):
        return 0
    return 1 if found.outcome is Outcome.DISAGREE else 5


def document(
    asked: NodeOracle, found: Findings, steps: Sequence[Step], *, command: str, criterion: str, seconds: float,
    notes: Iterable[str] = (),
) -> dict[str, Any]:  # fmt: skip
    """All of it as plain data."""
    trials = asked.trials
    graph = trials.graph
    whole = _whole(steps)
    source = source_of(graph)
    return {
        "schema": SCHEMA,
        "exit_code": exit_code(found),
        "agree": exit_code(found) == 0,
        "outcome": found.outcome.value,
        "trials": found.counts.total() + trials.extra_runs,
        "compiled_nodes": found.counts.items() + trials.extra_nodes,
        "runs": {purpose.value: n for purpose, n in found.counts.runs.items()} | _explaining(trials.extra_runs),
        "seconds": round(seconds, 3),
        "command": command,
        "model": {
            "file": source.file,
            "graph": str(graph.model.graph.name),
            "nodes": len(graph.nodes),
            "structure_sha256": source.structure_sha256,
        },
        "candidate": {
            "name": trials.candidate.name,
            "backend": Path(trials.candidate.backend).name,
            "options": {k: v for k, v in trials.candidate.options.items() if k != "folder"},
            "version": trials.about.version,
            "precision": trials.precision,
        },
        "reference": _reference(asked),
        "criterion": criterion,
        "samples": trials.values.labels,
        "whole": whole and whole.to_json() | {"ranking": ranking(trials, trials.run(trials.whole()))},
        "profile": _profile(asked, steps),
        "steps": [_step(asked, s) for s in steps],
        "findings": _findings(asked, found, steps),
        "alone": [_noted(asked, n) for n in found.irrelevant],
        "notes": [*notes, *_claimed(asked, found, whole), *_notes(asked, found)],
        "report": None,
        "environment": _environment(asked),
    }


def _explaining(runs: int) -> dict[str, int]:
    """Runs that only tell how much of the error is gone without a piece."""
    return {"explain": runs} if runs else {}


def _reference(asked: NodeOracle) -> dict[str, Any]:
    identity = asked.trials.reference.identity()
    options = {k: Path(v).name if k == "custom_ops" else v for k, v in identity["options"].items()}
    name = Path(identity["backend"]).name
    return {"name": name, "backend": name, "options": options, "version": identity["version"], "precision": "fp32"}


def _environment(asked: NodeOracle) -> dict[str, Any]:
    own = versions()
    packages = {k: v for k, v in own.items() if k not in ("subcut", "python")}
    threads = asked.trials.reference.options.get("threads", 1)
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    return {
        "subcut": own["subcut"], "python": own["python"], "machine": machine, "threads": threads, "packages": packages,
    }  # fmt: skip


def _claimed(asked: NodeOracle, found: Findings, whole: Verdict | None) -> list[str]:
    """What an error amounts to that only the claimed precision excuses."""
    ratio = whole.worst.errors.get("noise_ratio") if whole and whole.worst else None
    if found.outcome is not Outcome.CLAIMED or ratio is None:
        return []
    return [f"rounding, not a bug: the error is {ratio:.2g} × what rounding in {asked.trials.precision} does"]


def _notes(asked: NodeOracle, found: Findings) -> list[str]:
    caveat = asked.trials.about.caveat
    notes = [str(caveat)] if caveat else []
    notes += [text + ", ".join(asked.label(k) for k in items) for text, items in found.notes]
    if found.probe_sensitive:
        notes.append("reading inner tensors makes the fault vanish: the candidate behaves otherwise when probed")
    if found.stopped.endswith("used up"):
        notes.append(f"ended early: {found.stopped}; the same command with more goes on")
    elif found.outcome is Outcome.DISAGREE and found.complete:
        notes.append("everything else was asked about and agrees")
    for noted in found.unresolved[:SHOWN]:
        notes += [f"{count(len(noted.items), 'node')}, {noted.signature or 'unknown'}: {noted.why}"]
    return notes


# ---------------------------------------------------------------------------------------------------- steps


def _profile(asked: NodeOracle, steps: Sequence[Step]) -> list[dict[str, Any]] | None:
    verdict = next((s.answer.verdict for s in steps if s.purpose is Purpose.PROFILE and s.answer.verdict), None)
    if verdict is None or not verdict.outputs:
        return None
    graph = asked.trials.graph
    rows: dict[str, dict[str, Any]] = {}
    for j in verdict.outputs:
        i = graph.maker[j.name]
        if j.name not in rows or (_error(j) or 0) > (rows[j.name]["error"] or 0):
            rows[j.name] = {
                "index": i, "node": graph.label(i), "op": graph.ops[i], "tensor": j.name,
                "error": _number(_error(j)), "status": j.status.value,
            }  # fmt: skip
    return sorted(rows.values(), key=lambda row: graph.rank[row["index"]])


def _error(j: Judgement | None) -> float | None:
    error = j.errors.get("max_rel") if j else None
    return None if error is None or math.isnan(error) else error


def _number(value: float | None) -> Any:
    return str(value) if value is not None and not math.isfinite(value) else value


def _step(asked: NodeOracle, step: Step) -> dict[str, Any]:
    graph, verdict = asked.trials.graph, step.answer.verdict
    nodes = asked.indices(step.items)
    label = [graph.label(i) for i in (nodes[:1] + nodes[-1:])]
    left = f"{step.left} left, about {step.more} more runs" if step.more else f"{step.left} left"
    return {
        "number": step.number,
        "kind": f"{WORDS[step.query.kind]}{', again' if step.query.repetition else ''}",
        "purpose": step.purpose.value,
        "first": label[0] if label else "",
        "last": label[-1] if label else "",
        "count": len(nodes) or asked.size,
        "indices": nodes,
        "status": step.outcome.value,
        "signature": step.answer.signature.value if step.answer.signature else None,
        "error": _number(_error(verdict.worst if verdict else None)),
        "explains": _number(step.answer.share),
        "seconds": round(step.answer.seconds, 6),
        "changed": left,
    }


# ---------------------------------------------------------------------------------------------------- findings


def _findings(asked: NodeOracle, found: Findings, steps: Sequence[Step]) -> list[dict[str, Any]]:
    ended = f"the search ended early: {found.stopped}" if found.stopped else ""
    if asked.trials.candidate_model:
        ended = "the candidate runs another model"
    told = []
    for k, finding in enumerate(found.findings):
        withheld = ended if k < EXPLAINED else f"only the first {EXPLAINED} findings are looked into so far"
        told.append(_finding(asked, finding, steps) | {"evidence": _evidence(asked, finding, steps, withheld)})
    return told


def _evidence(asked: NodeOracle, finding: Finding, steps: Sequence[Step], withheld: str) -> list[dict[str, str]]:
    """What speaks for rounding and what for a bug; nothing where it is not sure that it fails at all.

    `withheld`: why nothing more is run for that.
    """
    trials, kind = asked.trials, finding.kind
    whole = kind is FindingKind.ACCUMULATED
    verdict = _whole(steps) if whole else _alone(finding, steps) if finding.items else None
    fails = verdict is not None and (verdict.status is Status.FAIL or kind is FindingKind.CULPRIT)
    if verdict is None or not fails or kind is FindingKind.FLAKY:
        return []
    region = trials.whole() if whole else asked.region(finding.items)
    try:
        return [one.to_json() for one in diagnose(trials, region, verdict, withheld)]
    except SubcutError as e:
        return [Evidence("conclusion", f"not known: {e.what}").to_json()]


def _whole(steps: Sequence[Step]) -> Verdict | None:
    """The first verdict on the whole model that says it fails; where none does, the first."""
    told = [s.answer.verdict for s in steps if s.query.kind is QueryKind.WHOLE and s.answer.verdict]
    return next((v for v in told if v.status is Status.FAIL), told[0] if told else None)


def _finding(asked: NodeOracle, finding: Finding, steps: Sequence[Step]) -> dict[str, Any]:
    graph = asked.trials.graph
    nodes = asked.indices(finding.items)
    region = asked.region(finding.items) if finding.items else None
    verdict = _alone(finding, steps)
    worst = verdict.worst if verdict else None
    out: dict[str, Any] = {
        "kind": finding.kind.value,
        "signature": finding.signature.value if finding.signature else None,
        "nodes": [graph.label(i) for i in nodes],
        "indices": nodes,
        "ops": [graph.ops[i] for i in nodes],
        "certified": finding.certified,
        "explains": _number(finding.explains),
        "reproduces": finding.reproduces,
        "case": None,
        "edge": _edge(asked, region) if region else None,
        "worst": _worst(worst),
        "neighbours": _neighbours(asked, nodes) if region else None,
        "nearest": _nearest(asked, finding, steps),
        "verdict": verdict.to_json() if verdict else None,
        "why": _why(asked, finding),
    }
    out |= _differences(asked, region, worst)
    if finding.kind is FindingKind.ACCUMULATED:
        out["growth"] = [{"nodes": n, "error": _number(e)} for n, e in finding.growth]
        out["contributors"] = [_contributor(asked, items, share) for items, share in finding.contributors]
    if finding.kind is FindingKind.FLAKY:
        out |= {"rate": finding.reproduces, "runs": dict(zip(("failed", "of"), finding.runs, strict=True))}
    if finding.kind is FindingKind.UNRESOLVED:
        out["reason"] = finding.why
    return out


def _why(asked: NodeOracle, finding: Finding) -> str:
    if not finding.doubtful:
        return finding.why
    return "not certified: could not be asked without " + ", ".join(asked.label(k) for k in finding.doubtful[:SHOWN])


def _alone(finding: Finding, steps: Sequence[Step]) -> Verdict | None:
    """The last verdict on exactly this region; one in a fresh process before others."""
    mine = [s for s in steps if s.query.kind is QueryKind.ISOLATED and s.items == finding.items and s.answer.verdict]
    best = max(mine, key=lambda s: (s.answer.status is Status.FAIL, s.query.fresh, s.number), default=None)
    return best.answer.verdict if best else None


def _edge(asked: NodeOracle, region: Region) -> dict[str, Any]:
    records = asked.trials.values.records[0]

    def told(names: Iterable[str]) -> list[dict[str, Any]]:
        known = [records[n] for n in names if n in records]
        return [{"tensor": r.name, "dtype": r.dtype, "shape": list(r.shapes[0]) if r.shapes else []} for r in known]

    return {"inputs": told(region.inputs), "outputs": told(region.outputs)}


def _worst(j: Judgement | None) -> dict[str, Any] | None:
    if j is None or j.worst is None:
        return None
    return dict(j.to_json()["worst"]) | {"tensor": j.name, "error": _number(_error(j))}


def _differences(asked: NodeOracle, region: Region | None, worst: Judgement | None) -> dict[str, Any]:
    """How many elements of the output that decides are off, and by how much: bins of |d| over the scale."""
    nothing: dict[str, Any] = {"off": None, "histogram": None}
    if region is None or worst is None:
        return nothing
    k = asked.trials.values.labels.index(worst.sample) if worst.sample else 0
    answer = asked.given(region)
    if answer.failure or worst.name not in answer.tensors[k]:
        return nothing
    import numpy as np

    a = load(asked.trials.values.records[k][worst.name], Path("/"))
    b = load(answer.tensors[k][worst.name], Path("/"))
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray) or a.shape != b.shape or a.dtype != b.dtype:
        return nothing
    pair = Pair(a, b)
    d = pair.difference[pair.difference > 0] / (pair.scale or 1.0)
    decades, counts = np.unique(np.floor(np.log10(d)).astype(int), return_counts=True)
    return {
        "off": {"count": pair.changed, "of": pair.size},
        "histogram": {
            "equal": pair.compared - int(d.size),
            "bins": [{"decade": int(x), "count": int(n)} for x, n in zip(decades, counts, strict=True)],
            "not_finite": pair.size - pair.compared,
        },
    }


def _neighbours(asked: NodeOracle, nodes: Sequence[int]) -> dict[str, Any]:
    """The region, what feeds it, what reads it, and the edges among them."""
    graph, inside = asked.trials.graph, set(nodes)
    above = {b for i in nodes for b in graph.predecessors(i)} - inside
    below = {a for i in nodes for a in graph.successors(i)} - inside
    beside = {a for i in above for a in graph.successors(i)} | {b for i in below for b in graph.predecessors(i)}
    order = [*graph.in_order(inside), *graph.in_order(above | below), *graph.in_order(beside - above - below - inside)]
    chosen = graph.in_order(order[: max(NEIGHBOURS, len(inside))])
    known = set(chosen)
    edges: list[dict[str, Any]] = []
    for i in chosen:
        for name in dict.fromkeys(graph.reads[i]):
            maker = graph.maker.get(name)
            if maker in known or name in graph.inputs:
                edges.append({"tensor": name, "from": maker, "to": i})
        edges += [{"tensor": n, "from": i, "to": None} for n in graph.makes[i] if n in graph.outputs]
    boxes = [{"index": i, "label": graph.label(i), "op": graph.ops[i], "inside": i in inside} for i in chosen]
    return {"nodes": boxes, "edges": edges, "left_out": len(set(order)) - len(chosen)}


def _nearest(asked: NodeOracle, finding: Finding, steps: Sequence[Step]) -> dict[str, Any] | None:
    if finding.neighbour is None:
        return None
    graph = asked.trials.graph
    nodes = asked.indices(finding.neighbour)
    without = asked.indices([k for k in finding.items if k not in finding.neighbour])
    step = next((s for s in steps if s.items == finding.neighbour and s.answer.verdict), None)
    verdict = step.answer.verdict if step else None
    return {
        "without": [graph.label(i) for i in without],
        "nodes": [graph.label(i) for i in nodes],
        "indices": nodes,
        "error": _number(_error(verdict.worst if verdict else None)),
    }


def _contributor(asked: NodeOracle, items: Sequence[int], share: float) -> dict[str, Any]:
    graph, nodes = asked.trials.graph, asked.indices(items)
    label = graph.label(nodes[0]) + (f" … {graph.label(nodes[-1])}" if len(nodes) > 1 else "")
    ops = ", ".join(dict.fromkeys(graph.ops[i] for i in nodes[:3]))
    return {"node": label, "op": ops, "index": nodes[0], "explains": _number(share)}


def _noted(asked: NodeOracle, noted: Observation) -> dict[str, Any]:
    graph, nodes = asked.trials.graph, asked.indices(noted.items)
    return {
        "signature": noted.signature.value if noted.signature else None,
        "nodes": [graph.label(i) for i in nodes],
        "indices": nodes,
        "ops": [graph.ops[i] for i in nodes],
        "explains": _number(noted.share),
        "error": None,
    }
