"""CONVERTED INPUTS OUTPUTS: on the CPU in float32, one thread; inputs in ONNX's layout."""

import json
import sys
from pathlib import Path

try:
    import numpy as np
    from ai_edge_litert.interpreter import Interpreter
except ImportError as error:
    sys.stderr.write(f"{error}\n")
    sys.exit(126)  # no fault of the model: subcut stops

converted, inputs, outputs = map(Path, sys.argv[1:])
manifest = json.loads((inputs / "manifest.json").read_text())
interpreter = Interpreter(str(converted / "m_float32.tflite"), num_threads=1)
interpreter.allocate_tensors()
run = interpreter.get_signature_runner()


def find(tensor, names):
    """Return what onnx2tf calls a tensor: it writes `stem/pool:0` as `stem/pool__0`."""
    name = tensor["name"]
    return name if name in names else name.replace(":", "__")


def to_declared(value, output, operator):
    """Return an output in ONNX's layout: TFLite's Convs and pools return NHWC."""
    moved = np.moveaxis(value, -1, 1) if value.ndim > 2 else value
    fits, fits_moved = (list(v.shape) == output["shape"] for v in (value, moved))
    return moved if fits_moved and (not fits or operator.endswith("_2D")) else value


report = json.loads((converted / "m_tensor_correspondence_report.json").read_text())
operators = {r["resolved_tflite_tensor_name"]: r["producer_op_type"] for r in report["records"]}
details = run.get_input_details()
values = run(**{find(i, details): np.load(inputs / i["npy"]) for i in manifest["inputs"]})
for o in manifest["outputs"]:
    name = find(o, values)
    np.save(outputs / o["npy"], to_declared(values[name], o, operators.get(name) or ""))
