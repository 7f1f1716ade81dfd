"""NonMaxSuppression, NonZero, TopK and others: values decide the size or order of the output."""

from __future__ import annotations

from subgraph.graph.properties import VALUE_SIZED
from subgraph.graph.walks import find_descendants
from subgraph.inspection.lint import Issues, LintContext, note, warning
from subgraph.text import count

HOST = (
    "end the model in front of it and do this part on the host, or pad the result to a fixed size"
)
TIES = (
    "compare scores rather than indices, or break ties before: add a small value that grows with"
    " the index"
)


def check(context: LintContext) -> Issues:
    """Yield an issue for each node whose output size depends on values, and for ties of TopK."""
    sized = [n for n in context.nodes(*VALUE_SIZED) if context.depends_on_values(n, n.proto.input)]
    ranked = context.nodes("TopK")
    open_k = [n for n in ranked if n.input(1) and n.constant(1) is None]
    sized += [n for n in open_k if context.depends_on_values(n, [n.input(1)])]
    affected = len(find_descendants(context.graph, {n.top for n in sized if n.top is not None}))
    where = ""
    if affected > len(sized):
        where = f", as do {count(affected, 'node')} from the first such on"
    for node in sized:
        reason = (
            f"the size of its output depends on values{where}: targets with static shapes cannot"
            " build that"
        )
        yield warning(node, reason, HOST)
    reported = set(sized)
    for node in ranked:
        if node not in reported and context.depends_on_values(node, [node.input(0)]):
            reason = (
                "among equal values ONNX takes the lower index first, targets any: indices may"
                " differ"
            )
            yield note(node, reason, TIES)
