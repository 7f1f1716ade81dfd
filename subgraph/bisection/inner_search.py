"""Findings that are one node with a body -> what a search in that body finds, first as a standalone
model."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Protocol

from subgraph.bisection.inside import (
    Entered,
    InnerRuns,
    can_enter,
    enter,
    miscounted,
    trials_inside,
)
from subgraph.bisection.options import BisectionOptions
from subgraph.bisection.oracle import NodeOracle
from subgraph.errors import SubcutError
from subgraph.results.bisect import BisectDocument, FindingDocument, InnerFinding, InsideDocument
from subgraph.search import FindingKind, Findings, Step
from subgraph.text import clean
from subgraph.trials.trial import Trials

log = logging.getLogger("subcut")

MAX_ENTERED = 3  # findings in whose bodies the search continues
INNER_FIELDS = tuple(f.name for f in fields(InnerFinding))  # of a finding in there


class InnerBisection(Protocol):
    """A bisection of a body."""

    def __iter__(self) -> Iterator[Step]: ...
    @property
    def steps(self) -> list[Step]: ...
    @property
    def findings(self) -> Findings | None: ...
    @property
    def finished(self) -> BisectDocument | None: ...


@dataclass(frozen=True)
class InnerSearch:
    """Searches in the bodies of a bisection's findings.

    Attributes:
        oracle: the oracle of the outer search.
        options: the options of the outer bisection.
        runs: the runs that may be made in bodies.
        seconds: time since the outer bisection began.
        bisect: makes a bisection of a body.
    """

    oracle: NodeOracle
    options: BisectionOptions
    runs: InnerRuns
    seconds: Callable[[], float]
    bisect: Callable[[Trials, BisectionOptions], InnerBisection]

    def extend(self, document: BisectDocument) -> BisectDocument:
        """The document with what was found in bodies, and with the runs and the time that it
        took."""
        document = replace(document, findings=list(self._with_bodies(document.findings)))
        made = self.runs.made
        seconds = round(self.seconds(), 3)
        runs = {**document.runs, **({"inside": made} if made else {})}
        return replace(document, trials=document.trials + made, runs=runs, seconds=seconds)

    def _with_bodies(self, findings: Sequence[FindingDocument]) -> Iterator[FindingDocument]:
        """Yield the findings; the first ones that are a node with a body with what was found in
        there."""
        for k, finding in enumerate(findings):
            is_candidate = finding.kind == FindingKind.CULPRIT and k < MAX_ENTERED
            is_entered = is_candidate and can_enter(self.oracle.trials.judge, finding.indices)
            found = self._search_node(finding) if is_entered else None
            yield replace(finding, inside=found) if found else finding

    def _search_node(self, finding: FindingDocument) -> InsideDocument | None:
        """Search in a body of a finding's only node; None if it has no body that runs."""
        trials = self.oracle.trials
        node = finding.indices[0]
        region = self.oracle.region(
            [k for k, group in enumerate(self.oracle.groups) if node in group]
        )
        try:
            verdict = trials.judge.verdict(region, self.oracle.run_result(region))
            self.runs.require(1)
            entered = enter(trials, self.options.setup, node, verdict, self.runs)
            if entered is None:
                return None
        except SubcutError as e:
            return InsideDocument(trials.graph.label(node), None, None, why=e.what)
        found = self._search_body(entered)
        return found if found.is_same_fault(verdict) else self._explain_other(entered, found)

    def _explain_other(self, entered: Entered, found: InsideDocument) -> InsideDocument:
        """Tell why a body, as a standalone model, is not as wrong as its node."""
        try:
            if why := miscounted(self.oracle.trials.judge, self.options.setup, entered, self.runs):
                return InsideDocument(entered.all_iterations, None, None, why=why)
        except SubcutError as e:
            return replace(found, why=found.why or e.what)
        if not found.findings:
            return found
        refused = "the candidate refuses what is inside as a model of its own"
        return replace(entered.document, why=refused, report=found.report)

    def _search_body(self, entered: Entered) -> InsideDocument:
        """Search in a body, which the candidate is given as a standalone model."""
        known = entered.document
        left = self.options.limits.after(seconds=self.seconds())
        limits = replace(left, max_trials=self.runs.left, within=None)
        try:
            self.runs.require(1)
            with trials_inside(self.oracle.trials.judge, self.options.setup, entered) as (
                trials,
                setup,
            ):
                log.info("inside %s: %d nodes", clean(known.body), len(trials.graph.nodes))
                options = replace(
                    self.options, setup=setup, limits=limits, within="", hints=dict, body=known.body
                )
                inner = self.bisect(trials, options)
                try:
                    for _ in inner:
                        pass
                finally:
                    self.runs.made += inner.finished.trials if inner.finished else len(inner.steps)
        except SubcutError as e:
            return replace(known, why=e.what)
        found = inner.finished
        assert found
        stopped = (
            f"ended early: {inner.findings.stopped}"
            if inner.findings and inner.findings.stopped
            else ""
        )
        findings = [
            InnerFinding(**{name: getattr(f, name) for name in INNER_FIELDS})
            for f in found.findings
        ]
        return replace(
            known, outcome=found.outcome, report=found.report, why=stopped, findings=findings
        )
