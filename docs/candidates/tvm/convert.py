"""MODEL CONVERTED: imported by relax, compiled for this CPU, written as a library into a folder."""

import sys
from pathlib import Path

try:
    import onnx
    import tvm
    from tvm.relax.frontend.onnx import from_onnx
except ImportError as error:
    sys.stderr.write(f"{error}\n")
    sys.exit(126)  # no fault of the model: subcut stops

model = onnx.load(sys.argv[1])
shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.input}
module = from_onnx(model, shape_dict=shapes)  # what it raises ends with 1: refused
library = tvm.compile(module, tvm.target.Target("llvm"))
Path(sys.argv[2]).mkdir()
library.export_library(sys.argv[2] + "/model.so")  # TVM goes by the suffix
