"""One file per rule: `check(asked) -> Iterable[Found]`, known troubles of a model before anything runs.

A rule's file name is the word that the user types, the first line of its docstring its help. `warning`, `note` and
`unchecked` make an answer. A warning is what goes wrong on real targets; a note is what does so on some, or may.
A clean model gives nothing, and where a rule does not know enough it is silent.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from subgraph import plugins
from subgraph.errors import ModelError, UsageError
from subgraph.graph.graph import Graph
from subgraph.graph.shape_inference import InferredTypes, infer_types
from subgraph.graph.validate import Problem, find_problems
from subgraph.inspection.lint._numbers import Numbers, of_scope
from subgraph.inspection.lint._places import LintNode, Scope, scopes
from subgraph.inspection.ranges import MeasuredTensors, measure, size_of_elements
from subgraph.runtime.inputs import Feeding, ImageOptions
from subgraph.storage import dtypes
from subgraph.text import clean

SCHEMA = "subcut.lint/1"
WARNING, NOTE, UNCHECKED = "warning", "note", "unchecked"

Document = dict[str, Any]


@dataclass(frozen=True)
class LintIssue:
    """One trouble.

    Attributes:
        severity: WARNING, NOTE, or UNCHECKED: what could not be looked at, and why.
        place: the node; None where it is at no node.
        reason, fix: one sentence each: what goes wrong, and what to do.
        rule: its name; `run` fills it in.
        tensor: which it is about, if it is about one.
    """

    severity: str
    place: LintNode | None
    reason: str
    fix: str = ""
    rule: str = ""
    tensor: str | None = None


def warning(place: LintNode | None, reason: str, fix: str, tensor: str | None = None) -> LintIssue:
    """It goes wrong on real targets."""
    return LintIssue(WARNING, place, reason, fix, tensor=tensor)


def note(place: LintNode | None, reason: str, fix: str, tensor: str | None = None) -> LintIssue:
    """It goes wrong on some targets, or may."""
    return LintIssue(NOTE, place, reason, fix, tensor=tensor)


def unchecked(why: str) -> LintIssue:
    """What could not be looked at; said only to who asks for more."""
    return LintIssue(UNCHECKED, None, why)


@dataclass(eq=False)
class LintContext:
    """A model, and what rules may ask about it. All of it is made when it is first asked for, and kept.

    Attributes:
        target: the newest opset that the target takes; None where the user did not say.
        fed: what the user feeds; None where he said nothing: then no ranges are captured.
        second: sizes of inputs to try in place of the ones that the model fixes.
        seed: of random values.
        picture: how the user's images become tensors.
    """

    graph: Graph
    target: int | None = None
    fed: Feeding | None = None
    second: Mapping[str, Sequence[int]] = field(default_factory=dict)
    picture: ImageOptions = field(default_factory=ImageOptions)
    seed: int = 0

    @cached_property
    def known(self) -> InferredTypes:
        """Declared and inferred types."""
        return infer_types(self.graph)

    @cached_property
    def problems(self) -> list[Problem]:
        """What makes the model invalid, or nearly."""
        return find_problems(self.graph, self.known)

    @cached_property
    def scopes(self) -> list[Scope]:
        """The model's own graph first, then bodies and local functions."""
        return scopes(self.graph, lambda: self.known)

    @cached_property
    def places(self) -> list[LintNode]:
        """Every node, at any depth."""
        return [place for scope in self.scopes for place in scope.places]

    @cached_property
    def _by_op(self) -> dict[str, list[LintNode]]:
        found: dict[str, list[LintNode]] = {}
        for place in self.places:
            found.setdefault(place.op, []).append(place)
        return found

    def nodes(self, *ops: str) -> list[LintNode]:
        """The nodes of these standard operators, at any depth."""
        return [place for op in ops for place in self._by_op.get(op, ()) if place.is_op(op)]

    def at(self, index: int | None) -> LintNode | None:
        """A node of the model's own graph."""
        return None if index is None else self.scopes[0].places[index]

    @cached_property
    def numbers(self) -> list[Numbers]:
        """What the constants are like. Reads every weight, once."""
        return [numbers for scope in self.scopes for numbers in of_scope(scope)]

    @cached_property
    def run(self) -> MeasuredTensors:
        """The tensors that nodes make, as the reference computes them from what is fed; nothing without `fed`.

        Raises:
            InputError, UnknownName: what the user feeds does not fit.
        """
        return MeasuredTensors() if self.fed is None else measure(self.graph, self.made, self.fed, self.size_of)

    @cached_property
    def made(self) -> list[str]:
        """The tensors that nodes of the model's own graph make, in topological order; maps cannot be stored."""
        graph, types = self.graph, self.known
        kinds = {name: t.WhichOneof("value") for name, t in (*types.declared.items(), *types.inferred.items())}
        order = graph.in_order(range(len(graph.nodes)))
        return [name for i in order for name in graph.makes[i] if kinds.get(name) in (None, "tensor_type")]

    def size_of(self, name: str) -> int | None:
        """Bytes of a tensor, if its type says that."""
        place = self.scopes[0].makers[name]
        dtype, shape = place.dtype(name), place.shape(name)
        if shape is None or dtype not in dtypes.TYPE_NUMBERS or not all(isinstance(d, int) for d in shape):
            return None
        return size_of_elements(math.prod(shape), dtype)


