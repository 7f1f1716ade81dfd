"""Lint: known troubles of a model, reported before anything runs. One file per rule.

To add a rule, put a file like this into this folder, or pass its path to `--only`:

    \"\"\"Relu, which the target lacks.\"\"\"

    from subgraph.inspection.lint import LintContext, LintIssue, warning

    def check(context: LintContext) -> Issues:
        for node in context.nodes("Relu"):
            yield warning(node, "the target has no Relu", "export it as Clip with a minimum of 0")

The file name, with `-` for `_`, is the name that the user types; the first line of the docstring is
the help text. `LintContext` has the model, its nodes at any depth, its constants and measured
values; `LintNode` has attributes, constants, types and shapes of a node. `warning` is for failures
on real targets, `note` for possible failures or failures on some targets, `unchecked` for parts
that the rule could not read. A clean model yields nothing. A rule without enough facts, because a
shape is None for example, is silent: a false alarm costs more than a gap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

from subgraph import plugins
from subgraph.documents import absent
from subgraph.errors import ModelError, UsageError
from subgraph.graph.graph import Graph
from subgraph.graph.kinds import VALUE, find_kinds
from subgraph.graph.shape_inference import InferredTypes, infer_types
from subgraph.inspection.lint._places import LintNode, Numbers, Scope, iter_numbers, list_scopes
from subgraph.inspection.overflow import Overflow
from subgraph.inspection.ranges import MeasuredTensors, measure
from subgraph.inspection.validate import Problem, find_problems
from subgraph.iterables import flatten, group_values
from subgraph.origins.source import Source, find_source
from subgraph.precision import Precision
from subgraph.runtime.inputs import Feeding, ImageOptions
from subgraph.types import Shapes, frozen

SCHEMA = "subcut.lint/1"
WARNING = "warning"
NOTE = "note"
UNCHECKED = "unchecked"


@frozen
class LintIssue:
    """One trouble, or one thing that was not checked.

    Attributes:
        severity: WARNING, NOTE or UNCHECKED.
        node: where it is; None if it concerns no single node.
        reason: One sentence.
        fix: One sentence.
        rule: The name of the rule; `run_rules` writes it.
        tensor: the tensor that it concerns, if any.
        exponent: divided by 2 to this power, the tensor is in the range of the precision; None
            without such a power.
    """

    severity: str
    node: LintNode | None
    reason: str
    fix: str = ""
    rule: str = ""
    tensor: str | None = None
    exponent: int | None = None


Issues: TypeAlias = Iterator[LintIssue]


def warning(node: LintNode | None, reason: str, fix: str, tensor: str | None = None) -> LintIssue:
    """Return the issue of a node that fails on real targets."""
    return LintIssue(WARNING, node, reason, fix, tensor=tensor)


def note(node: LintNode | None, reason: str, fix: str, tensor: str | None = None) -> LintIssue:
    """Return the issue of a node that fails, or can fail, on some targets."""
    return LintIssue(NOTE, node, reason, fix, tensor=tensor)


def make_unchecked(reason: str) -> LintIssue:
    """Return the issue of a missing check, which only --verbose and the document show."""
    return LintIssue(UNCHECKED, None, reason)


@dataclass(eq=False)
class LintContext:
    """A model and its properties for rules, which are computed on first access, and kept.

    Attributes:
        graph: The model.
        target: The newest opset that the target supports; None if it is not known.
        feeding: The user's inputs; None without any, and then nothing is measured.
        second_sizes: Another shape to try of each model input (rule `baked-shape`).
        image_options: The conversion of the user's images to tensors.
        seed: The seed of random inputs.
        runtime: The runtime of the user's candidate; "" for none.
        release: The release of that runtime; "" if it is not known.
        known: The user's folders with entries.
        precision: The float type with whose range weights and tensors are compared.
        for_int8: Whether they are compared with the steps of int8 instead.
    """

    graph: Graph
    target: int | None = None
    feeding: Feeding | None = None
    second_sizes: Shapes = field(default_factory=dict)
    image_options: ImageOptions = field(default_factory=ImageOptions)
    seed: int = 0
    runtime: str = ""
    release: str = ""
    known: Sequence[Path] = ()
    precision: Precision = Precision.FP16
    for_int8: bool = False

    @cached_property
    def types(self) -> InferredTypes:
        """Declared and inferred types."""
        return infer_types(self.graph)

    @property
    def problems(self) -> list[Problem]:
        """The problems of the model, and notes, as `subcut inspect` lists them."""
        return find_problems(self.graph, self.types)

    @cached_property
    def scopes(self) -> list[Scope]:
        """The model's own graph, then bodies and local functions."""
        return list_scopes(self.graph, lambda: self.types)

    @property
    def all_nodes(self) -> list[LintNode]:
        """Every node, at any depth."""
        return list(flatten(scope.nodes for scope in self.scopes))

    @cached_property
    def _by_op(self) -> dict[str, list[LintNode]]:
        return group_values((node.op, node) for node in self.all_nodes)

    @property
    def operators(self) -> Collection[str]:
        """The operators of all nodes."""
        return self._by_op.keys()

    def nodes(self, *ops: str) -> list[LintNode]:
        """Return the nodes of these standard operators, at any depth."""
        named = flatten(self._by_op.get(op, ()) for op in ops)
        return [node for node in named if node.is_op(node.op)]

    def get_node(self, index: int | None) -> LintNode | None:
        """Return the top-level node of this index; None for None."""
        if index is None:
            return None
        return self.scopes[0].nodes[index]

    def problem_issue(self, problem: Problem, default_fix: str = "") -> LintIssue:
        """Return a problem of the model as warning or note."""
        issue = warning if problem.fatal else note
        return issue(
            self.get_node(problem.node), problem.what, problem.hint or default_fix, problem.tensor
        )

    def depends_on_values(self, node: LintNode, names: Iterable[str]) -> bool:
        """Return whether an input depends on values of model inputs (in bodies: always true)."""
        tensors = [name for name in names if name]
        return node.scope is not self.scopes[0] or VALUE in find_kinds(self.graph, tensors).values()

    @cached_property
    def numbers(self) -> list[Numbers]:
        """Statistics of the constants. Reads every weight once."""
        return list(flatten(map(iter_numbers, self.scopes)))

    @cached_property
    def measured(self) -> MeasuredTensors:
        """The tensors in `made`, as the reference computes them; empty without `feeding`.

        Raises:
            InputError, UnknownName: The inputs do not fit the model.
        """
        if self.feeding is None:
            return MeasuredTensors()
        return measure(self.graph, self.made, self.feeding, self.types)

    @cached_property
    def overflow(self) -> Overflow:
        """The measured tensors that leave the precision."""
        return Overflow(self.graph, self.measured, self.precision)

    @property
    def made(self) -> list[str]:
        """The outputs of top-level nodes, in topological order, without sequences and maps."""
        graph = self.graph
        types = self.types
        kinds = {
            name: t.WhichOneof("value")
            for name, t in (*types.declared.items(), *types.inferred.items())
        }
        return [
            name
            for name in graph.iter_outputs(graph.order)
            if kinds.get(name) in (None, "tensor_type")
        ]


