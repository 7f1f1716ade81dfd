"""What `subcut plan` keeps in float on trained models, beside what four other tools keep for the
same limit.

    python -m benchmarks.plans [--only NAME…] [--cells PRECISION/TOOL…] [--seconds 60]
    python -m benchmarks.plans --unequal 16       what `--rescale` gains in int8

It prints a table in Markdown, and goes on where it was stopped.

Each model is fed four samples: the inputs of `benchmarks.trained`, moved along the last axis. A
lowered model is accepted from 25 dB (int8) or 60 dB (float16) of signal to quantization noise on,
of its worst output; where int8 is accepted at once, it is asked for 10 dB more, too. Places are
counted as each tool counts: subcut by nodes and outputs, NNCF by nodes that it quantizes, the
others by nodes. No other tool plans dynamic int8. The others have twice the seconds, in
environments of their own, in `build/plans`.

With `--unequal`, networks with channels of very different sizes (`fixtures.unequal`) are quantized
by onnxruntime with and without `--rescale`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import subgraph
from benchmarks import trained
from benchmarks.trained import Array, Trained
from fixtures import unequal
from subgraph.types import frozen

FOLDER = Path("build/plans")
ANSWERS = FOLDER / "answers.json"
# by environment; ModelOpt asks for older packages, and for CUDA's, which it does not need here
PINNED = {
    "others": "nncf==3.4.0 onnxruntime==1.32.0 onnxconverter-common==1.16.0 onnx==1.23.2",
    "ModelOpt": (
        "nvidia-modelopt==0.47.0 torch==2.13.0 onnxruntime==1.24.2 onnx==1.21.0"
        " onnxconverter-common==1.16.0 onnx-graphsurgeon==0.6.1 polygraphy==0.53.6 onnxslim==0.1.98"
        " onnxscript==0.7.2 lief==1.0.0 cppimport==26.4.17"
    ),
}
LIMITS = {"int8": 25.0, "int8 dynamic": 25.0, "float16": 60.0}  # dB
STRICT = "int8, 10 dB more"  # than int8 reaches, where that is accepted at once
PEERS = {
    "int8": ("NNCF", "onnxruntime"),
    STRICT: ("NNCF", "onnxruntime"),
    "int8 dynamic": (),
    "float16": ("onnxconverter-common", "ModelOpt"),
}
SAMPLES = 4
STEP = 5  # elements by which a sample is moved
FIRST_SEED = 100  # of networks with unequal channels
NOT_FLOAT = (
    "captcha-int8",
    "embedding-int8",
    "arabic-int8",
    "voice-if",
)  # quantized already, or all of it in an If

Answer = dict[str, Any]


@frozen
class Kind:
    """A kind of network with channels of very different sizes."""

    title: str
    build: Callable[..., onnx.ModelProto]
    draw: Callable[[int, int], Array]
    planted: bool


KINDS = (
    Kind("planted", unequal.build, unequal.draw_input, planted=True),
    Kind("large channels count more", unequal.build, unequal.draw_input, planted=False),
    Kind("tokens, planted", unequal.build_tokens, unequal.draw_tokens, planted=True),
    Kind("tokens, large channels", unequal.build_tokens, unequal.draw_tokens, planted=False),
)


def write_samples(model: Trained) -> Path:
    """One .npz per sample; integers (bytes, words) stay as they are."""
    folder = FOLDER / "samples" / model.name
    folder.mkdir(parents=True, exist_ok=True)
    for k in range(SAMPLES):
        moved: dict[str, Any] = {n: _moved(v, STEP * k) for n, v in model.inputs().items()}
        np.savez(str(folder / f"{k}.npz"), **moved)
    return folder


def _moved(value: Array, steps: int) -> Array:
    return np.roll(value, steps, -1) if value.ndim and value.dtype.kind == "f" else value


def peers_python(tool: str) -> str:
    """The interpreter of another tool; it is installed once."""
    name = tool if tool in PINNED else "others"
    python = FOLDER / f"environment-{name}/bin/python"
    if not python.exists():
        venv.create(FOLDER / f"environment-{name}", with_pip=True)
        subprocess.run(
            [python, "-m", "pip", "install", "--quiet", *PINNED[name].split()], check=True
        )
    return str(python)


def dynamic(model: Trained, folder: Path) -> Path:
    """The dynamic int8 model, as onnxruntime makes it."""
    script = (
        "import sys; from onnxruntime.quantization import quantize_dynamic; from"
        " onnxruntime.quantization.shape_inference import quant_pre_process;"
        " quant_pre_process(sys.argv[1], sys.argv[2], skip_symbolic_shape=True);"
        " quantize_dynamic(*sys.argv[2:])"
    )
    prepared = folder / "prepared.onnx"
    lowered = folder / "dynamic.onnx"
    command = [sys.executable, "-c", script, str(model.path), str(prepared), str(lowered)]
    subprocess.run(command, capture_output=True, text=True, check=True)
    return lowered


def ours(model: Trained, precision: str, limit: float, folder: Path, seconds: float) -> Answer:
    """`subcut plan --json`, or why it has none."""
    pair = {"int8": ["--to", "int8"], STRICT: ["--to", "int8"], "float16": ["--to", "fp16"]}.get(
        precision
    )
    try:
        pair = pair or ["--candidate-model", str(dynamic(model, folder))]
    except subprocess.CalledProcessError as e:
        return {"error": f"not quantized: {e.stderr.strip().splitlines()[-1]}"}
    command = [sys.executable, "-m", "subgraph", "plan", str(model.path), *pair, "--score", "sqnr"]
    command += [
        "-i",
        str(write_samples(model)),
        "--at-least",
        str(limit),
        "--max-time",
        f"{seconds:g}s",
        "--json",
        "-q",
        "-o",
        str(folder),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    answer = json.loads(done.stdout)
    if answer.get("kept") is None:
        return {"error": str(answer.get("says") or answer["error"]["what"])}
    kept = answer["kept"]
    places = answer["places"]
    runs = answer["runs"]
    return {
        "kept": len(kept),
        "places": places,
        "runs": runs,
        "score": answer["score"],
        "minimal": answer["minimal"],
    }


def peer(name: str, model: Trained, limit: float, folder: Path, seconds: float) -> Answer:
    """What another tool keeps, or its last line where it gives nothing."""
    command = [peers_python(name), "-m", "benchmarks.plan_peers", name, str(model.path)]
    command += [str(write_samples(model)), str(limit), str(folder)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=2 * seconds
        )
    except subprocess.TimeoutExpired:
        return {"error": f"not done in {2 * seconds:g} s"}
    lines = (
        done.stdout.strip().splitlines()
        if not done.returncode
        else done.stderr.strip().splitlines()
    )
    return (
        dict(json.loads(lines[-1]))
        if not done.returncode
        else {"error": lines[-1] if lines else "no answer"}
    )


def ask(model: Trained, precision: str, tool: str, limit: float, seconds: float) -> Answer:
    """One cell of the table, with its wall seconds."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        begun = time.perf_counter()
        if tool == "subcut":
            answer = ours(model, precision, limit, folder, seconds)
        else:
            answer = peer(tool, model, limit, folder, seconds)
        return {**answer, "limit": limit, "seconds": time.perf_counter() - begun}


