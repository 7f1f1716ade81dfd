"""CONVERTED INPUTS OUTPUTS: on the CPU in float32, one thread; pictures go in and come out as NHWC."""  # noqa: E501

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
feeds = {}
for i in manifest["inputs"]:
    value, wanted = np.load(inputs / i["npy"]), list(run.get_input_details()[i["name"]]["shape"])
    feeds[i["name"]] = (
        value if value.ndim < 3 or list(value.shape) == wanted else np.moveaxis(value, 1, -1)
    )
values = run(**feeds)
for o in manifest["outputs"]:
    value = values[o["name"]]
    np.save(
        outputs / o["npy"], value if list(value.shape) == o["shape"] else np.moveaxis(value, -1, 1)
    )
