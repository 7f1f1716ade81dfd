"""MODEL INPUTS OUTPUTS, on the board: here onnxruntime stands for what you run there."""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime

model, inputs, outputs = map(Path, sys.argv[1:])
manifest = json.loads((inputs / "manifest.json").read_text())
feeds = {i["name"]: np.load(inputs / i["npy"]) for i in manifest["inputs"]}
try:
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
except Exception as error:  # noqa: BLE001
    sys.stderr.write(f"{error}\n")
    sys.exit(125)  # this model cannot be tested here
names = [o["name"] for o in manifest["outputs"]]
for o, value in zip(manifest["outputs"], session.run(names, feeds), strict=True):
    np.save(outputs / o["npy"], value)
