"""MODEL CONVERTED: onnx2tf writes m_float32.tflite (and m_float16.tflite) into a folder; inputs keep their layout."""  # noqa: E501

import contextlib
import shutil
import sys
from pathlib import Path

try:
    import onnx
    import onnx2tf
except ImportError as error:
    sys.stderr.write(f"{error}\n")
    sys.exit(126)  # no fault of the model: subcut stops

model, folder = map(Path, sys.argv[1:])
folder.mkdir()
shutil.copy(model, folder / "m.onnx")
graph = onnx.load(model, load_external_data=False).graph
inputs = {i.name for i in graph.input} - {t.name for t in graph.initializer}
with contextlib.redirect_stdout(sys.stderr):
    onnx2tf.convert(
        input_onnx_file_path=str(folder / "m.onnx"),
        output_folder_path=str(folder),
        copy_onnx_input_output_names_to_tflite=True,
        keep_shape_absolutely_input_names=[name.replace(":", "__") for name in inputs],
        non_verbose=True,
    )
sys.exit(not (folder / "m_float32.tflite").exists())
