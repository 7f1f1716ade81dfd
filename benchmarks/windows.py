"""A network -> its windows, and how every criterion judges them on healthy candidates.

A window is a number of consecutive nodes in topological order. It runs once per candidate, as a
trial on captured values; all criteria judge that one result. Everything is seeded.
"""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from benchmarks.slices import worst_slice
from fixtures.converted import CONVERSIONS
from subgraph.comparison import ROUNDING_ALONE, STEPS
from subgraph.comparison.judge import parse_criterion
from subgraph.documents import json_key
from subgraph.graph import region as regions
from subgraph.graph.graph import Graph, load as load_graph
from subgraph.graph.kinds import CONSTANT, SHAPE, find_kinds
from subgraph.graph.region import Region
from subgraph.runtime.candidate import Candidate
from subgraph.runtime.inputs import Feeding
from subgraph.runtime.reference import Reference
from subgraph.runtime.run_result import RunResult
from subgraph.runtime.worker_pool import Workers
from subgraph.storage.tensors import Record, load
from subgraph.trials import open_trials
from subgraph.trials.trial import Trials
from subgraph.verdict import Verdict

OURS = "noise"
STRICT = ROUNDING_ALONE
CRITERIA = (
    OURS,
    STRICT,
    "numpy:rtol=1e-3,atol=1e-5",
    "cosine>0.999",
    "tnn",
    "msaccucmp",
    "max_rel<1e-3",
)
RULES = {criterion: parse_criterion(criterion) for criterion in CRITERIA}
LISTED = "approximate kernel"  # a label: agrees, but reports name it
SIZES = (1, 2, 4, 8, 16, 32)  # nodes of a window
LEVELS = ("basic", "extended", "all")
ORT = Candidate("ort", "ort", {"threads": 1})
OTHERS = {
    "openvino": Candidate("openvino", "openvino", {"precision": "f32"})
}  # of another maker, in float32
ALTERED = str(Path(__file__).with_name("altered.py"))

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Task:
    """One network and one way to run it.

    Attributes:
        injects: errors are put in. max_windows: of each size, 0 for all.
        quantized: it quantizes itself, and is held to its own steps.
        group: "own", "light" or "trained". inputs: values of option `-i`. nodes: only this window,
            and the whole.
    """

    network: str
    model: Path
    candidate: str  # ort, openvino, fp16, bf16, int8
    injects: bool = False
    max_windows: int = 0
    group: str = "own"
    inputs: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    quantized: bool = False

    @property
    def claim(self) -> str:
        return "fp32" if self.candidate in ("ort", *OTHERS) else self.candidate


@dataclass(frozen=True)
class Row:
    """One window on one candidate.

    Attributes:
        window: first and last node, and how many there are; 0 for the whole model.
        statuses: by criterion: agree, fail, unresolved, or `LISTED`.
        why: of `noise`, with the output that decides; error: its largest error over its scale.
        at, error_size, error_shape, place: of an injected error.
        arrives: its effect at the outputs over their scale; in trained models and on healthy
            candidates, the error of the worst slice over that slice's scale.
    """

    network: str
    group: str
    candidate: str
    claim: str
    window: str
    size: int
    statuses: Mapping[str, str] = json_key("said")
    label: str = ""
    why: str = ""
    error: float = math.nan
    at: str = ""
    error_size: float = 0.0
    error_shape: str = ""
    place: str = ""
    arrives: float = 0.0


@dataclass
class TaskResult:
    """Result of a task.

    Attributes:
        absent: number of windows that the candidate refused, by reason: mostly, the converted model
            lacks them.
        masked: number of injected errors without any effect at the outputs.
        broken: why the network could not be converted.
    """

    task: Task
    rows: list[Row] = field(default_factory=list)
    absent: Counter[str] = field(default_factory=Counter)
    masked: int = 0
    broken: str = ""
    seconds: float = 0.0


class Unconverted(Exception):
    """A converter does not accept this network; the report names it."""


@contextmanager
def opened(task: Task, folder: Path) -> Iterator[Trials]:
    """Trials of a network on onnxruntime."""
    graph = load_graph(task.model)
    setup = open_trials.Setup(ORT, Feeding(task.inputs), folder / "out", OURS, stored=False)
    with (
        Reference(options={"threads": 1}) as reference,  # two tasks run at once
        Workers(ORT) as workers,
        open_trials.open_trials(graph, setup, reference, workers) as trials,
    ):
        yield trials


@contextmanager
def candidates(trials: Trials, task: Task, folder: Path) -> Iterator[list[Trials]]:
    """The same on the candidates of the task.

    Raises:
        Unconverted: there is no such model.
    """
    if task.candidate == "ort" and not task.injects:
        options = [(level, {"threads": 1, "opt": level}) for level in LEVELS]
        yield [
            trials.with_candidate(Candidate(f"ort {level}", "ort", each)) for level, each in options
        ]
        return
    if task.candidate in OTHERS:
        other = OTHERS[task.candidate]
        with Workers(other) as workers:
            yield [trials.with_runtime(replace(trials.runtime, candidate=other, workers=workers))]
        return
    converted = _converted(trials, task, folder) if task.candidate != "ort" else {}
    with Workers(Candidate(task.candidate, ALTERED)) as workers:
        candidate = Candidate(task.candidate, ALTERED, converted, precision=task.claim)
        yield [trials.with_runtime(replace(trials.runtime, candidate=candidate, workers=workers))]


