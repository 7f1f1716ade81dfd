"""What `subcut plan` keeps in float on trained models, beside what three other tools keep for the same limit.

    python -m benchmarks.plans [--only NAME…] [--seconds 60]       # a table in Markdown; goes on where it was stopped

Each model is fed four samples: the inputs of `benchmarks.trained`, moved along the last axis. A lowered model is
accepted from 25 dB (int8) or 60 dB (float16) of signal to quantization noise on, of its worst output. Places are
counted as each tool counts: subcut by nodes and outputs, NNCF by nodes that it quantizes, the other two by nodes. No
other tool plans dynamic int8. The others have twice the seconds, in an environment of their own, in `build/plans`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import trained
from benchmarks.trained import Array, Trained

FOLDER = Path("build/plans")
ANSWERS = FOLDER / "answers.json"
PINNED = ("nncf==3.4.0", "onnxruntime==1.32.0", "onnxconverter-common==1.16.0", "onnx==1.23.2")
LIMITS = {"int8": 25.0, "int8 dynamic": 25.0, "float16": 60.0}
PEERS = {"int8": ("NNCF", "onnxruntime"), "int8 dynamic": (), "float16": ("onnxconverter-common",)}
SAMPLES = 4
STEP = 5  # elements by which a sample is moved
NOT_FLOAT = ("captcha-int8", "embedding-int8", "arabic-int8", "voice-if")  # quantized already, or all of it in an If

Answer = dict[str, Any]


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


def peers_python() -> str:
    """The interpreter of the other tools; they are installed once."""
    python = FOLDER / "environment/bin/python"
    if not python.exists():
        venv.create(FOLDER / "environment", with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PINNED], check=True)
    return str(python)


def dynamic(model: Trained, folder: Path) -> Path:
    """The dynamic int8 model, as onnxruntime makes it."""
    script = (
        "import sys; from onnxruntime.quantization import quantize_dynamic; "
        "from onnxruntime.quantization.shape_inference import quant_pre_process; "
        "quant_pre_process(sys.argv[1], sys.argv[2], skip_symbolic_shape=True); quantize_dynamic(*sys.argv[2:])"
    )
    prepared, lowered = folder / "prepared.onnx", folder / "dynamic.onnx"
    command = [sys.executable, "-c", script, str(model.path), str(prepared), str(lowered)]
    subprocess.run(command, capture_output=True, text=True, check=True)
    return lowered


def ours(model: Trained, precision: str, samples: Path, folder: Path, seconds: float) -> Answer:
    """`subcut plan --json`, or why it has none."""
    pair = {"int8": ["--to", "int8"], "float16": ["--to", "fp16"]}.get(precision)
    try:
        pair = pair or ["--candidate-model", str(dynamic(model, folder))]
    except subprocess.CalledProcessError as e:
        return {"error": f"not quantized: {e.stderr.strip().splitlines()[-1]}"}
    command = [sys.executable, "-m", "subgraph", "plan", str(model.path), *pair, "-i", str(samples), "--score", "sqnr"]
    command += ["--at-least", str(LIMITS[precision]), "--max-time", f"{seconds:g}s", "--json", "-q", "-o", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    answer = json.loads(done.stdout)
    if answer.get("kept") is None:
        return {"error": str(answer.get("says") or answer["error"]["what"])}
    kept, places, runs = answer["kept"], answer["places"], answer["runs"]
    return {"kept": len(kept), "places": places, "runs": runs, "score": answer["score"], "minimal": answer["minimal"]}


def peer(name: str, model: Trained, precision: str, samples: Path, folder: Path, seconds: float) -> Answer:
    """What another tool keeps, or its last line where it gives nothing."""
    command = [peers_python(), "-m", "benchmarks.plan_peers", name, str(model.path), str(samples)]
    command += [str(LIMITS[precision]), str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=2 * seconds)
    except subprocess.TimeoutExpired:
        return {"error": f"not done in {2 * seconds:g} s"}
    lines = done.stdout.strip().splitlines() if not done.returncode else done.stderr.strip().splitlines()
    return dict(json.loads(lines[-1])) if not done.returncode else {"error": lines[-1] if lines else "no answer"}


def ask(model: Trained, precision: str, tool: str, seconds: float) -> Answer:
    """One cell of the table, with its wall seconds."""
    samples = write_samples(model)
    with tempfile.TemporaryDirectory() as name:
        folder, begun = Path(name), time.perf_counter()
        if tool == "subcut":
            answer = ours(model, precision, samples, folder, seconds)
        else:
            answer = peer(tool, model, precision, samples, folder, seconds)
        return {**answer, "seconds": time.perf_counter() - begun}


def answered(wanted: list[str], seconds: float) -> dict[str, Answer]:
    """All cells, by `model/precision/tool`; those that were asked before are read."""
    known: dict[str, Answer] = json.loads(ANSWERS.read_text()) if ANSWERS.exists() else {}
    for model in trained.models():
        if model.name in NOT_FLOAT or (wanted and model.name not in wanted):
            continue
        for precision, tools in PEERS.items():
            for tool in ("subcut", *tools):
                key = f"{model.name}/{precision}/{tool}"
                if key not in known:
                    known[key] = ask(model, precision, tool, seconds)
                    ANSWERS.write_text(json.dumps(known, indent=1))
                    print(key, known[key], file=sys.stderr)
    return known


def cell(answer: Answer | None) -> str:
    """`3 of 93, 31.2 dB, 12 s`."""
    if not answer:
        return "—"
    if "error" in answer:
        return str(answer["error"])[:60]
    proof = {True: ", minimal", False: ", not minimal"}.get(answer.get("minimal", ""), "")
    return f"{answer['kept']} of {answer['places']}{proof}, {answer['seconds']:.0f} s"


def table(known: dict[str, Answer]) -> Iterator[str]:
    """A row per model and precision."""
    yield "| model | lowered to | subcut | NNCF | onnxruntime's ranking | onnxconverter-common |"
    yield "|---|---|---|---|---|---|"
    for row in dict.fromkeys(key.rpartition("/")[0] for key in known):
        cells = [cell(known.get(f"{row}/{tool}")) for tool in ("subcut", "NNCF", "onnxruntime", "onnxconverter-common")]
        yield f"| {row.replace('/', ' | ')} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    print("\n".join(table(answered(options.only, options.seconds))))


if __name__ == "__main__":
    main()
