"""CONVERTED INPUTS OUTPUTS: the compiled module on this CPU, on one thread."""

import json
import sys
from pathlib import Path

try:
    import iree.runtime as ireert
    import numpy as np
except ImportError as error:
    sys.stderr.write(f"{error}\n")
    sys.exit(126)  # no fault of the model: subcut stops

converted, inputs, outputs = map(Path, sys.argv[1:])
manifest = json.loads((inputs / "manifest.json").read_text())
module = ireert.load_vm_flatbuffer_file(str(converted), driver="local-sync")
name = next(
    n
    for n in module.vm_module.function_names
    if not n.endswith("$async") and not n.startswith("__")
)
values = getattr(module, name)(*(np.load(inputs / i["npy"]) for i in manifest["inputs"]))
for o, value in zip(
    manifest["outputs"], values if isinstance(values, tuple) else [values], strict=True
):
    np.save(outputs / o["npy"], value.to_host())
