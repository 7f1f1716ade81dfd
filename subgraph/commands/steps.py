"""A step of a bisection -> a line that begins with what is learned, `2 of 27 nodes left`; for
`bisect` and `manual`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from subgraph.commands import OUTCOMES
from subgraph.log import log
from subgraph.text import clean, count

if TYPE_CHECKING:
    from subgraph.bisection.items import Remaining
    from subgraph.search import Step

NAME_WIDTH = 24  # characters of a node's name in a line


def log_step(
    step: Step, remaining: Remaining, labels: Sequence[str], nodes: Sequence[int] = ()
) -> None:
    """Log the step that was added to `remaining` last. `labels`, `nodes`: of its nodes; none for
    the whole model."""
    live = {
        "done": remaining.size - remaining.left,
        "of": remaining.size,
        "left": remaining.learned(step),
    }
    live |= {"nodes": list(nodes), "outcome": step.outcome.value, "query": step.query.kind.value}
    log.info(
        step_line(step, remaining, labels), extra={"live": live | {"estimate": remaining.estimate}}
    )


def step_line(step: Step, remaining: Remaining, labels: Sequence[str]) -> str:
    """`  4  13 of 27 nodes left  conv1 … relu3   13 nodes  5.7e-01  FAIL explains 100 %`; with -v,
    the pass's name."""
    learned = remaining.learned(step).ljust(len(f"{remaining.size} of {remaining.size} nodes left"))
    nodes = count(len(labels) or remaining.size, "node")
    purpose = f" [{step.purpose.value}]" if log.isEnabledFor(logging.DEBUG) else ""
    ends = _name_span(labels).ljust(2 * NAME_WIDTH)
    return (
        f"{step.number:>3}  {learned}  {ends}  {nodes:>11}  {_format_error(step):>7} "
        f" {_describe_outcome(step)}{purpose}"
    )


def _describe_outcome(step: Step) -> str:
    """`agree`, `FAIL explains 93 %`, `FAIL (crash)`; `(stored)` where nothing was run."""
    from subgraph.reports import percent

    answer = step.answer
    signature = (
        f"({answer.signature})" if answer.signature and answer.signature != "mismatch" else ""
    )
    share = answer.share.of_target
    explained = f"explains {percent(share)}" if share is not None and step.outcome == "fail" else ""
    stored = "(stored)" if answer.verdict and answer.verdict.stored else ""
    return " ".join(
        filter(
            None,
            (OUTCOMES.get(step.outcome.value, step.outcome.value), signature, explained, stored),
        )
    )


def _format_error(step: Step) -> str:
    """The relative error; NaN where values are."""
    if step.answer.signature == "nan":
        return "NaN"
    worst = step.answer.verdict.worst if step.answer.verdict else None
    return f"{worst.errors['max_rel']:.1e}" if worst and "max_rel" in worst.errors else ""


def _name_span(labels: Sequence[str]) -> str:
    """`/pad/Pad … /pool/MaxPool`; empty for the whole model."""
    return " … ".join(
        dict.fromkeys(_shorten_name(clean(name)) for name in (*labels[:1], *labels[-1:]))
    )


def _shorten_name(name: str) -> str:
    """The last characters of a long name, which tell more than the first:
    `…ers.3/attention/MatMul`."""
    return name if len(name) <= NAME_WIDTH else f"…{name[1 - NAME_WIDTH :]}"
