"""Operator tests that a candidate gets wrong -> entries of `known`: what sets them apart from those that are right.

An entry's condition is the smallest set of facts of a node that wrong tests share and no right test of that operator
has, without attributes that do not matter, and with those that do, as runs tell (`conditions`); tests that share one
are one entry. Nothing is guessed of what was not run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

from subgraph.errors import OutputError
from subgraph.graph.graph import load
from subgraph.inspection.lint import LintContext
from subgraph.inspection.lint.known import facts
from subgraph.known import FACT_KINDS, Entry, release, render
from subgraph.results.sweep import SweepOutcome
from subgraph.storage import folders
from subgraph.sweep.conditions import Conditions, Facts, open_conditions
from subgraph.sweep.operator_tests import EXPANDED, NODE
from subgraph.sweep.sweep import BAD, Sweep, SweepResult, SweepRow
from subgraph.text import count
from subgraph.verdict import Signature, Verdict

MOST = 3  # facts of a condition
PREFERRED = ("set ", "input ", "outputs", "output ", "type ")  # kinds of facts, behind words and flags
WORDS = {Signature.SHAPE: "gives another shape", Signature.NAN: "gives NaN or infinities",
         Signature.MISSING: "gives no such output", Signature.CRASH: "crashes",
         Signature.TIMEOUT: "does not end"}  # fmt: skip
OTHER = "gives other values"
FED = "where its other inputs are no constants"
NAME_CHARS = 56


def entries(sweep: Sweep, rows: Sequence[SweepRow], column: int, date: str) -> tuple[list[Entry], list[str]]:
    """The entries of one candidate, and the wrong tests that nothing sets apart from right ones.

    Left out are expanded tests, of another operator, and those that are wrong in plain onnxruntime as well: whether the
    test or the runtimes are right is not known there.
    """
    runtime = sweep.candidates[column]
    own = [row for row in rows if row.test.kind == NODE and not EXPANDED.fullmatch(row.test.name)]
    tried = [(row, row.results[column]) for row in own]
    bad = [(row, result) for row, result in tried if result.outcome in BAD and row.reference.outcome != "differs"]
    found, unlike = list[Entry](), list[str]()
    with open_conditions(sweep, column) as conditions:
        known = {row.test.name: _tested(sweep, row, conditions) for row, _ in bad}
    for operator in dict.fromkeys(row.test.op for row, _ in bad):
        wrong = {row.test.name: result for row, result in bad if row.test.op == operator}
        right = [row for row, r in tried if row.test.op == operator and r.outcome is SweepOutcome.RIGHT]
        groups, left = conditions_of({name: known[name] for name in wrong}, [_tested(sweep, row).own for row in right])
        unlike += left
        for when, tests in groups:
            results = {t: wrong[t] for t in tests}
            fed = _fed([known[t] for t in tests]) if any(_is_of_building(r) for r in results.values()) else {}
            found.append(_entry(operator, when, fed, results, release(runtime.about.version), date))
    return found, unlike


@dataclass(frozen=True)
class TriedNode:
    """The facts of a node, and which of them matter to what is wrong, where runs told it."""

    own: Facts
    told: Mapping[str, bool] = field(default_factory=dict)

    @property
    def needed(self) -> Facts:
        """Attributes that matter: with their value, or that they are set."""
        keys = {key for key, matters in self.told.items() if matters and not key.startswith("input ")}
        return {key: self.own[key] for key in sorted(keys) if key.removeprefix("set ") not in keys - {key}}

    @property
    def idle(self) -> tuple[str, ...]:
        """Attributes and inputs that do not matter at all."""
        said = [key for key, matters in sorted(self.told.items()) if not matters and not self.told.get(f"set {key}")]
        return tuple(key for key in said if " " not in key or key.startswith("input "))

    @property
    def left(self) -> Facts:
        """The facts without those that do not matter, nor numbers of which no run told where being set does."""
        bound = {key for key in self.own if self.told.get(f"set {key}") and not self.own[key][0].isalpha()}
        return {key: value for key, value in self.own.items() if self.told.get(key, key not in bound)}


def _tested(sweep: Sweep, row: SweepRow, conditions: Conditions | None = None) -> TriedNode:
    """Of the first node of a test's model."""
    with sweep.example(row.test) as example:
        own = facts(LintContext(load(example.model)).scopes[0].nodes[0])
        return TriedNode(own, conditions.told(example, 0, own) if conditions else {})


def conditions_of(
    wrong: Mapping[str, TriedNode], right: Sequence[Facts]
) -> tuple[list[tuple[Facts, list[str]]], list[str]]:
    """As `separated`; with attributes that matter, and without those that do not where others set the tests apart.

    >>> conditions_of({"a": TriedNode({"x": "1", "y": "2"}, {"x": False, "y": True})}, [{"x": "0", "y": "0"}])
    ([({'y': '2'}, ['a'])], [])
    """
    groups, left = separated({name: tested.left for name, tested in wrong.items()}, right)
    more, left = separated({name: wrong[name].own for name in left}, right)
    found = list[tuple[Facts, list[str]]]()
    for when, tests in (*groups, *more):
        shared = set.intersection(*({*wrong[name].needed.items()} for name in tests))
        whole = {**when, **dict(sorted(shared))}
        found.append(({k: v for k, v in whole.items() if k.removeprefix("set ") not in whole.keys() - {k}}, tests))
    return found, left


