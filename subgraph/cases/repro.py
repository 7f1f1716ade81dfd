"""Run the cut in this folder alone and compare it with the reference values beside it.

    python repro.py                     this folder's model on onnxruntime's CPU, as it was captured
    python repro.py --model other.onnx  another model with the same inputs and outputs
    python repro.py --opt all           with onnxruntime's optimisations
    python repro.py --custom-ops LIB    with a library of custom operators
    python repro.py --outputs DIR       nothing is run: the outputs in DIR, .npy or .bin, named as in outputs/

Needs onnxruntime and numpy, nothing else. Exit code 0: the values agree (bit for bit, or within 1e-3 of the largest
value, more only where the manifest's check says so); 1: they do not.
"""

import argparse
import ctypes
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

TOLERANCE = 1e-3  # of the largest value: what another machine's kernels may differ by
# Types that numpy lacks: stored as raw bits. name -> (number in onnx.proto, bits)
OWN = {"bfloat16": (16, 16), "float8_e4m3fn": (17, 8), "float8_e4m3fnuz": (18, 8), "float8_e5m2": (19, 8),
       "float8_e5m2fnuz": (20, 8), "uint4": (21, 4), "int4": (22, 4), "float4_e2m1fn": (23, 4),
       "float8_e8m0fnu": (24, 8), "uint2": (25, 2), "int2": (26, 2)}  # fmt: skip


def main() -> int:
    here = Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description=str(__doc__), formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=here / "model.onnx")
    parser.add_argument("--opt", choices=("disable", "basic", "extended", "all"), default="disable")
    parser.add_argument("--custom-ops", metavar="LIB")
    parser.add_argument("--outputs", metavar="DIR", type=Path)
    words = parser.parse_args()
    manifest = json.loads((here / "manifest.json").read_text(encoding="utf-8"))
    if words.outputs:
        if not words.outputs.is_dir():
            parser.error(f"no folder {words.outputs}")
        return compare(here, manifest, words.outputs)
    captured = manifest["reference"]
    if "custom_ops" in captured and not words.custom_ops:
        parser.error(f"the model has custom operators: --custom-ops {captured['custom_ops']} (give its path)")
    session = open_session(words.model, words.opt, captured.get("threads", 1), words.custom_ops)
    worst = True
    for k, sample in enumerate(manifest["samples"]):
        feeds = {t["name"]: load(here, t, k) for t in manifest["inputs"]}
        results = run(session, feeds, manifest["inputs"], manifest["outputs"])
        for tensor in manifest["outputs"]:
            tolerance = max(TOLERANCE, manifest["check"]["tolerance"])
            same, line = judge(results[tensor["name"]], load(here, tensor, k), tolerance)
            tell(sample, tensor, line)
            worst &= same
    return 0 if worst else 1


def compare(here: Path, manifest: dict[str, Any], given: Path) -> int:
    """Outputs that were made elsewhere beside the reference's, each in the form in which it lies there."""
    worst = True
    for k, sample in enumerate(manifest["samples"]):
        for tensor in manifest["outputs"]:
            pairs = [(f, given / f["file"].partition("/")[2]) for f in tensor["samples"][k]["files"]]
            found = [(f, path) for f, path in pairs if path.is_file()]
            kinds = {f["format"] for f, _ in found}
            pairs = [(f, path) for f, path in found if f["format"] == ("npy" if "npy" in kinds else "bin")]
            tolerance = max(TOLERANCE, manifest["check"]["tolerance"])
            judged = [judge(raw(f, path), raw(f, here / f["file"]), tolerance) for f, path in pairs]
            same = all(good for good, _ in judged) and bool(judged)
            tell(sample, tensor, "; ".join(line for _, line in judged) or "is not there")
            worst &= same
    return 0 if worst else 1


def raw(entry: dict[str, Any], path: Path) -> Any:
    """An array as it lies in a file; raw bits of a type that numpy lacks."""
    if entry["format"] == "npy":
        return np.load(path, allow_pickle=False)
    if entry["dtype"] in OWN:
        return np.fromfile(path, np.uint8)
    array: Any = np.fromfile(path, entry["dtype"])
    return array.reshape(entry["shape"]) if array.size == math.prod(entry["shape"]) else array


def tell(sample: dict[str, Any], tensor: dict[str, Any], line: str) -> None:
    label = sample["label"] + "  " if sample["label"] else ""
    print(printable(f"{label}{tensor['name']}: {line}"))


