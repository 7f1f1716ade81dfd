"""MODEL CONVERTED: pnnx writes a dozen files beside the model that it is given, so it is given a copy in a folder."""

import shutil
import subprocess
import sys
from pathlib import Path

try:
    import onnx
except ImportError as error:
    sys.stderr.write(f"{error}\n")
    sys.exit(126)  # no fault of the model: subcut stops

pnnx = Path(sys.executable).with_name("pnnx")
if not pnnx.exists():
    sys.exit(127)

TYPES = {1: "f32", 6: "i32", 7: "i64", 10: "f16"}
model, folder = map(Path, sys.argv[1:])
folder.mkdir()
shutil.copy(model, folder / "m.onnx")
shapes = []
for v in onnx.load(model, load_external_data=False).graph.input:
    t = v.type.tensor_type
    shapes.append(f"[{','.join(str(d.dim_value) for d in t.shape.dim)}]{TYPES[t.elem_type]}")
subprocess.run([pnnx, "m.onnx", f"inputshape={','.join(shapes)}", "fp16=0"], cwd=folder, check=True)
sys.exit(not (folder / "m.ncnn.param").exists())  # pnnx ends with 0 whatever happens
