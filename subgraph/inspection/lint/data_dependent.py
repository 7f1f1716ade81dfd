"""NonMaxSuppression, NonZero, TopK and others whose output depends on values in its size or order."""

from __future__ import annotations

from collections.abc import Iterator

from subgraph.graph.graph import VALUE
from subgraph.inspection.lint import LintContext, LintIssue, note, warning
from subgraph.inspection.lint._places import LintNode
from subgraph.text import count

SIZED = ("NonMaxSuppression", "NonZero", "Unique", "Compress", "StringSplit")
HOST = "end the model in front of it and do this part on the host, or pad the result to a fixed size"
TIES = "compare scores rather than indices, or break ties before: add a small value that grows with the index"


def check(asked: LintContext) -> Iterator[LintIssue]:
    """Each node whose output's size only a run tells, with how much of the model works on such sizes; TopK's ties."""
    sized = [p for p in asked.nodes(*SIZED) if _on_data(asked, p, p.node.input)]
    ranked = asked.nodes("TopK")
    sized += [p for p in ranked if p.input(1) and p.constant(1) is None and _on_data(asked, p, [p.input(1)])]
    region = len(asked.graph.descendants({p.top for p in sized if p.top is not None})) if sized else 0
    where = f", as do {count(region, 'node')} from the first such on" if region > len(sized) else ""
    for place in sized:
        reason = f"the size of what it makes depends on values{where}: targets with static shapes cannot build that"
        yield warning(place, reason, HOST)
    told = set(map(id, sized))
    for place in ranked:
        if id(place) not in told and _on_data(asked, place, [place.input(0)]):
            reason = "among equal values ONNX takes the lower index first, targets any: indices may differ"
            yield note(place, reason, TIES)


def _on_data(asked: LintContext, place: LintNode, names: list[str]) -> bool:
    """Do values of the model's inputs get here, not only their shapes? Inside of bodies and functions: yes."""
    if place.scope is not asked.scopes[0]:
        return True
    given = [name for name in names if name]
    return VALUE in asked.graph.kinds(given).values()
