"""MODEL INPUTS OUTPUTS: the vendor's simulator on x86, in one step: it runs what it just built, no .rknn file."""  # noqa: E501

import json
import sys
from pathlib import Path

try:
    import numpy as np
    from rknn.api import RKNN
except ImportError as error:
    sys.stderr.write(f"{error}\n")
    sys.exit(126)  # no fault of the model: subcut stops

model, inputs, outputs = map(Path, sys.argv[1:])
manifest = json.loads((inputs / "manifest.json").read_text())
fed = manifest["inputs"]
rknn = RKNN()
rknn.config(target_platform="rk3588")  # without quantization the NPU computes in fp16
names, wanted = [i["name"] for i in fed], [o["name"] for o in manifest["outputs"]]
if rknn.load_onnx(
    str(model), inputs=names, input_size_list=[i["shape"] for i in fed], outputs=wanted
):
    sys.exit(125)  # an operator that it does not know
if rknn.build(do_quantization=False) or rknn.init_runtime():
    sys.exit(125)
feeds = [np.load(inputs / i["npy"]) for i in fed]
values = rknn.inference(inputs=feeds, data_format=["nchw"] * len(feeds))
for o, value in zip(manifest["outputs"], values, strict=True):
    np.save(outputs / o["npy"], value)
