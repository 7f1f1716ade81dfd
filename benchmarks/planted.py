"""A trained model -> how every criterion judges faults in one slice of an output.

They are put into what a healthy candidate gives, at the outputs of the whole model and of a few
windows.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.slices import faults, worst_slice
from benchmarks.windows import (
    OURS,
    Task,
    TaskResult,
    candidates,
    judge_window,
    read,
    rng_of,
    windows,
)
from subgraph.graph.region import Region
from subgraph.runtime.run_result import RunResult
from subgraph.storage.tensors import save
from subgraph.trials.trial import Trials

SIZES = (4, 16)  # nodes of a window
OUTPUTS = 2  # of the model that get faults
COMPARED = (OURS, "numpy:rtol=1e-3,atol=1e-5", "cosine>0.999")


def measure_faults(trials: Trials, task: Task, task_result: TaskResult, folder: Path) -> None:
    """Faults at the outputs of the whole model and of a few windows, put into what healthy
    candidates give."""
    selected = [*windows(trials.model.graph, SIZES, task.max_windows), trials.model.whole()]
    trials.model.values.need([n for r in selected for n in (*r.inputs, *r.shapes, *r.outputs)])
    with candidates(trials, task, folder) as all_trials:
        for k, region in enumerate(selected):
            healthy = all_trials[-1].run(region)
            if healthy.failure:
                task_result.absent[healthy.failure.why] += 1
                continue
            _put_in(all_trials[-1], task, region, healthy, task_result, k == len(selected) - 1)


def _put_in(
    trials: Trials,
    task: Task,
    region: Region,
    healthy: RunResult,
    task_result: TaskResult,
    whole: bool,
) -> None:
    """All faults at one output of a region."""
    floats = [
        n
        for n in region.outputs
        if n in healthy.tensors[0] and healthy.tensors[0][n].dtype == "float32"
    ]
    rng = rng_of(task.network, region.nodes, task.candidate)
    for name in floats[:OUTPUTS] if whole else floats[:1]:
        values = read(healthy.tensors[0][name])
        reference = read(trials.model.values.records[0][name])
        if (
            values.shape != reference.shape
            or not np.isfinite(values).all()
            or not np.isfinite(reference).all()
        ):
            continue
        for kind, size, altered in faults(values, rng):
            arrives, at = worst_slice(reference, altered)
            if np.array_equal(values, altered):
                task_result.masked += 1
                continue
            record = save(
                name, altered, "tensor(float)", into := trials.model.new_folder(), "o"
            ).rebase(str(into))
            wrong = replace(healthy, tensors=({**healthy.tensors[0], name: record},))
            error = {
                "at": f"{name}, {at}",
                "error_size": size,
                "error_shape": kind,
                "place": "output" if whole else "",
            }
            row = judge_window(
                trials, task, region, wrong, whole, COMPARED, arrives=arrives, **error
            )
            task_result.rows.append(row)
