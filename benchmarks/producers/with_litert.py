# /// script
# dependencies = ["tensorflow-cpu==2.21.0", "tf2onnx==1.17.0", "ai-edge-litert==2.3.0"]
# [tool.subcut]
# says = "ai-edge-litert 2.3.0, preserve-all-tensors, of a TFLite model; MODEL is tf2onnx 1.17.0's of it"  # noqa: E501
# ///
"""LiteRT with all tensors preserved: each as `.npy`, by TFLite's name; MODEL is the same TFLite file through tf2onnx.

The networks are made with Keras, channels last (SiLU: tf2onnx knows no GELU of TFLite); the weights of one Conv or
Dense of the faulty one are one channel off.
"""  # noqa: E501

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ |= {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}

import numpy as np
import tensorflow as tf
import tf2onnx
from ai_edge_litert.interpreter import Interpreter
from tensorflow import keras

layers = keras.layers


def residual() -> keras.Model:
    """Pictures (1, 24, 24, 3) to logits (1, 10)."""
    x = made = keras.Input((24, 24, 3), 1, name="x")
    x = layers.MaxPooling2D(2)(normal(layers.Conv2D(8, 3, padding="same")(x)))
    for width, stride in ((8, 1), (16, 2)):
        y = normal(layers.Conv2D(width, 3, stride, padding="same")(x))
        y = layers.Conv2D(width, 3, padding="same")(y)
        x = layers.ReLU()(layers.Add()([y, layers.Conv2D(width, 1, stride)(x)]))
    x = layers.Concatenate()(
        [layers.Conv2D(8, 1)(x), layers.Conv2D(8, 3, padding="same", activation="silu")(x)]
    )
    return keras.Model(made, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))


def normal(x: tf.Tensor) -> tf.Tensor:
    """BatchNorm and Relu."""
    return layers.ReLU()(layers.BatchNormalization()(x))


def transformer() -> keras.Model:
    """Vectors (1, 12, 16) to logits (1, 10): two layers."""
    x = made = keras.Input((12, 16), 1, name="x")
    x = layers.Dense(32)(x)
    for _ in range(2):
        y = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(2, 16)(y, y)])
        y = layers.Dense(32)(layers.Dense(64, activation="silu")(layers.LayerNormalization()(x)))
        x = layers.Add()([x, y])
    return keras.Model(
        made, layers.Dense(10)(layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x)))
    )


def converted(name: str, seed: int, *, faulty: bool) -> bytes:
    """A network as TFLite."""
    keras.backend.clear_session()  # or names are numbered on
    keras.utils.set_random_seed(seed)
    net = {"residual": residual, "transformer": transformer}[name]()
    if faulty:
        weights = [w for w in net.weights if w.path.endswith("kernel")]
        wrong = weights[np.random.default_rng(seed).integers(len(weights))]
        wrong.assign(np.roll(wrong.numpy(), 1, -1))
    return tf.lite.TFLiteConverter.from_keras_model(net).convert()


def main(place: Path, state: str, out: Path) -> None:
    """Convert, run, write; MODEL and a wrong one beside the recording."""
    seed = int((place / "seed").read_text())
    for each in ("healthy", "faulty"):
        (out.parent / f"{each}.tflite").write_bytes(
            converted(place.name, seed, faulty=each == "faulty")
        )
        tf2onnx.convert.from_tflite(
            str(out.parent / f"{each}.tflite"),
            opset=17,
            output_path=str(out.parent / f"{each}.onnx"),
        )
    interpreter = Interpreter(
        str(out.parent / f"{state}.tflite"), experimental_preserve_all_tensors=True
    )
    interpreter.allocate_tensors()
    fed = interpreter.get_input_details()[0]
    x = np.random.default_rng(seed).standard_normal(fed["shape"], np.float32)
    np.save(out.parent / "x.npy", x)
    interpreter.set_tensor(fed["index"], x)
    interpreter.invoke()
    for tensor in interpreter.get_tensor_details():
        try:
            value = interpreter.get_tensor(tensor["index"])
        except ValueError:  # a tensor of a delegate, without a value
            continue
        np.save(out / f"{tensor['name'].replace('/', '_')}.npy", value)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
