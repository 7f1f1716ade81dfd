"""Run the cut in this folder alone and compare it with the reference values beside it.

    python repro.py                     of a finding, what the candidate gave; else as with --reference
    python repro.py --reference         this folder's model on onnxruntime's CPU, as it was captured
    python repro.py --model other.onnx  another model with the same inputs and outputs
    python repro.py --opt all           with onnxruntime's optimisations
    python repro.py --custom-ops LIB    with a library of custom operators
    python repro.py --outputs DIR       nothing is run: the outputs in DIR, .npy or .bin, named as in outputs/

Needs onnxruntime and numpy, nothing else; for model.tflite ai-edge-litert instead of onnxruntime. Exit code 0: the
values agree (bit for bit, or within 1e-3 of the largest value, more only where the manifest's check says so); 1: they
do not.
"""

import argparse
import ctypes
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np

try:
    import onnxruntime as ort
except ImportError:  # a .tflite needs none
    ort = None

TOLERANCE = 1e-3  # of the largest value: how far another machine's kernels may differ
# Types that numpy lacks are stored as raw bits. name -> (number in onnx.proto, bits)
NOT_NUMPY = {"bfloat16": (16, 16), "float8_e4m3fn": (17, 8), "float8_e4m3fnuz": (18, 8), "float8_e5m2": (19, 8),
       "float8_e5m2fnuz": (20, 8), "uint4": (21, 4), "int4": (22, 4), "float4_e2m1fn": (23, 4),
       "float8_e8m0fnu": (24, 8), "uint2": (25, 2), "int2": (26, 2)}  # fmt: skip