# ------------------------------------------------------------ run


def choose_rules(only: Sequence[str] = (), ignore: Sequence[str] = ()) -> list[str]:
    """Return the names of the rules to run: all, or `only`, without `ignore`.

    The path of a Python file is a name as well.

    Raises:
        UnknownName: There is no such rule; the error has the nearest names.
        UsageError: A file is not a rule.
    """
    for name in (*only, *ignore):
        if not hasattr(plugins.load("lint", name), "check"):
            raise UsageError(
                f"{name} is not a lint rule",
                "it needs a function check(context)",
                code="plugin.no-function",
            )
    skipped = {_make_canonical(name) for name in ignore}
    return [
        name
        for name in dict.fromkeys(map(_make_canonical, only or plugins.list_names("lint")))
        if name not in skipped
    ]


def _make_canonical(name: str) -> str:
    if name.endswith(".py"):
        return name
    return name.replace("_", "-")


def run_rules(context: LintContext, rules: Iterable[str]) -> Issues:
    """Yield the issues that each rule reports, in the order of the rules.

    Raises:
        InputError, UnknownName: the inputs do not fit the model.
    """
    for name in rules:
        try:
            for issue in plugins.load("lint", name).check(context):
                yield replace(issue, rule=name)
        except ModelError as e:  # a cycle, for example, which rule `invalid` reports
            yield replace(make_unchecked(e.what), rule=name)


# ------------------------------------------------------------ document


@frozen
class FindingNode:
    """The node of a finding.

    Attributes:
        index: `LintNode.top`.
        label: The label of the node.
        name: The name of the node.
        op: The operator.
        domain: The domain of the operator.
        inside: The title of its scope, empty for a top-level node.
        source: The user's code of the top-level node, if the model has it.
    """

    index: int | None
    label: str
    name: str
    op: str
    domain: str
    inside: str
    source: Source | None = absent()


@frozen
class LintFinding:
    """A warning or note.

    Attributes:
        exponent: The power of two: the tensor divided by it is in the range of the precision.
    """

    rule: str
    severity: str
    node: FindingNode | None
    tensor: str | None
    reason: str
    fix: str
    exponent: int | None = None


@frozen
class NotChecked:
    """Something that a rule could not look at."""

    rule: str
    why: str


@frozen
class LintDocument:
    """Result of `subcut lint`. `findings`: warnings first, then in the order of rules and nodes."""

    schema: str
    exit_code: int
    model: str
    target_opset: int | None
    precision: str
    rules: list[str]
    nodes: int
    warnings: int
    notes: int
    findings: list[LintFinding]
    not_checked: list[NotChecked]


def make_document(context: LintContext, rules: Sequence[str]) -> LintDocument:
    """Run the rules."""
    issues = list(run_rules(context, rules))
    checked = [i for i in issues if i.severity != UNCHECKED]
    checked.sort(key=lambda i: (i.severity != WARNING, rules.index(i.rule)))
    counts = Counter(i.severity for i in checked)
    return LintDocument(
        schema=SCHEMA,
        exit_code=1 if counts[WARNING] else 0,
        model=str(context.graph.path),
        target_opset=context.target,
        precision=context.precision.value,
        rules=list(rules),
        nodes=len(context.all_nodes),
        warnings=counts[WARNING],
        notes=counts[NOTE],
        findings=[
            LintFinding(
                i.rule,
                i.severity,
                _make_finding_node(context.graph, i.node),
                i.tensor,
                i.reason,
                i.fix,
                i.exponent,
            )
            for i in checked
        ],
        not_checked=[NotChecked(i.rule, i.reason) for i in issues if i.severity == UNCHECKED],
    )


def _make_finding_node(graph: Graph, node: LintNode | None) -> FindingNode | None:
    if node is None:
        return None
    place = None if node.top is None else find_source(graph, node.top)
    name = str(node.proto.name)
    domain = str(node.proto.domain)
    return FindingNode(node.top, node.label, name, node.op, domain, node.scope.title, place)
