"""MODEL INPUTS OUTPUTS: the model by onnx2torch and ExecuTorch, run by XNNPACK's kernels on the CPU in float32."""  # noqa: E501

import json
import sys
from pathlib import Path
from unittest.mock import Mock

sys.modules["torchvision"] = sys.modules["torchvision.ops"] = (
    Mock()
)  # onnx2torch imports it for NMS and RoiAlign
try:
    import numpy as np
    import onnx2torch
    import torch
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower
    from executorch.runtime import Runtime
except ImportError as error:
    sys.stderr.write(f"{error}\n")
    sys.exit(126)  # no fault of the model: subcut stops
model, inputs, outputs = map(Path, sys.argv[1:])
manifest = json.loads((inputs / "manifest.json").read_text())
feeds = [torch.from_numpy(np.load(inputs / i["npy"])) for i in manifest["inputs"]]
try:
    exported = torch.export.export(onnx2torch.convert(str(model)).eval(), tuple(feeds))
    lowered = to_edge_transform_and_lower(
        exported, partitioner=[XnnpackPartitioner()]
    ).to_executorch()
except Exception as error:  # noqa: BLE001
    sys.stderr.write(f"{type(error).__name__}: {error}\n")
    sys.exit(125)  # it is not converted: this says nothing about values
values = Runtime.get().load_program(lowered.buffer).load_method("forward").execute(feeds)
for o, value in zip(manifest["outputs"], values, strict=True):
    np.save(outputs / o["npy"], value.numpy())
