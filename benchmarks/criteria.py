"""`make bench`: how often each criterion fails healthy candidates, and accepts wrong ones.

    python -m benchmarks.criteria [--all] [--groups own,light,trained] [--jobs 2]

Healthy: windows of our networks, of the nine light ones in onnx's wheel and of trained models out
of other wheels, run by onnxruntime with optimizations, and converted to float16, bfloat16 and int8.
Wrong: an error of known size added to one tensor inside a window; in trained models, a fault in one
slice of an output; and one real bug. All networks in each precision, in a few windows of each size,
and trained models below fp32 in one precision each, in turn; `--all` takes every window and
precision. Results are written to build/bench/. Exit 1 if `noise`, the default, breaks a limit.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import onnx
import onnx.backend.test.data.light as light_networks

from benchmarks import alarms, machine
from benchmarks.injected import measure_injected
from benchmarks.measure import floor
from benchmarks.planted import measure_faults
from benchmarks.trained import models, write_inputs
from benchmarks.windows import Task, TaskResult, measure_healthy, opened
from fixtures.networks import NETWORKS

FOLDER = Path("build/bench")
LIGHT = Path(next(iter(light_networks.__path__)))
CASE = Path(__file__).parent.parent / "fixtures" / "cases" / "ort_padfusion_clean"
# The slowest first, so that two processes end together; the first two have weights of half a
# gigabyte.
LIGHT_NAMES = (
    "vgg19 zfnet512 bvlc_alexnet densenet121 inception_v2 inception_v1 resnet50 squeezenet"
    " shufflenet".split()
)
FP16_NAMES = frozenset(
    "densenet121 inception_v2 inception_v1 squeezenet shufflenet bvlc_alexnet".split()
)
LOWER = ("fp16", "bf16", "int8")
# Windows of each size, 0 for all: by default, and with --all.
OWN_WINDOWS = (12, 0)
INJECTED_WINDOWS = (4, 0)
LIGHT_WINDOWS = (1, 3)
TRAINED_WINDOWS = (1, 2)
FAULTY_WINDOWS = 1
GROUPS = ("trained", "light", "own")


def tasks(folder: Path, every: bool, groups: Sequence[str]) -> Iterator[Task]:
    """All tasks, the slowest first."""
    found = {"trained": _trained, "light": _light, "own": _own}
    for group in groups:
        yield from found[group](folder, every)


def _trained(folder: Path, every: bool) -> Iterator[Task]:
    for k, model in enumerate(models()):
        (folder / model.name).mkdir()
        words = tuple(write_inputs(model, folder / model.name))
        quantized = "int8" in model.kind  # not converted to int8 once more
        task = Task(
            model.name,
            model.path.absolute(),
            "ort",
            group="trained",
            inputs=words,
            quantized=quantized,
        )
        lower = LOWER[:-1] if quantized else LOWER
        for candidate in ("ort", *(lower if every else [lower[k % len(lower)]])):
            yield replace(task, candidate=candidate, max_windows=TRAINED_WINDOWS[every])
            yield replace(task, candidate=candidate, injects=True, max_windows=FAULTY_WINDOWS)
        if not quantized:  # it takes other steps where a model quantizes by itself
            yield replace(task, candidate="openvino", max_windows=1)


def _light(folder: Path, every: bool) -> Iterator[Task]:
    for name in LIGHT_NAMES:
        model = LIGHT / f"light_{name}.onnx"
        for candidate in ("ort", "fp16") if name in FP16_NAMES else ("ort",):
            yield Task(name, model, candidate, max_windows=LIGHT_WINDOWS[every], group="light")


def _own(folder: Path, every: bool) -> Iterator[Task]:
    for claim in ("ort", "fp16"):
        for name in NETWORKS:
            yield Task(
                name,
                folder / f"{name}.onnx",
                claim,
                injects=True,
                max_windows=INJECTED_WINDOWS[every],
            )
    for candidate in (*reversed(LOWER), "ort"):
        for name in NETWORKS:
            yield Task(name, folder / f"{name}.onnx", candidate, max_windows=OWN_WINDOWS[every])


def case() -> Task:
    """The public case: the whole model, and its two nodes."""
    inputs = (str(CASE / "input_x.npy"),)
    return Task(
        "ort_padfusion_clean",
        CASE / "model.onnx",
        "ort",
        inputs=inputs,
        nodes=("/pad/Pad", "/pool/MaxPool"),
    )


def run(every: bool, groups: Sequence[str], jobs: int) -> tuple[list[TaskResult], TaskResult]:
    """Results of all tasks and of the public case; each task runs in a process, with a reference
    and a candidate."""
    with tempfile.TemporaryDirectory(prefix="subcut-bench-") as name:
        for network, build in NETWORKS.items():
            onnx.save(build(), Path(name) / f"{network}.onnx")
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(jobs, mp_context=context) as executor:
            *results, public = executor.map(_measure, [*tasks(Path(name), every, groups), case()])
    return results, public


def _measure(task: Task) -> TaskResult:
    result = TaskResult(task)
    begin = time.perf_counter()
    with (
        tempfile.TemporaryDirectory(prefix="subcut-bench-") as name,
        opened(task, Path(name)) as trials,
    ):
        putting_in = measure_faults if task.group == "trained" else measure_injected
        (putting_in if task.injects else measure_healthy)(trials, task, result, Path(name))
    result.seconds = time.perf_counter() - begin
    kind = "errors put in" if task.injects else "healthy"
    print(
        f"{task.network}, {task.candidate}, {kind}: {len(result.rows)} in {result.seconds:.0f} s",
        file=sys.stderr,
    )
    return result


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.criteria", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--all", action="store_true", help="every window and precision: hours")
    parser.add_argument("--groups", default=",".join(GROUPS), help="networks to measure, by comma")
    parser.add_argument("--jobs", type=int, default=2, help="processes at once (default 2)")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    FOLDER.mkdir(parents=True, exist_ok=True)
    begin = time.perf_counter()
    results, public = run(options.all, options.groups.split(","), options.jobs)
    result = alarms.Result(
        command=shlex.join(["python", "-m", "benchmarks.criteria", *arguments]),
        machine=machine.describe(floor()),
        found=results,
        case=public,
        seconds=time.perf_counter() - begin,
    )
    text = alarms.markdown(result)
    (FOLDER / "criteria.md").write_text(text)
    (FOLDER / "criteria.json").write_text(
        json.dumps(alarms.document(result), indent=1, allow_nan=False) + "\n"
    )
    print(text)
    return 0 if all(limit.kept for limit in alarms.limits(result)) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
