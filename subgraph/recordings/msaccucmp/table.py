"""A recorded run against the reference -> msaccucmp's table and its advisor's verdict, for MindStudio's users."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from subgraph.graph.graph import Graph
from subgraph.recordings.dumps import DumpEntry
from subgraph.recordings.msaccucmp import HEAD, NO_OP, AccuracyRow, cells
from subgraph.recordings.run_comparison import RunComparison, TensorRow
from subgraph.storage.tensors import Record
from subgraph.trials.trial import Trials


def accuracy_rows(trials: Trials, comparison: RunComparison, names: Sequence[str]) -> list[AccuracyRow]:
    """The inputs of the model, the tensors `names` in order, then the entries that hold no tensor of the model."""
    graph, records = trials.graph, trials.values.records[0]
    table: list[AccuracyRow] = []
    for name, row in comparison.inputs.items():
        table.append(_recorded(len(table), "Data", name, row, records.get(name), graph))
    for name in names:
        op = graph.ops[graph.maker[name]]
        if name in comparison.rows:
            table.append(_recorded(len(table), op, name, comparison.rows[name], records.get(name), graph))
        else:
            table.append(_unseen(len(table), op, name, records.get(name), graph))
    for matched in comparison.matched[:1]:
        for entry, why in (*matched.unread, *matched.unmatched, *matched.skipped):
            table.append(_unmatched(len(table), entry, why))
    return table


def _recorded(index: int, op: str, name: str, row: TensorRow, record: Record | None, graph: Graph) -> AccuracyRow:
    entry = row.match.entry
    mine = entry.node or entry.tensor
    return AccuracyRow(
        index, op, mine, entry.dtype, _node(graph, name), _dtype(record), f"{mine}:{entry.role}:{entry.index}",
        entry.shape, row.overflow, row.accuracy, row.why, op == "Data", name in graph.outputs,
    )  # fmt: skip


def _unseen(index: int, op: str, name: str, record: Record | None, graph: Graph) -> AccuracyRow:
    return AccuracyRow(
        index, op, NO_OP, "", _node(graph, name), _dtype(record), f"{name}:output:0",
        reason="no dump of this op", is_output=name in graph.outputs,
    )  # fmt: skip


def _unmatched(index: int, entry: DumpEntry, why: str) -> AccuracyRow:
    mine = entry.node or entry.tensor
    tensor_index = f"{mine}:{entry.role}:{entry.index}"
    return AccuracyRow(index, "", mine, entry.dtype, NO_OP, "", tensor_index, entry.shape, reason=why)


def _node(graph: Graph, name: str) -> str:
    maker = graph.maker.get(name)
    return name if maker is None else graph.label(maker)


def _dtype(record: Record | None) -> str:
    return record.dtype if record else ""


def as_csv(rows: Sequence[AccuracyRow]) -> str:
    """CSV in msaccucmp's columns; two of their names occur twice."""
    out = io.StringIO()
    csv.writer(out).writerows([HEAD, *map(cells, rows)])
    return out.getvalue()
