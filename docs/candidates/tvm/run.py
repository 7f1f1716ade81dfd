"""CONVERTED INPUTS OUTPUTS: the library that convert.py made, on this CPU."""

import json
import sys
from pathlib import Path

try:
    import numpy as np
    import tvm
    from tvm import relax
except ImportError as error:
    sys.stderr.write(f"{error}\n")
    sys.exit(126)  # no fault of the model: subcut stops

converted, inputs, outputs = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
manifest = json.loads((inputs / "manifest.json").read_text())
machine = relax.VirtualMachine(tvm.runtime.load_module(f"{converted}/model.so"), tvm.cpu())
feeds = [tvm.runtime.tensor(np.load(inputs / i["npy"])) for i in manifest["inputs"]]
values = machine["main"](*feeds)
for o, value in zip(
    manifest["outputs"], [values] if isinstance(values, tvm.runtime.Tensor) else values, strict=True
):
    np.save(outputs / o["npy"], value.numpy())