def _converted(trials: Trials, task: Task, folder: Path) -> dict[str, Any]:
    trials.model.values.need(list(trials.model.graph.inputs))
    feeds = {name: value(trials, name) for name in trials.model.graph.inputs}
    path = folder / f"{task.candidate}.onnx"
    try:
        onnx.save(CONVERSIONS[task.candidate](onnx.load(task.model), feeds), path)
    except Exception as e:  # converters raise what they like
        raise Unconverted(f"{type(e).__name__}: {' '.join(str(e).split())[:200]}") from e
    return {"model": str(path)}


# ------------------------------------------------------------ windows


def windows(graph: Graph, sizes: tuple[int, ...], max_windows: int = 0) -> list[Region]:
    """Windows of each size, half overlapping, without nodes that compute shapes; at most
    `max_windows` of a size."""
    kinds = find_kinds(graph, (name for names in graph.makes for name in names))
    order = [
        i for i in graph.in_order(range(len(graph.nodes))) if not _is_fixed(kinds, graph.makes[i])
    ]
    found = []
    for size in (n for n in sizes if n < len(order)):
        starts = list(range(0, len(order) - size + 1, max(size // 2, 1)))
        if 0 < max_windows < len(starts):
            rng = rng_of(graph.path.stem, size)
            starts = sorted(rng.choice(starts, max_windows, replace=False).tolist())
        found += [regions.build_region(graph, order[k : k + size]) for k in starts]
    return found


def _is_fixed(kinds: Mapping[str, int], names: Sequence[str]) -> bool:
    return all(kinds[name] in (CONSTANT, SHAPE) for name in names)


def rng_of(*key: object) -> np.random.Generator:
    """Random numbers that depend on the key alone."""
    return np.random.default_rng(zlib.crc32(repr(key).encode()))


def _window_fields(graph: Graph, region: Region, whole: bool) -> dict[str, Any]:
    """The fields of a row that name the window."""
    if whole:
        return {"window": f"whole ({len(region.nodes)})", "size": 0}
    labels = [graph.label(region.nodes[k]) for k in (0, -1)]
    return {
        "window": " … ".join(dict.fromkeys(labels)) + f" ({len(region.nodes)})",
        "size": len(region.nodes),
    }


# ------------------------------------------------------------ healthy


def measure_healthy(trials: Trials, task: Task, task_result: TaskResult, folder: Path) -> None:
    """Every window on every candidate of the task; the whole model comes last."""
    selected = _regions(trials, task)
    trials.model.values.need([n for r in selected for n in (*r.inputs, *r.shapes, *r.outputs)])
    try:
        with candidates(trials, task, folder) as all_trials:
            for (k, region), candidate_trials in product(enumerate(selected), all_trials):
                run_result = candidate_trials.run(region)
                if run_result.failure and run_result.failure.signature == "refused":
                    task_result.absent[run_result.failure.why] += 1
                    continue
                whole = k == len(selected) - 1
                task_result.rows.append(
                    judge_window(candidate_trials, task, region, run_result, whole)
                )
    except Unconverted as e:
        task_result.broken = str(e)


def _regions(trials: Trials, task: Task) -> list[Region]:
    """The windows, and the whole model as the last."""
    if task.nodes:
        nodes = [
            i
            for i in range(len(trials.model.graph.nodes))
            if trials.model.graph.nodes[i].name in task.nodes
        ]
        return [regions.build_region(trials.model.graph, nodes), trials.model.whole()]
    return [*windows(trials.model.graph, SIZES, task.max_windows), trials.model.whole()]


def judge_window(
    trials: Trials,
    task: Task,
    region: Region,
    run_result: RunResult,
    whole: bool = False,
    criteria: Sequence[str] = CRITERIA,
    **injected: Any,
) -> Row:
    """Judge one result by these criteria; `injected`: more fields of the row."""
    if "arrives" not in injected:
        injected["arrives"] = worst_output(trials, region, run_result)
    verdicts = {
        name: replace(trials.judge, rule=rule).verdict(region, run_result)
        for name, rule in RULES.items()
        if name in criteria
    }
    ours = verdicts[OURS]
    worst = ours.worst
    return Row(
        network=task.network,
        group=task.group,
        candidate=trials.runtime.candidate.name,
        claim=STEPS if task.quantized else task.claim,
        **_window_fields(trials.model.graph, region, whole),
        statuses={name: _status(verdict) for name, verdict in verdicts.items()},
        label=ours.label,
        why=f"{worst.name}: {ours.why}" if worst else ours.why,
        error=worst.errors.get("max_rel", math.nan) if worst else math.nan,
        **injected,
    )


def worst_output(trials: Trials, region: Region, run_result: RunResult) -> float:
    """The largest error of a slice of a float output over that slice's scale; 0 where there are
    none."""
    if run_result.failure:
        return 0.0
    expected = trials.model.values.records[0]
    made = run_result.tensors[0]
    names = [
        n for n in region.outputs if n in made and made[n].dtype == expected[n].dtype == "float32"
    ]
    return max((worst_slice(read(expected[n]), read(made[n]))[0] for n in names), default=0.0)


def _status(verdict: Verdict) -> str:
    listed = verdict.status == "agree" and any(j.label == LISTED for j in verdict.outputs)
    return LISTED if listed else verdict.status.value


def value(trials: Trials, name: str) -> Array:
    """The captured value of a tensor."""
    return read(trials.model.values.records[0][name])


def read(record: Record) -> Array:
    """The value of one tensor."""
    array = load(record, Path("/"))
    assert isinstance(array, np.ndarray)
    return array