def printable(text: str) -> str:
    """Names come from the model: what would steer a terminal is spelled out."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def open_session(model: Path, opt: str, threads: int, custom_ops: str | None) -> ort.InferenceSession:
    settings = ort.SessionOptions()
    if custom_ops:
        settings.register_custom_ops_library(custom_ops)
    levels = {"disable": "DISABLE_ALL", "basic": "ENABLE_BASIC", "extended": "ENABLE_EXTENDED", "all": "ENABLE_ALL"}
    settings.graph_optimization_level = getattr(ort.GraphOptimizationLevel, "ORT_" + levels[opt])
    settings.intra_op_num_threads = threads
    settings.use_deterministic_compute = True
    return ort.InferenceSession(str(model), settings, providers=["CPUExecutionProvider"])


def load(here: Path, tensor: dict[str, Any], sample: int) -> Any:
    """A tensor, a list of them (sequence) or None (empty optional), as stored."""
    stored = tensor["samples"][sample]
    arrays = [np.load(here / f["file"], allow_pickle=False) for f in stored["files"] if f["format"] == "npy"]
    if tensor["dtype"] == "string":
        arrays = [a.astype(object) for a in arrays]
    if "sequence" in stored["form"]:
        return arrays
    return arrays[0] if arrays else None


def run(session: Any, feeds: dict[str, Any], inputs: list[Any], outputs: list[Any]) -> dict[str, Any]:
    own = {t["name"]: t["dtype"] for t in (*inputs, *outputs) if t["dtype"] in OWN}
    names = [t["name"] for t in outputs]
    if not own:
        return dict(zip(names, session.run(names, feeds), strict=True))
    values = {n: wrap(a, own.get(n)) for n, a in feeds.items()}
    results = session.run_with_ort_values(names, values)
    return {n: unwrap(v, own.get(n)) for n, v in zip(names, results, strict=True)}


def wrap(bits: Any, dtype: str | None) -> Any:
    if dtype is None:
        return ort.OrtValue.ortvalue_from_numpy(bits)
    number, width = OWN[dtype]
    if width < 8:  # packed, first element lowest, in a buffer as long as the shape says
        lanes = np.zeros(-(-bits.size * width // 8) * (8 // width), np.uint8)
        lanes[: bits.size] = bits.reshape(-1)
        shifted = [lanes[i :: 8 // width] << (i * width) for i in range(8 // width)]
        packed = np.bitwise_or.reduce(shifted)
        bits = np.zeros(bits.shape, np.uint8)
        bits.reshape(-1)[: packed.size] = packed
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, number)


def unwrap(value: Any, dtype: str | None) -> Any:
    if dtype is None:
        return value.numpy()
    width, count = OWN[dtype][1], math.prod(value.shape())
    data = ctypes.string_at(value.data_ptr(), (count * width + 7) // 8) if count else b""
    flat: Any = np.frombuffer(data, np.uint16 if width == 16 else np.uint8)
    if width < 8:
        lanes = [(flat >> (i * width)) & ((1 << width) - 1) for i in range(8 // width)]
        flat = np.stack(lanes, axis=-1).reshape(-1)[:count]
    return flat.reshape(value.shape())


def judge(got: Any, want: Any, tolerance: float = TOLERANCE) -> tuple[bool, str]:
    if isinstance(want, list) or want is None:
        same = (got is None) == (want is None) and len(got or ()) == len(want or ())
        same = same and all(judge(g, w, tolerance)[0] for g, w in zip(got or (), want or (), strict=True))
        return same, "bit-identical" if same else "DIFFERS"
    if got.shape != want.shape or got.dtype != want.dtype:
        return False, f"DIFFERS: {got.dtype} {got.shape}, captured was {want.dtype} {want.shape}"
    if got.tobytes() == want.tobytes() or (want.dtype == object and (got == want).all()):
        return True, "bit-identical"
    if want.dtype.kind not in "fc":
        return False, f"DIFFERS in {int((got != want).sum())} of {want.size} values"
    finite = np.isfinite(want) & np.isfinite(got)
    off = int((~finite & (got != want) & ~(np.isnan(got) & np.isnan(want))).sum())
    wide = np.complex128 if want.dtype.kind == "c" else np.float64
    error = np.abs(got.astype(wide)[finite] - want.astype(wide)[finite]).max(initial=0.0)
    scale = np.abs(want.astype(wide)[finite]).max(initial=0.0)
    same = bool(off == 0 and error <= tolerance * scale)
    return same, f"{'agrees' if same else 'DIFFERS'}: max error {error:.3g} of {scale:.3g}, {off} NaN or Inf apart"


if __name__ == "__main__":
    sys.exit(main())