# ---------------------------------------------------------------------------------------------------- run


def choose_rules(only: Sequence[str] = (), ignore: Sequence[str] = ()) -> list[str]:
    """The rules to ask: all, or only some; a Python file by its path is one as well.

    Raises:
        UnknownName: there is no such rule; carries the nearest. UsageError: a file that is none.
    """
    for word in (*only, *ignore):
        if not hasattr(plugins.load("lint", word), "check"):
            raise UsageError(f"{clean(word)} is no lint rule", "it needs a function check(asked)")
    skipped = {_word(name) for name in ignore}
    return [name for name in dict.fromkeys(map(_word, only or plugins.names("lint"))) if name not in skipped]


def _word(name: str) -> str:
    return name if name.endswith(".py") else name.replace("_", "-")


def run_rules(asked: LintContext, rules: Iterable[str]) -> Iterator[LintIssue]:
    """What each rule finds, in the order of the rules.

    Raises:
        InputError, UnknownName: what the user feeds does not fit.
    """
    for name in rules:
        try:
            for found in plugins.load("lint", name).check(asked):
                yield replace(found, rule=name)
        except ModelError as e:  # a cycle, say: rule `invalid` tells of it
            yield replace(unchecked(e.what), rule=name)


def document(asked: LintContext, rules: Sequence[str]) -> Document:
    """The findings as plain data: warnings first, then in the order of rules and nodes."""
    found = list(run_rules(asked, rules))
    told = [f for f in found if f.severity != UNCHECKED]
    told.sort(key=lambda f: (f.severity != WARNING, rules.index(f.rule)))
    counted = Counter(f.severity for f in told)
    return {
        "schema": SCHEMA,
        "exit_code": 1 if counted[WARNING] else 0,
        "model": str(asked.graph.path),
        "target_opset": asked.target,
        "rules": list(rules),
        "nodes": len(asked.places),
        "warnings": counted[WARNING],
        "notes": counted[NOTE],
        "findings": [_plain(f) for f in told],
        "not_checked": [{"rule": f.rule, "why": f.reason} for f in found if f.severity == UNCHECKED],
    }


def _plain(found: LintIssue) -> Document:
    return {
        "rule": found.rule,
        "severity": found.severity,
        "node": found.place and _node(found.place),
        "tensor": found.tensor,
        "reason": found.reason,
        "fix": found.fix,
    }


def _node(place: LintNode) -> Document:
    """`index`: of the model's node that it is, or is inside of; null in a local function."""
    return {
        "index": place.top, "label": place.label, "name": str(place.node.name), "op": place.op,
        "domain": str(place.node.domain), "inside": place.scope.title,
    }  # fmt: skip
