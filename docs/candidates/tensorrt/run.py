"""CONVERTED INPUTS OUTPUTS: trtexec, fed with the raw files; its JSON of outputs back to .npy."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

converted, inputs, outputs = map(Path, sys.argv[1:])
manifest = json.loads((inputs / "manifest.json").read_text())
feeds = ",".join(f"'{i['name']}':{inputs / i['bin']}" for i in manifest["inputs"])
answer = outputs / "answer.json"
words = [f"--loadEngine={converted}", f"--loadInputs={feeds}", f"--exportOutput={answer}"]
try:
    done = subprocess.run(
        ["trtexec", *words, "--iterations=1", "--warmUp=0", "--duration=0"], check=False
    )
except FileNotFoundError:
    sys.exit(127)  # no fault of the model: subcut stops
if done.returncode:
    sys.exit(128 - done.returncode if done.returncode < 0 else 1)  # a signal, or crashed
found = {o["name"]: o for o in json.loads(answer.read_text())}
answer.unlink()
for o in manifest["outputs"]:
    dims = [int(d) for d in found[o["name"]]["dimensions"].split("x")]
    np.save(
        outputs / o["npy"], np.array(found[o["name"]]["values"]).reshape(dims).astype(o["dtype"])
    )