def limit_of(precision: str, int8: Answer) -> float | None:
    """In dB; None where more is not asked. `int8`: what subcut answered for it."""
    if precision != STRICT:
        return LIMITS[precision]
    return int8["score"]["as_it_is"] + 10 if int8.get("kept") == 0 else None


def answered(wanted: list[str], cells: list[str], seconds: float) -> dict[str, Answer]:
    """All cells, by `model/precision/tool`; those that were asked before are read."""
    known: dict[str, Answer] = json.loads(ANSWERS.read_text()) if ANSWERS.exists() else {}
    for model in trained.models():
        if model.name in NOT_FLOAT or (wanted and model.name not in wanted):
            continue
        for precision, tools in PEERS.items():
            for tool in ("subcut", *tools):
                key = f"{model.name}/{precision}/{tool}"
                limit = limit_of(precision, known.get(f"{model.name}/int8/subcut", {}))
                if cells and f"{precision}/{tool}" not in cells:
                    continue
                if key not in known and limit is not None:
                    known[key] = ask(model, precision, tool, limit, seconds)
                    ANSWERS.write_text(json.dumps(known, indent=1))
                    print(key, known[key], file=sys.stderr)
    return known


def cell(answer: Answer | None) -> str:
    """`3 of 93*, 12 s`; the star: none of them can be lowered again, each was tried."""
    if not answer:
        return ""
    if "error" in answer:
        return answer["error"] if answer["error"].startswith("not done") else "no answer"
    score = answer["score"] if isinstance(answer["score"], float) else answer["score"]["plan"]
    missed = f" ({score:.1f} dB: missed)" if score < answer["limit"] else ""
    return (
        f"{answer['kept']} of {answer['places']}{'*' * answer.get('minimal', False)}{missed},"
        f" {answer['seconds']:.0f} s"
    )


