"""What a device recorded -> msaccucmp's table and its advisor's verdict, as MindStudio's users read them."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from subgraph.graph.graph import Graph
from subgraph.recordings.compare import RunComparison, TensorRow
from subgraph.recordings.dumps import DumpEntry
from subgraph.recordings.msaccucmp import HEAD, AccuracyRow, Advice, advise, cells
from subgraph.storage.tensors import Record
from subgraph.trials.trial import Trials

NOBODY = "*"  # msaccucmp's word for: no such op on that side


def lines(trials: Trials, found: RunComparison, names: Sequence[str]) -> list[AccuracyRow]:
    """The inputs of the model, its tensors in order, and what the device has beside."""
    graph, records = trials.graph, trials.values.records[0]
    told: list[AccuracyRow] = []
    for name, cell in found.inputs.items():
        told.append(_line(len(told), "Data", name, cell, records.get(name), graph))
    for name in names:
        op = graph.ops[graph.maker[name]]
        if seen := found.cells.get(name):
            told.append(_line(len(told), op, name, seen, records.get(name), graph))
        else:
            told.append(_unseen(len(told), op, name, records.get(name), graph))
    for m in found.matched[:1]:
        told += [_lost(len(told) + k, entry, why) for k, (entry, why) in enumerate((*m.lost, *m.idle))]
    return told


def _line(index: int, op: str, name: str, cell: TensorRow, record: Record | None, graph: Graph) -> AccuracyRow:
    entry = cell.held.entry
    mine = entry.node or entry.tensor
    return AccuracyRow(
        index, op, mine, entry.dtype, _node(graph, name), _dtype(record), f"{mine}:{entry.role}:{entry.index}",
        entry.shape, cell.overflow, cell.columns, cell.why, op == "Data", name in graph.outputs,
    )  # fmt: skip


def _unseen(index: int, op: str, name: str, record: Record | None, graph: Graph) -> AccuracyRow:
    golden, own = _node(graph, name), f"{name}:output:0"
    last = name in graph.outputs
    return AccuracyRow(index, op, NOBODY, "", golden, _dtype(record), own, reason="no dump of this op", is_output=last)


def _lost(index: int, entry: DumpEntry, why: str) -> AccuracyRow:
    mine = entry.node or entry.tensor
    place = f"{mine}:{entry.role}:{entry.index}"
    return AccuracyRow(index, "", mine, entry.dtype, NOBODY, "", place, entry.shape, reason=why)


def _node(graph: Graph, name: str) -> str:
    maker = graph.maker.get(name)
    return name if maker is None else graph.label(maker)


def _dtype(record: Record | None) -> str:
    return record.dtype if record else ""


def as_csv(told: Sequence[AccuracyRow]) -> str:
    """Lines of CSV in msaccucmp's columns; two of their names occur twice."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(HEAD)
    writer.writerows(cells(line) for line in told)
    return out.getvalue()


def advice(told: Sequence[AccuracyRow]) -> dict[str, Any]:
    """The advisor's verdict as plain data."""
    found: Advice = advise(told)
    tensor = found.line.tensor_index if found.line else None
    return {"kind": found.kind, "verdict": found.verdict, "tensor": tensor, "says": found.says}