def main() -> int:
    here = Path(__file__).resolve().parent
    own = here / ("model.tflite" if (here / "model.tflite").exists() else "model.onnx")
    parser = argparse.ArgumentParser(description=str(__doc__), formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", action="store_true")
    parser.add_argument("--model", type=Path, default=own)
    parser.add_argument("--opt", choices=("disable", "basic", "extended", "all"), default="disable")
    parser.add_argument("--custom-ops", metavar="LIB")
    parser.add_argument("--outputs", metavar="DIR", type=Path)
    options = parser.parse_args()
    manifest = json.loads((here / "manifest.json").read_text(encoding="utf-8"))
    tolerance = max(TOLERANCE, manifest["check"].get("tolerance", 0.0))
    if options.outputs:
        if not options.outputs.is_dir():
            parser.error(f"no folder {options.outputs}")
        return compare(here, manifest, options.outputs, tolerance)
    if len(sys.argv) == 1 and (here / "candidate").is_dir():
        return show_fault(here, manifest, tolerance)
    reference = manifest["reference"]
    if "custom_ops" in reference and not options.custom_ops:
        parser.error(f"the model has custom operators: --custom-ops {reference['custom_ops']} (give its path)")
    session = open_session(options.model, options.opt, reference.get("threads", 1), options.custom_ops)
    dtypes = {t["name"]: t["dtype"] for t in (*manifest["inputs"], *manifest["outputs"])}
    all_agree = True
    for k, sample in enumerate(manifest["samples"]):
        feeds = {t["name"]: load(here, t, k) for t in manifest["inputs"]}
        results = run(session, feeds, [t["name"] for t in manifest["outputs"]], dtypes)
        for tensor in manifest["outputs"]:
            agrees, line = judge(results[tensor["name"]], load(here, tensor, k), tolerance)
            show(sample["label"], tensor["name"], line)
            all_agree &= agrees
    return 0 if all_agree else 1


def show_fault(here: Path, manifest: dict[str, Any], tolerance: float) -> int:
    """Compare what the candidate gave when the fault was found, and say how to run it again."""
    outcome = manifest.get("found", {})
    gave = any(path.is_file() for path in (here / "candidate").rglob("*"))
    agrees = compare(here, manifest, here / "candidate", tolerance) == 0 if gave else "status" not in outcome
    if "status" in outcome:
        agrees = outcome["status"] == "agree"
        kind = f" ({outcome['signature']})" if outcome.get("signature") else ""
        word = "FAIL" if outcome["status"] == "fail" else outcome["status"]
        print(printable(f"{word}{kind}: {outcome['candidate']}: {outcome['why']}"))
    print("This is what the candidate gave when the fault was found; nothing was run now.")
    print("subcut replay FOLDER runs the candidate again; python repro.py --reference runs onnxruntime's CPU.")
    return 0 if agrees else 1


def compare(here: Path, manifest: dict[str, Any], folder: Path, tolerance: float) -> int:
    """Compare the outputs in a folder with the reference's, as .npy where there are any, else as .bin."""
    all_agree = True
    for k, sample in enumerate(manifest["samples"]):
        for tensor in manifest["outputs"]:
            pairs = [(f, folder / f["file"].partition("/")[2]) for f in tensor["samples"][k]["files"]]
            pairs = [(f, path) for f, path in pairs if path.is_file()]
            kind = "npy" if any(f["format"] == "npy" for f, _ in pairs) else "bin"
            pairs = [(f, path) for f, path in pairs if f["format"] == kind]
            judged = [judge(load_raw(f, path), load_raw(f, here / f["file"]), tolerance) for f, path in pairs]
            show(sample["label"], tensor["name"], "; ".join(line for _, line in judged) or "is not there")
            all_agree &= bool(judged) and all(agrees for agrees, _ in judged)
    return 0 if all_agree else 1


def load_raw(entry: dict[str, Any], path: Path) -> Any:
    """The array in a file; raw bits for a type that numpy lacks."""
    if entry["format"] == "npy":
        return np.load(path, allow_pickle=False)
    if entry["dtype"] in NOT_NUMPY:
        return np.fromfile(path, np.uint8)
    array: Any = np.fromfile(path, entry["dtype"])
    return array.reshape(entry["shape"]) if array.size == math.prod(entry["shape"]) else array


def show(label: str, name: str, line: str) -> None:
    print(printable(f"{label}  {name}: {line}" if label else f"{name}: {line}"))


def printable(text: str) -> str:
    """Names come from the model: control characters are spelled out."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


class LiteRT:
    """A .tflite, with the reference's kernels: without delegates. Its inputs and outputs are those of the manifest."""

    def __init__(self, model: Path) -> None:
        from ai_edge_litert.interpreter import Interpreter, OpResolverType

        kernels = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
        self.interpreter = Interpreter(str(model), experimental_op_resolver_type=kernels, num_threads=1)

    def run(self, outputs: list[str], feeds: dict[str, Any]) -> list[Any]:
        """As of onnxruntime's session."""
        net = self.interpreter
        into = [(t, feeds[t["name"]]) for t in net.get_input_details()]
        for tensor, value in into:
            if tensor["shape"].tolist() != list(value.shape):
                net.resize_tensor_input(tensor["index"], value.shape)
        net.allocate_tensors()
        for tensor, value in into:
            net.set_tensor(tensor["index"], value)
        net.invoke()
        index = {t["name"]: t["index"] for t in net.get_output_details()}
        return [net.get_tensor(index[name]) for name in outputs]


def open_session(model: Path, opt: str, threads: int, custom_ops: str | None) -> Any:
    if model.suffix == ".tflite":
        return LiteRT(model)
    if ort is None:
        raise SystemExit("pip install onnxruntime")
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


def run(session: Any, feeds: dict[str, Any], outputs: list[str], dtypes: dict[str, str]) -> dict[str, Any]:
    """Output → value, as stored in a .npy. Types that numpy lacks go in and out as raw memory."""
    if NOT_NUMPY.keys().isdisjoint(dtypes.values()):
        return dict(zip(outputs, session.run(outputs, feeds), strict=True))
    values = {n: wrap(a, dtypes[n]) for n, a in feeds.items()}
    results = session.run_with_ort_values(outputs, values)
    return {n: unwrap(v, dtypes[n]) for n, v in zip(outputs, results, strict=True)}


def wrap(bits: Any, dtype: str) -> Any:
    """A stored array as a value of onnxruntime."""
    if dtype not in NOT_NUMPY:
        return ort.OrtValue.ortvalue_from_numpy(bits)
    number, width = NOT_NUMPY[dtype]
    if width < 8:  # packed, first element lowest, in a buffer as long as the shape says
        lanes = np.zeros(-(-bits.size * width // 8) * (8 // width), np.uint8)
        lanes[: bits.size] = bits.reshape(-1)
        shifted = [lanes[i :: 8 // width] << (i * width) for i in range(8 // width)]
        packed = np.bitwise_or.reduce(shifted)
        bits = np.zeros(bits.shape, np.uint8)
        bits.reshape(-1)[: packed.size] = packed
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, number)


def unwrap(value: Any, dtype: str) -> Any:
    """The inverse of `wrap`."""
    if dtype not in NOT_NUMPY:
        return value.numpy()
    width, count = NOT_NUMPY[dtype][1], math.prod(value.shape())
    data = ctypes.string_at(value.data_ptr(), (count * width + 7) // 8) if count else b""
    flat: Any = np.frombuffer(data, np.uint16 if width == 16 else np.uint8)
    if width < 8:
        lanes = [(flat >> (i * width)) & ((1 << width) - 1) for i in range(8 // width)]
        flat = np.stack(lanes, axis=-1).reshape(-1)[:count]
    return flat.reshape(value.shape())


def judge(got: Any, want: Any, tolerance: float = TOLERANCE) -> tuple[bool, str]:
    """(do they agree, how they differ); `tolerance` is a share of the largest magnitude in `want`."""
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
