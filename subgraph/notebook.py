"""Results -> HTML for notebooks: drawings of graphs and cuts, reports as in a terminal.

The HTML has no scripts and loads nothing. It takes the notebook's own colors, so that it is
readable in dark ones too; words repeat the colors. `subgraph` names `render_html` and `draw_graph`
to IPython for the types that are registered here.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable
from functools import singledispatch
from html import escape
from typing import Any

from subgraph.drawing.layout import Drawer
from subgraph.drawing.svg import Marks, draw_svg
from subgraph.graph.cut import Cut
from subgraph.graph.graph import Graph
from subgraph.graph.region import Region
from subgraph.inspection.drawn_network import make_network
from subgraph.iterables import flatten
from subgraph.questions.bisection.bisection import Bisection
from subgraph.reports import text as text_report
from subgraph.reports.html import draw_plan_curve
from subgraph.results.plan import PlanDocument
from subgraph.search import Findings, Step
from subgraph.text import clean, clean_lines, count, list_some
from subgraph.trials.compare_tensors import Comparison
from subgraph.verdict import Judgement, Status, Verdict

DRAWING_WIDTH = 900.0  # pixels of a drawing
TABLE_HEIGHT = 600  # pixels of a table, which scrolls
MAX_BOXES = 20  # about this many boxes are drawn, so that the full drawing is visible
CHART = (  # a report's, in colors that light and dark notebooks show
    ".chart{max-width:60rem} .chart text{fill:currentColor;font-size:11px} .chart"
    " .grid{stroke:#8886;fill:none} .chart .line{stroke:#3b78c2;fill:none} .chart"
    " .dots{stroke:#3b78c2;fill:none;stroke-width:4;stroke-linecap:round} .chart"
    " .dots.bad{stroke:#c0392b;stroke-width:6} .chart .mark{fill:#c0392b;opacity:.16} .chart"
    " .bad{fill:#c0392b}"
)
COLORS = {"agree": "#1b7f3b", "fail": "#c0392b", "unresolved": "#b07800"}


@singledispatch
def render_html(item: Any) -> str:
    """Return a result as HTML.

    Raises:
        TypeError: The object is not a result.
    """
    raise TypeError(f"{type(item).__name__} has no HTML")


@singledispatch
def draw_graph(item: Any) -> str:
    """Draw a graph or a cut as SVG, with closed groups.

    Raises:
        TypeError: The object is not a graph or a cut.
    """
    raise TypeError(f"{type(item).__name__} has no drawing")


@draw_graph.register
def _(graph: Graph) -> str:
    drawer = Drawer(make_network(graph))
    return draw_svg(
        drawer.layout(drawer.tree.choose_open(MAX_BOXES), DRAWING_WIDTH), title=graph.path.name
    )


@draw_graph.register
def _(cut: Cut) -> str:
    region = cut.region
    return _draw_around(
        cut.graph,
        region.all_nodes,
        region.boundary,
    )


def _draw_around(graph: Graph, nodes: Iterable[int], boundary: Iterable[str]) -> str:
    """Draw these nodes and their neighbors, with the nodes and their boundary marked."""
    inside = frozenset(nodes)
    whole = make_network(graph)
    shown = sorted(inside.union(*(whole.find_near(i, 1) for i in inside)))
    at = {i: k for k, i in enumerate(shown)}
    marks = Marks(region=frozenset(at[i] for i in inside), boundary=frozenset(boundary))
    drawer = Drawer(whole.select_part(shown))
    keys = drawer.tree.choose_open(MAX_BOXES) | drawer.tree.find_partial(marks.region)
    return draw_svg(drawer.layout(keys, DRAWING_WIDTH), marks, f"{graph.path.name}, a part")


@render_html.register
def _(graph: Graph) -> str:
    ends = f"{_format_words(graph.inputs)} → {_format_words(graph.outputs)}"
    return (
        f"<p><b>{_escape(graph.path.name)}</b>: {count(graph.nodes, 'node')},"
        f" {ends}</p>{draw_graph(graph)}"
    )


@render_html.register
def _(cut: Cut) -> str:
    return f"{render_html(cut.region)}{draw_graph(cut)}"


@render_html.register
def _(region: Region) -> str:
    if region.start or region.end:
        ends = f"{_format_words(region.start)} → {_format_words(region.end)}: "
    else:
        ends = ""
    inputs = region.entering
    nodes = count(region.nodes, "node")
    tensors = f"in {_format_words(inputs)}; out {_format_words(region.outputs)}"
    return f"<p>{ends}{nodes}, {tensors}</p>"


@render_html.register
def _(verdict: Verdict) -> str:
    return _render_status(verdict.status, verdict.why) + "".join(map(render_html, verdict.outputs))


@render_html.register
def _(judgement: Judgement) -> str:
    where = f"{judgement.name} {judgement.sample}".rstrip()
    return _render_status(judgement.status, f"{where}: {judgement.why}")


@render_html.register
def _(comparison: Comparison) -> str:
    return _wrap_scrolling(_format_plain(text_report.render_compared(comparison.result)))


@render_html.register
def _(plan: PlanDocument) -> str:
    """Show the answer and, with a score, its curve over the number of places in float."""
    kept = "\n".join(f"{p.name}  {', '.join(p.ops)}  {p.gear}" for p in plan.result.kept or ())
    curve = draw_plan_curve(plan)
    drawn = f"<style>{CHART}</style>{curve}" if curve else ""
    return f"<p>{_escape(plan.says)}</p>{drawn}{_wrap_scrolling(_format_plain(kept))}"


@render_html.register
def _(step: Step) -> str:
    what = count(step.items, "item") if step.items else "whole model"
    outcome = _format_status(step.outcome.value)
    return (
        f"<p>{step.number}. {_escape(step.purpose.value)}: {what}, {outcome}; "
        f"about {count(step.estimated_runs, 'more run')}</p>"
    )


@render_html.register
def _(findings: Findings) -> str:
    """Show the outcome, and a line per finding with its nodes, or its items if they have no
    names."""
    lines = [f"{findings.outcome.value} {findings.stopped}"]
    for finding in findings.findings:
        items = flatten(finding.regions)
        names = (findings.names[k] if findings.names else [f"#{k}"] for k in items)
        lines.append(f"{finding.kind.value}: {', '.join(flatten(names))}")
    return _format_plain("\n".join(lines))


@render_html.register
def _(bisection: Bisection) -> str:
    """Show the progress of a search, or after its end the report and the first finding drawn."""
    if not bisection.finished:
        return _draw_progress(bisection)
    findings = bisection.result.findings
    first = _draw_around(bisection.oracle.graph, findings[0].indices, ()) if findings else ""
    report = _format_plain(text_report.render(bisection.result))
    return report + first


def watch(bisection: Bisection) -> Bisection:
    """Run a bisection to its end. In a notebook, a line of progress is kept up to date, and the
    result replaces it.

    >>> from subgraph import bisect, load, watch
    >>> watch(bisect(load("resnet50.onnx"))).result.agree
    True

    Raises: as iterating a `Bisection` does.
    """
    ipython = sys.modules.get("IPython")
    if ipython is None or ipython.get_ipython() is None:
        for _ in bisection:
            pass
        return bisection
    from IPython.display import HTML, display  # only if it runs already

    line = display(HTML(_draw_progress(bisection)), display_id=True)
    with contextlib.suppress(KeyboardInterrupt):
        for _ in bisection:
            line.update(HTML(_draw_progress(bisection)))
    line.update(HTML(_draw_progress(bisection)))
    return bisection


def _draw_progress(bisection: Bisection) -> str:
    """Return the progress as in a terminal: remaining nodes, a bar, an estimate, the last step."""
    if not bisection.steps:
        return "<p>not begun: iterate it, or <code>subgraph.watch(it)</code></p>"
    if bisection.finished:
        return f"<p>the search has ended, after {count(bisection.steps, 'step')}</p>"
    step = bisection.steps[-1]
    what = _format_words(bisection.nodes(step)) or "whole model"
    remaining = bisection.remaining
    last = f"run {step.number}: {what} {_format_status(step.outcome.value)}"
    bar = f'<progress max="{remaining.size}" value="{remaining.size - remaining.left}"></progress>'
    left = f"{remaining.left} of {count(remaining.size, 'node')} left"
    return f"<p>{left} {bar} {' · '.join(filter(None, (_escape(remaining.estimate), last)))}</p>"


# ------------------------------------------------------------ parts


def _escape(name: object) -> str:
    return escape(clean(str(name)))


def _format_plain(text: str) -> str:
    return (
        f"<pre style='white-space:pre-wrap;font-family:monospace'>{escape(clean_lines(text))}</pre>"
    )


def _format_words(names: Iterable[str], most: int = 4) -> str:
    return list_some([f"<code>{_escape(name)}</code>" for name in names], most)


def _format_status(word: str) -> str:
    return f'<b style="color:{COLORS.get(word, "inherit")}">{_escape(word)}</b>'


def _render_status(status: Status, why: str) -> str:
    return f"<p>{_format_status(status.value)}: {_escape(why)}</p>"


def _wrap_scrolling(inner: str) -> str:
    return f'<div style="max-height:{TABLE_HEIGHT}px;overflow:auto">{inner}</div>'
