"""MODEL INPUTS OUTPUTS: the model as a torch module (onnx2torch), run on the CPU in float32."""

import json
import sys
from pathlib import Path
from unittest.mock import Mock

model, inputs, outputs = map(Path, sys.argv[1:])
try:
    import numpy as np
    import torch
    from torch.utils._pytree import tree_leaves

    lacking = Mock(
        side_effect=NotImplementedError("torchvision is not installed")
    )  # wanted for NMS and RoiAlign
    sys.modules["torchvision"] = sys.modules["torchvision.ops"] = Mock(
        ops=lacking, nms=lacking, roi_align=lacking
    )
    import onnx2torch
except ImportError as error:
    sys.stderr.write(f"{error}\n")
    sys.exit(126)  # no fault of the model: subcut stops
manifest = json.loads((inputs / "manifest.json").read_text())
feeds = [torch.from_numpy(np.load(inputs / i["npy"])) for i in manifest["inputs"]]
try:
    with torch.inference_mode():
        values = onnx2torch.convert(str(model)).eval()(*feeds)  # in the order of the model's inputs
except NotImplementedError as error:
    sys.stderr.write(f"{error}\n")
    sys.exit(125)  # an operator that is not known
for o, value in zip(manifest["outputs"], tree_leaves(values), strict=True):
    np.save(outputs / o["npy"], value.numpy())
