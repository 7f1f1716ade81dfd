"""Every tensor of a model, in place and alone -> rows, the first bad one.

*In place*: all tensors of one run of the whole, read by making them outputs; that disturbs fusion, so it is a hint.
*Alone*: each node as a model of its own, fed with reference values. The whole model's own outputs come from an
undisturbed run.
"""

from __future__ import annotations

import fnmatch
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from subgraph.comparison.top_k import agreement
from subgraph.errors import NoRegion, UsageError
from subgraph.graph import region as regions
from subgraph.graph.graph import Graph
from subgraph.graph.region import Region
from subgraph.runtime import candidate as candidates
from subgraph.runtime.candidate import Candidate
from subgraph.runtime.inputs import Feeding
from subgraph.runtime.run_result import RunResult
from subgraph.storage.tensors import load
from subgraph.trials import pooled_runs
from subgraph.trials.session import Setup, open_with_processes
from subgraph.trials.similar_outputs import looks_like
from subgraph.trials.trial import Trials
from subgraph.verdict import Judgement, Status, Verdict, gravity

log = logging.getLogger("subcut")

SCHEMA = "subcut.compare/1"
PROBES = 2  # nodes that run alone first, to see what one costs
POOL_ABOVE = 30.0  # seconds that all nodes may take one by one before they are pooled


@dataclass(frozen=True)
class ComparisonRow:
    """One tensor. `in_place`, `alone`: its judgement there, over all samples the worst; None where there is none.

    `verdict`: that of its node alone, which says why there is no judgement; None where the node was not run.
    """

    index: int
    node: str
    op: str
    tensor: str
    in_place: Judgement | None
    alone: Judgement | None
    verdict: Verdict | None

    @property
    def failing(self) -> bool:
        """Does it disagree in one of the two ways?"""
        return any(v is not None and v.status is Status.FAIL for v in (self.in_place, self.alone, self.verdict))


@dataclass(frozen=True)
class Comparison:
    """Attributes:
    whole: the whole model, undisturbed. in_place: one run with all tensors as outputs.
    ranking: top-1 and top-5 agreement by output that looks like class scores, the worst over all samples.
    rows: in topological order; with `stopped`, up to the first bad one.
    looks_like: what would make the first bad one equal, a line each.
    """

    whole: Verdict
    in_place: Verdict
    ranking: dict[str, dict[str, float]]
    rows: tuple[ComparisonRow, ...]
    stopped: bool = False
    looks_like: tuple[str, ...] = ()

    @property
    def first_bad(self) -> ComparisonRow | None:
        """The first tensor that is wrong in place; where none is, the first that is wrong alone."""
        bad = (r for r in self.rows if r.in_place is not None and r.in_place.status is Status.FAIL)
        return next(bad, None) or next((r for r in self.rows if r.failing), None)

    @property
    def exit_code(self) -> int:
        """1 where anything disagrees, 5 where the whole model gave nothing to compare, else 0."""
        if any(v.status is Status.FAIL for v in (self.whole, self.in_place)) or self.first_bad:
            return 1
        return 0 if self.whole.status is Status.AGREE else 5


def compared(trials: Trials, at: Sequence[str] = (), *, jobs: int = 1, fail_fast: bool = False) -> Comparison:
    """Compare tensors: all that carry values, or those that `at` names (tensors, nodes, or globs of both).

    `fail_fast`: stop at the first tensor that is wrong, in topological order. `jobs`: nodes that are run alone at once.

    Raises:
        UnknownName, UsageError: `at` names nothing, or nothing that can be compared.
        BackendError: the candidate cannot be used. ModelError: the reference cannot give the values.
    """
    names = chosen(trials, at)
    trials.values.need([*trials.graph.outputs, *names])
    region = trials.whole()
    answer = trials.run(region)
    whole = trials.verdict_of(region, answer)
    in_place = trials.verdict(trials.whole(names))
    rows: list[ComparisonRow] = []
    made = _by_node(trials, names)
    for i, verdict in _alone(trials, made, jobs):
        rows += _rows(trials, i, made[i], in_place, verdict)
        log.debug("%s alone: %s", trials.graph.label(i), verdict.status.value if verdict else "not run")
        if fail_fast and any(r.failing for r in rows):
            break
    found = Comparison(whole, in_place, ranking(trials, answer), tuple(rows), len(rows) < len(names))
    bad = found.first_bad
    return replace(found, looks_like=_looks_like(trials, bad, made[bad.index], names)) if bad else found


