"""`subcut convert` on models that TensorFlow and Paddle themselves write -> a line each: do the two
agree?

    python -m benchmarks.conversions          in build/conversions/; installs both into subcut's own
    cache

A frozen graph, a SavedModel, Keras' two formats, float and int8 TensorFlow Lite of one small
network, and a network of Paddle, each converted as a user would.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.report import table
from subgraph.environments.installation import Installation, make
from subgraph.origins.converters import PADDLE, TENSORFLOW

BUILD = Path("build/conversions")
SUBCUT = Path(sys.executable).with_name("subcut")
OF_TENSORFLOW = """
import numpy as np, tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2 as frozen
tf.keras.utils.set_random_seed(7)
L = tf.keras.layers
i = L.Input((16, 16, 3), batch_size=1, name="image")
x = L.Conv2D(8, 3, padding="same", activation="relu", name="stem")(i)
y = L.DepthwiseConv2D(3, padding="same", activation="relu6", name="depth")(x)
z = L.Conv2D(8, 3, padding="same", activation="sigmoid", name="gate")(x)
x = L.Add(name="add")([x, L.Multiply(name="mul")([y, z])])
x = L.Concatenate(name="join")([L.Conv2D(4, 1, name="left")(x), L.AveragePooling2D(3, 1, "same", name="right")(x)])
x = L.GlobalAveragePooling2D(name="mean")(L.LeakyReLU(name="leaky")(L.UpSampling2D(2, name="up")(x)))
m = tf.keras.Model(i, L.Softmax(name="prob")(L.Dense(10, name="classes")(x)))
m.save("net.keras"); m.save("net.h5"); m.export("saved")
f = frozen(tf.function(m).get_concrete_function(tf.TensorSpec((1, 16, 16, 3))))
tf.io.write_graph(f.graph, ".", "frozen.pb", as_text=False)
lite = tf.lite.TFLiteConverter.from_keras_model(m)
open("float.tflite", "wb").write(lite.convert())
lite.optimizations = [tf.lite.Optimize.DEFAULT]
rng = np.random.default_rng(0)
lite.representative_dataset = lambda: ([rng.random((1, 16, 16, 3), np.float32)] for _ in range(20))
lite.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
lite.inference_input_type = lite.inference_output_type = tf.int8
open("int8.tflite", "wb").write(lite.convert())
"""  # noqa: E501
OF_PADDLE = """
import paddle, paddle.nn as nn
paddle.seed(3)
net = nn.Sequential(nn.Conv2D(3, 8, 3, padding=1), nn.BatchNorm2D(8), nn.ReLU(), nn.MaxPool2D(2), nn.Conv2D(8, 4, 1),
                    nn.AdaptiveAvgPool2D(1), nn.Flatten(), nn.Linear(4, 10), nn.Softmax())
net.eval()
image = paddle.static.InputSpec([1, 3, 16, 16], "float32", name="image")
paddle.jit.save(net, "paddle/model", input_spec=[image])
"""  # noqa: E501
MODELS = ("frozen.pb", "saved", "net.keras", "net.h5", "float.tflite", "int8.tflite", "paddle")
SAYS = {0: "agrees", 1: "disagrees", 5: "not checked"}


def main() -> None:
    shutil.rmtree(BUILD, ignore_errors=True)
    BUILD.mkdir(parents=True)
    for converter, code in ((TENSORFLOW, OF_TENSORFLOW), (PADDLE, OF_PADDLE)):
        print(f"installing {' '.join(converter.requirements)}", flush=True)
        python = make(Installation(converter.requirements))
        subprocess.run([python, "-c", code], cwd=BUILD, check=True, capture_output=True)
    rows = []
    for model in MODELS:
        begin = time.perf_counter()
        target = f"{model.replace('.', '_')}.onnx"
        done = _subcut("convert", model, "-o", target, "--force")
        seconds = time.perf_counter() - begin
        matched = next(
            (line for line in done.stdout.splitlines() if " matched" in line), done.stderr[-200:]
        )
        rows.append(
            [
                model,
                SAYS.get(done.returncode, f"code {done.returncode}"),
                matched,
                f"{seconds:.0f} s",
            ]
        )
        print(rows[-1], flush=True)
    print(table(["model", "says", "tensors", "time"], rows))


def _subcut(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([SUBCUT, *words], cwd=BUILD, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    main()