def separated(wrong: Mapping[str, Facts], right: Sequence[Facts]) -> tuple[list[tuple[Facts, list[str]]], list[str]]:
    """Conditions that no right one has, each with those wrong ones that have it; and the wrong ones without any.

    >>> separated({"a": {"x": "1", "y": "2"}, "b": {"x": "1", "y": "3"}}, [{"x": "0", "y": "2"}])
    ([({'x': '1'}, ['a', 'b'])], [])
    """
    groups, left = list[tuple[Facts, list[str]]](), dict(wrong)
    while left:
        best = next(filter(None, (_widest(size, left, right) for size in range(MOST + 1))), None)
        if best is None:
            break
        groups.append(best)
        left = {name: own for name, own in left.items() if name not in best[1]}
    return groups, list(left)


def _widest(size: int, wrong: Mapping[str, Facts], right: Sequence[Facts]) -> tuple[Facts, list[str]] | None:
    """Of the conditions of so many facts that no right one has, that which most wrong ones have."""
    asked = {items for own in wrong.values() for items in combinations(sorted(own.items()), size)}
    clear = [items for items in asked if not any(_has(own, items) for own in right)]
    if not clear:
        return None
    tests = {items: [name for name, own in wrong.items() if _has(own, items)] for items in clear}
    best = min(clear, key=lambda items: (-len(tests[items]), [_rank(*item) for item in items], items))
    return dict(best), tests[best]


def _has(own: Facts, items: Sequence[tuple[str, str]]) -> bool:
    return all(own.get(key) == value for key, value in items)


def _rank(key: str, value: str) -> int:
    """The most telling first: a word or a flag; that a number is set; whatever number it is."""
    if key.startswith(FACT_KINDS):
        return 1 + next(k for k, kind in enumerate(PREFERRED) if key.startswith(kind))
    return 0 if value in ("0", "1") or value[0].isalpha() else len(PREFERRED) + 1


def _is_of_building(result: SweepResult) -> bool:
    """May it come of what is not known when the model is built? Tests feed every input, weights as well."""
    return result.outcome is not SweepOutcome.WRONG or result.verdict.signature is Signature.SHAPE


def _fed(known: Sequence[TriedNode]) -> Facts:
    """The inputs behind the first that all these tests feed, but those that may as well be constants."""
    keys = (key for key in known[0].own if key.startswith("input ") and key != "input 0")
    return {key: "variable" for key in keys if all(tested.left.get(key) == "variable" for tested in known)}


def _entry(
    operator: str, when: Facts, fed: Facts, results: Mapping[str, SweepResult], version: str, date: str
) -> Entry:
    """`fed`: what must hold beside the condition."""
    worst = max(results.values(), key=lambda r: (r.outcome is SweepOutcome.WRONG, _error(r)))
    slug = "-".join([operator, *(f"{key}-{value}" for key, value in when.items())]).lower()
    return Entry(
        operator=operator,
        says=described(when, worst.verdict, FED if fed.keys() - when.keys() else ""),
        tests=sorted(results),
        wrong=[version],
        date=date,
        off=how_far(worst),
        when={**when, **fed},
        name=folders.safe_name("".join(c if c.isalnum() else "-" for c in slug))[:NAME_CHARS].strip("-"),
    )


def described(when: Facts, verdict: Verdict, more: str = "") -> str:
    """What is wrong, a sentence that goes on from the operator."""
    ends = WORDS.get(verdict.signature, OTHER) if verdict.signature else OTHER
    behind = [f"behind {op}" for key, op in when.items() if key.startswith("maker ")]
    return " ".join(filter(None, [_with(when), " and ".join(behind), ends, more]))


def how_far(result: SweepResult) -> str:
    """By how much it is wrong, or how it ended."""
    return result.verdict.why.split("; limit" if result.outcome is SweepOutcome.WRONG else ": ")[0]


def _error(result: SweepResult) -> float:
    return result.verdict.worst.errors.get("max_rel", 0.0) if result.verdict.worst else 0.0


def _with(when: Facts) -> str:
    """`with ceil_mode=1 and uint8 in input 0`."""
    parts = list(_parts(when))
    return f"with {' and '.join(parts)}" if parts else ""


def _parts(when: Facts) -> Iterator[str]:
    for key, value in when.items():
        kind, _, k = key.partition(" ")
        if not key.startswith(FACT_KINDS):
            yield f"{key}={value}"
        elif kind == "set":
            yield k
        elif kind == "type":
            yield f"{value} in input {k}"
        elif kind == "input":
            yield f"no input {k}" if value == "none" else f"input {k}"
        elif kind == "output":
            yield f"no output {k}" if value == "none" else f"output {k} {value}"
        elif kind == "outputs":
            yield count(int(value), "output")


def write(found: Sequence[Entry], runtime: str, folder: Path) -> list[Path]:
    """Write entries into `folder/RUNTIME/`, none over another; their files.

    Raises:
        OutputError: they cannot be written.
    """
    files: list[Path] = []
    place = folder / runtime
    try:
        place.mkdir(parents=True, exist_ok=True)
        for entry in found:
            stems = (entry.name, *(f"{entry.name}-{k}" for k in range(2, len(found) + 2)))
            file = next(p for stem in stems if (p := place / f"{stem}.toml") not in files)
            file.write_text(render(entry), encoding="utf-8")
            files.append(file)
    except OSError as e:
        raise OutputError(f"cannot write {place}: {e.strerror or e}", "name another folder") from e
    return files
