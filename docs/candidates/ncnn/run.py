"""CONVERTED INPUTS OUTPUTS [vulkan]: in float32; ncnn has no batch axis, and pnnx calls the blobs in0, out0 …"""

import json
import sys
from pathlib import Path

try:
    import ncnn
    import numpy as np
except ImportError as error:
    sys.stderr.write(f"{error}\n")
    sys.exit(126)  # no fault of the model: subcut stops

converted, inputs, outputs = map(Path, sys.argv[1:4])
manifest = json.loads((inputs / "manifest.json").read_text())
net = ncnn.Net()
net.opt.use_vulkan_compute = sys.argv[4:] == ["vulkan"]
for option in ("use_fp16_packed", "use_fp16_storage", "use_fp16_arithmetic", "use_bf16_storage"):
    setattr(net.opt, option, False)  # all but the last are on by default
if net.load_param(str(converted / "m.ncnn.param")) or net.load_model(str(converted / "m.ncnn.bin")):
    sys.exit(125)  # a layer that this ncnn does not have
extractor = net.create_extractor()
for k, i in enumerate(manifest["inputs"]):
    extractor.input(f"in{k}", ncnn.Mat(np.load(inputs / i["npy"]), batch_index=0).clone())
for k, o in enumerate(manifest["outputs"]):
    code, value = extractor.extract(f"out{k}")
    np.save(outputs / o["npy"], np.array(value).reshape(o["shape"]))
