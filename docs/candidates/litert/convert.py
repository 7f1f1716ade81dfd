"""MODEL CONVERTED: onnx2tf writes m_float32.tflite (and m_float16.tflite) into a folder; pictures become NHWC."""  # noqa: E501

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

onnx2tf = Path(sys.executable).with_name("onnx2tf")
if not onnx2tf.exists():
    sys.exit(127)  # no fault of the model: subcut stops

model, folder = map(Path, sys.argv[1:])
folder.mkdir()
shutil.copy(model, folder / "m.onnx")
# It runs the model on this file to see which transpositions it needs, and downloads it where it
# does not lie here.
sample = np.random.default_rng(0).random((20, 128, 128, 3), np.float32)
np.save(folder / "calibration_image_sample_data_20x128x128x3_float32.npy", sample)
words = ["-i", "m.onnx", "-o", ".", "--copy_onnx_input_output_names_to_tflite", "--non_verbose"]
done = subprocess.run([sys.executable, onnx2tf, *words], cwd=folder, check=False)
sys.exit(not (folder / "m_float32.tflite").exists() or done.returncode != 0)
