"""Options of a bisection, and the folder of its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

from subgraph.cases.case import ResultPlace
from subgraph.documents import to_json
from subgraph.errors import UsageError
from subgraph.graph.region import find_region
from subgraph.questions.bisection.oracle import NodeOracle
from subgraph.search import Settings
from subgraph.storage.folders import make_safe_name
from subgraph.trials.open_trials import Setup
from subgraph.types import Strings, frozen

MAX_NAME_LENGTH = 60  # characters of the name of the candidate or a body in the name of the folder


@frozen
class BisectionOptions:
    """Options of a bisection.

    Attributes:
        setup: candidate, inputs, criterion and result folder.
        limits: budgets of the search.
        within: `A..B`: only the nodes between these two are suspects; "" for all.
        command: the user's command line, for reports.
        notes: notes for the reader of the report.
        force: whether an existing result is overwritten.
        hints: how many times as likely as others a node is guilty, by its index; called once the
            full model disagrees.
        body: the name of the body that is searched; "" for a standalone model.
        by_rewriting: whether no cut is run; the full model is rewritten at once.
        keep_input: whether no smaller input of a finding is searched.
    """

    setup: Setup
    limits: Settings = field(default_factory=Settings)
    within: str = ""
    command: str = ""
    notes: Strings = ()
    force: bool = False
    hints: Callable[[], Mapping[int, float]] = dict
    body: str = ""
    by_rewriting: bool = False
    keep_input: bool = False

    @property
    def place(self) -> ResultPlace:
        """The folder of the result: one per candidate, candidate model, and body."""
        setup = self.setup
        name = f"bisect-{make_safe_name(setup.candidate.name)[:MAX_NAME_LENGTH]}"
        if setup.own_model:
            name += f"-{make_safe_name(setup.own_model)[:MAX_NAME_LENGTH]}"
        if self.body:
            name += f"-inside-{make_safe_name(self.body)[:MAX_NAME_LENGTH]}"
        return ResultPlace(setup.output, name, self.force or bool(self.body))

    @property
    def request(self) -> object:
        """The options that the result depends on, as JSON."""
        setup = self.setup
        return to_json(
            {
                "candidate": setup.candidate.name,
                "identity": setup.candidate.identity(""),
                "precision": setup.candidate.precision,
                **({"candidate_model": setup.own_model} if setup.own_model else {}),
                "feeding": setup.feeding.options,
                "criterion": setup.criterion,
                **to_json(setup.choice.document()),
                "freeze": setup.freeze,
                "within": self.within,
                "inside": self.limits.inside,
                **({"by": "rewriting"} if self.by_rewriting else {}),
            }
        )

    def find_scope(self, oracle: NodeOracle) -> Sequence[int] | None:
        """Return the items between the two nodes of `within`; None for all.

        Raises:
            UsageError, UnknownName: `within` does not name two nodes, or none of the nodes between
                them has values.
        """
        if not self.within:
            return None
        start, sep, end = self.within.partition("..")
        if not sep:
            raise UsageError(
                f"--within {self.within}: expected two nodes",
                "--within conv1..pool5; either may be left out",
                code="option.malformed",
            )
        graph = oracle.graph
        region = find_region(graph, [start] if start else [], [end] if end else [])
        items = oracle.find_items(region.nodes)
        if not items:
            raise UsageError(
                f"--within {self.within}: nothing there carries values", code="region.no-values"
            )
        return items