def _looks_like(trials: Trials, bad: ComparisonRow, beside: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """A bad tensor: alone, where it is wrong alone, else in place. `beside`: all of its node; `names`: all."""
    piece = _piece(trials, bad.index, beside)
    if piece and bad.alone and bad.alone.status is Status.FAIL:
        return tuple(looks_like(trials, piece, bad.alone))
    return tuple(looks_like(trials, trials.whole(names), bad.in_place)) if bad.in_place else ()


def compare(
    graph: Graph,
    candidate: str | Candidate = "ort",
    inputs: Sequence[str] = (),
    *,
    at: Sequence[str] = (),
    seed: int = 0,
    shapes: Mapping[str, Sequence[int]] | None = None,
    criterion: str = "noise",
    reference: str | Candidate = "ort",
    jobs: int = 1,
    fail_fast: bool = False,
    freeze: bool = True,
    output: str | Path = "subcut_out",
) -> Comparison:
    """Compare the tensors of a model on a candidate with the reference's, in place and alone.

    `candidate`, `reference`: a SPEC as after `-c`, or a `candidate.Candidate` with limits of its own. `inputs`: words
    as after `-i`. `at`: tensors, nodes, or globs of both; none: all. Answers are kept in `output`.

    >>> found = compare(load("model.onnx"), "ort", ["x.npy"])                                    # doctest: +SKIP
    >>> found.first_bad.tensor, found.first_bad.in_place.errors["max_rel"]                       # doctest: +SKIP
    ('/pool/MaxPool_output_0', 0.99)

    Raises: as `compared`; UnknownName, UsageError: a SPEC means nothing.
    """
    doubted = candidates.parse(candidate) if isinstance(candidate, str) else candidate
    right = candidates.parse(reference) if isinstance(reference, str) else reference
    setup = Setup(doubted, Feeding(tuple(map(str, inputs)), shapes or {}, seed), Path(output), criterion, freeze)
    with open_with_processes(graph, setup, right) as trials:
        return compared(trials, at, jobs=jobs, fail_fast=fail_fast)


def chosen(trials: Trials, at: Sequence[str]) -> list[str]:
    """The tensors to compare, in topological order."""
    known = trials.tensors()
    if not at:
        return known
    graph = trials.graph
    wanted: set[str] = set()
    for word in at:
        made = _fitting(graph, known, word)
        if not made:
            selection = graph.select(word)
            made = {selection.tensor} if selection.tensor else {n for i in selection.nodes for n in graph.makes[i]}
        if not made & set(known):
            raise UsageError(f"'{word}' cannot be compared", "it is an input, a constant, a shape, or nobody needs it")
        wanted |= made
    return [n for n in known if n in wanted]


def _fitting(graph: Graph, known: Iterable[str], word: str) -> set[str]:
    """The tensors that a glob fits, by their own name or their node's; none where it is a name as it stands."""
    if not any(c in word for c in "*?[") or word in graph.maker or word in graph.node_names:
        return set()
    return {n for n in known if any(fnmatch.fnmatchcase(name, word) for name in (n, graph.node_names[graph.maker[n]]))}


def _by_node(trials: Trials, names: Iterable[str]) -> dict[int, list[str]]:
    made: dict[int, list[str]] = {}
    for name in names:
        made.setdefault(trials.graph.maker[name], []).append(name)
    return made


def _alone(trials: Trials, made: dict[int, list[str]], jobs: int) -> Iterator[tuple[int, Verdict | None]]:
    """Each node's own verdict, in order; None for random nodes. What was not asked for yet is dropped at the end.

    Where one node takes so long that all would take minutes, the rest runs as pieces of few models, if the candidate
    takes such.
    """
    pieces = {i: _piece(trials, i, names) for i, names in made.items()}
    order = list(made)
    begin = time.perf_counter()
    first = order[:PROBES]
    for i in first:
        yield i, _asked(trials, pieces[i])
    each, rest = (time.perf_counter() - begin) / PROBES, order[PROBES:]
    if each * len(rest) / jobs > POOL_ABOVE and trials.multi:
        log.info("%.1f s a node: the other %d run together, as pieces of one model", each, len(rest))
        asked = [p for i in rest if (p := pieces[i])]
        found = {p.nodes: v for p, v in zip(asked, pooled_runs.verdicts(trials, asked), strict=True)}
        yield from ((i, found[p.nodes] if (p := pieces[i]) else None) for i in rest)
        return
    executor = ThreadPoolExecutor(max_workers=jobs)
    try:
        verdicts = executor.map(lambda i: _asked(trials, pieces[i]), rest)
        for step, (i, verdict) in enumerate(zip(rest, verdicts, strict=True), len(first) + 1):
            log.info("%d of %d nodes alone", step, len(made), extra={"step": step, "of": len(made), "sparse": True})
            yield i, verdict
    finally:
        executor.shutdown(cancel_futures=True)


def _piece(trials: Trials, i: int, names: Sequence[str]) -> Region | None:
    """One node as a region; None for a random one."""
    try:
        return regions.of_nodes(trials.graph, [i], [tuple(names)])
    except NoRegion:
        return None


def _asked(trials: Trials, piece: Region | None) -> Verdict | None:
    return trials.verdict(piece) if piece else None


def _rows(
    trials: Trials, i: int, names: Sequence[str], in_place: Verdict, verdict: Verdict | None
) -> Iterator[ComparisonRow]:
    graph = trials.graph
    for name in names:
        alone = _worst(verdict, name) if verdict else None
        yield ComparisonRow(i, graph.label(i), graph.ops[i], name, _worst(in_place, name), alone, verdict)


def _worst(verdict: Verdict, name: str) -> Judgement | None:
    """Of one output, over all samples."""
    return max((j for j in verdict.outputs if j.name == name), key=gravity, default=None)


def ranking(trials: Trials, answer: RunResult) -> dict[str, dict[str, float]]:
    """Top-1 and top-5 agreement by output of the model that looks like class scores, the worst over all samples."""
    found: dict[str, dict[str, float]] = {}
    for known, given in zip(trials.values.records, answer.tensors, strict=False):
        for name in trials.graph.outputs:
            if name in given and name in known:
                shares = agreement(load(known[name], Path("/")), load(given[name], Path("/")))
                if shares:
                    old = found.get(name, shares)
                    found[name] = {k: min(v, old[k]) for k, v in shares.items()}
    return found


def document(trials: Trials, found: Comparison, criterion: str) -> dict[str, Any]:
    """All of it as plain data, for `--json` and every report."""
    bad = found.first_bad
    return {
        "schema": SCHEMA,
        "exit_code": found.exit_code,
        "agree": found.exit_code == 0,
        "candidate": {
            "name": trials.candidate.name,
            "backend": trials.candidate.backend,
            "options": dict(trials.candidate.options),
            "version": trials.about.version,
            "precision": trials.precision,
        },
        "criterion": criterion,
        "samples": trials.values.labels,
        "whole": found.whole.to_json() | {"ranking": found.ranking},
        "in_place": {k: v for k, v in found.in_place.to_json().items() if k != "outputs"},
        "first_bad": bad
        and {
            "index": bad.index,
            "node": bad.node,
            "op": bad.op,
            "tensor": bad.tensor,
            "looks_like": list(found.looks_like),
        },
        "stopped": found.stopped,
        "rows": [_row_json(row) for row in found.rows],
    }


def _row_json(row: ComparisonRow) -> dict[str, Any]:
    alone = row.alone.to_json() if row.alone else None
    if alone is None and row.verdict is not None:
        alone = {k: v for k, v in row.verdict.to_json().items() if k in ("status", "signature", "why", "process")}
    return {
        "index": row.index,
        "node": row.node,
        "op": row.op,
        "tensor": row.tensor,
        "in_place": row.in_place.to_json() if row.in_place else None,
        "alone": alone,
    }