def table(known: dict[str, Answer]) -> Iterator[str]:
    """A row per model, and one more where it was asked for more."""
    yield (
        "| | int8: subcut | NNCF | onnxruntime's ranking | dynamic: subcut "
        "| float16: subcut | onnxconverter-common | ModelOpt |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    columns = [("int8", tool) for tool in ("subcut", *PEERS["int8"])] + [("int8 dynamic", "subcut")]
    columns += [("float16", tool) for tool in ("subcut", *PEERS["float16"])]
    for name in dict.fromkeys(key.partition("/")[0] for key in known):
        cells = [cell(known.get(f"{name}/{precision}/{tool}")) for precision, tool in columns]
        yield f"| {name} | {' | '.join(cells)} |"
        if asked := known.get(f"{name}/{STRICT}/subcut"):
            more = [
                cell(known.get(f"{name}/{STRICT}/{tool}")) for tool in ("subcut", *PEERS[STRICT])
            ]
            yield f"| {name}, {asked['limit']:.0f} dB | {' | '.join(more)} | | | | |"


def beside(known: dict[str, Answer]) -> Iterator[str]:
    """A sentence per other tool: how many places are kept beside its, where both keep some."""
    for tool in dict.fromkeys(tool for tools in PEERS.values() for tool in tools):
        ratios = []
        for key, theirs in known.items():
            ours = known.get(f"{key.rpartition('/')[0]}/subcut", {})
            if key.endswith(f"/{tool}") and theirs.get("kept") and ours.get("kept"):
                ratios.append(ours["kept"] / theirs["kept"])
        if ratios:
            median = statistics.median(ratios)
            yield (
                f"{tool}: {median:.2f} times as many in the median of {len(ratios)} where both keep"
                " some"
            )


def measure_unequal(seed: int, to: str, kind: Kind, *, rescale: bool) -> float:
    """Return the signal to noise ratio of a quantized network in dB, of four samples."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "model.onnx"
        onnx.save(kind.build(seed, planted=kind.planted), path)
        inputs = [kind.draw(seed, k) for k in range(SAMPLES)]
        found = subgraph.plan(
            path,
            to=to,
            inputs=inputs,
            score="sqnr",
            at_least=-1e3,
            rescale=rescale,
            output=Path(name) / "out",
        )
        score = found.result.score
        assert score and score.as_it_is is not None
        return score.as_it_is


def tabulate_unequal(number: int) -> Iterator[str]:
    """A row per network, then the medians."""
    yield "| network | type | without, dB | `--rescale`, dB |"
    yield "|---|---|--:|--:|"
    for kind, to in product(KINDS, ("int8", "int16")):
        rows = []
        for seed in range(FIRST_SEED, FIRST_SEED + number):
            row = [measure_unequal(seed, to, kind, rescale=rescale) for rescale in (False, True)]
            rows.append(row)
            yield f"| {seed}, {kind.title} | {to} | {row[0]:.1f} | {row[1]:.1f} |"
        before, after = (statistics.median(column) for column in zip(*rows, strict=True))
        lower = sum(b < a for a, b in rows)
        yield f"| median, {kind.title}; {lower} lower | {to} | {before:.1f} | {after:.1f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--cells", nargs="*", default=[], metavar="PRECISION/TOOL")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--unequal", type=int, default=0, metavar="NETWORKS")
    options = parser.parse_args()
    if options.unequal:
        for line in tabulate_unequal(options.unequal):
            print(line, flush=True)
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    known = answered(options.only, options.cells, options.seconds)
    print("\n".join([*table(known), "", *beside(known)]))


if __name__ == "__main__":
    main()
