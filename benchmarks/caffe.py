"""Caffe models read by subcut, beside OpenCV 4: every layer's values, worst relative error below
1e-5.

    python -m benchmarks.caffe --opencv VENV/bin/python [--prototxts FOLDER]

`--opencv`: a Python that has opencv-python-headless<5 (version 5 reads no Caffe). Nets of our own
cover all layers that OpenCV has and computes as Caffe does (it has no ArgMax, Bias, Log, Threshold,
Tile, and ignores LRN's k); the others are tested beside numpy. FOLDER holds public prototxts, which
are not ours to ship:

    alexnet, googlenet   https://github.com/BVLC/caffe
                         models/bvlc_*/deploy.prototxt
    resnet50             https://github.com/KaimingHe/deep-residual-networks
                         prototxt/ResNet-50-deploy.prototxt
    squeezenet           https://github.com/forresti/SqueezeNet
                         SqueezeNet_v1.1/deploy.prototxt
    mobilenet            https://github.com/shicai/MobileNet-Caffe
                         mobilenet_deploy.prototxt
    mobilenet_ssd        https://github.com/chuanqi305/MobileNet-SSD           deploy.prototxt
    fcn8s                https://github.com/shelhamer/fcn.berkeleyvision.org
                         voc-fcn8s/deploy.prototxt

The error of a tensor is its largest difference over its largest magnitude. Weights are drawn from a
seed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort

from fixtures.caffe import layer, net, resnet50, write
from subgraph.graph import protobuf
from subgraph.origins.caffe.conversion import CaffeModel
from subgraph.types import Array

LIMIT = 1e-5
LARGEST_INPUT = 300  # of a public segmentation net, whose 500 pixels take OpenCV minutes

# OpenCV may compute in place, so that only the layers asked for in one run are certain: they are
# asked one by one.
OPENCV = """
import sys, numpy as np, cv2
proto, model, feeds, names, out = sys.argv[1:]
net = cv2.dnn.readNetFromCaffe(proto, model)
net.setPreferableBackend(cv2.dnn.DNN_BACKEND_OPENCV)
net.enableFusion(False)
if hasattr(net, "enableWinograd"):
    net.enableWinograd(False)
for name, value in np.load(feeds).items():
    net.setInput(value, name)
values = net.forward(np.load(names).tolist())
np.savez(out, *values)
"""


def small_nets() -> Iterator[tuple[str, str]]:
    """(name, prototxt) of nets that hold each kind of layer, at odd sizes too."""
    x = (2, 6, 13, 11)
    for pool in ("MAX", "AVE"):
        for size in (7, 8, 11, 14):
            windows = [(2, 2, 0), (3, 2, 0), (3, 2, 1), (3, 1, 1), (5, 3, 2), (2, 1, 1), (3, 3, 1)]
            layers = [
                layer(
                    "Pooling",
                    f"p{k}_{s}_{p}",
                    "x",
                    pooling_param={"pool": pool, "kernel_size": k, "stride": s, "pad": p},
                )
                for k, s, p in windows
            ]
            layers.append(
                layer(
                    "Pooling",
                    "uneven",
                    "x",
                    pooling_param={
                        "pool": pool,
                        "kernel_h": 3,
                        "kernel_w": 2,
                        "stride_h": 2,
                        "stride_w": 1,
                        "pad_h": 1,
                        "pad_w": 0,
                    },
                )
            )
            layers.append(
                layer(
                    "Pooling", "global", "x", pooling_param={"pool": pool, "global_pooling": True}
                )
            )
            yield (
                f"{pool.lower()} pooling {size}×{size + 1}",
                net(*layers, x=(1, 3, size, size + 1)),
            )
    yield (
        "convolution",
        net(
            *(
                layer(
                    "Convolution",
                    name,
                    "x",
                    convolution_param={"num_output": 6, "kernel_size": 3, **more},
                )
                for name, more in {
                    "plain": {},
                    "grouped": {"group": 2, "pad": 1},
                    "depthwise": {"group": 6, "stride": 2},
                    "dilated": {"dilation": 2, "pad": 2},
                }.items()
            ),
            layer(
                "Convolution",
                "uneven",
                "x",
                convolution_param={
                    "num_output": 4,
                    "kernel_h": 1,
                    "kernel_w": 5,
                    "pad_h": 0,
                    "pad_w": 2,
                    "stride_h": 2,
                    "stride_w": 1,
                    "bias_term": False,
                },
            ),
            layer(
                "Deconvolution",
                "up",
                "x",
                convolution_param={"num_output": 4, "kernel_size": 4, "stride": 2, "pad": 1},
            ),
            layer(
                "Deconvolution",
                "up_grouped",
                "x",
                convolution_param={
                    "num_output": 6,
                    "kernel_size": 4,
                    "stride": 2,
                    "group": 6,
                    "bias_term": False,
                },
            ),
            x=x,
        ),
    )
    yield (
        "element by element",
        net(
            layer("ReLU", "relu", "x"),
            layer("ReLU", "leaky", "x", relu_param={"negative_slope": 0.1}),
            layer("PReLU", "prelu", "x"),
            layer("ELU", "elu", "x", elu_param={"alpha": 1}),
            layer("Sigmoid", "sigmoid", "x"),
            layer("TanH", "tanh", "x"),
            layer("AbsVal", "abs", "x"),
            layer("BNLL", "bnll", "x"),
            layer("Power", "power", "abs", power_param={"power": 1.5, "scale": 2, "shift": 0.5}),
            layer("Power", "line", "x", power_param={"scale": -3, "shift": 1}),
            layer("Exp", "exp", "x", exp_param={"base": 2, "scale": 0.5, "shift": 1}),
            layer("Dropout", "dropout", "x", dropout_param={"dropout_ratio": 0.3}),
            layer("Scale", "scale", "x", scale_param={}),
            layer("Scale", "scale_bias", "x", scale_param={"bias_term": True}),
            layer("BatchNorm", "bn", "x", batch_norm_param={"eps": 1e-3}),
            x=x,
        ),
    )
    yield (
        "normalization",
        net(
            layer("LRN", "lrn", "x", lrn_param={"local_size": 3, "alpha": 0.5, "beta": 0.75}),
            layer(
                "LRN",
                "within",
                "x",
                lrn_param={"local_size": 3, "alpha": 0.5, "norm_region": "WITHIN_CHANNEL"},
            ),
            layer("MVN", "mvn", "x", mvn_param={}),
            layer("MVN", "mvn_across", "x", mvn_param={"across_channels": True}),
            layer("MVN", "mvn_mean", "x", mvn_param={"normalize_variance": False}),
            layer("Softmax", "softmax", "x"),
            layer("Softmax", "softmax_last", "x", softmax_param={"axis": -1}),
            layer(
                "Normalize",
                "normalize",
                "x",
                norm_param={"across_spatial": False, "channel_shared": False},
            ),
            x=x,
        ),
    )
    yield (
        "shapes",
        net(
            layer("Concat", "concat", "x y"),
            layer("Concat", "concat_rows", "x y", concat_param={"axis": 2}),
            layer("Slice", "slice", "x", "s0 s1 s2"),
            layer("Eltwise", "slice_used", "s0 s1 s2", eltwise_param={"coeff": [1, 2, 3]}),
            layer("Slice", "slice_at", "x", "t0 t1", slice_param={"axis": 1, "slice_point": 2}),
            layer("Concat", "slice_back", "t1 t0"),
            layer("Crop", "crop", "x small", crop_param={"axis": 2, "offset": [1, 2]}),
            layer("Flatten", "flatten", "x"),
            layer("Flatten", "flatten_end", "x", flatten_param={"axis": 2}),
            layer("Permute", "permute", "x", permute_param={"order": [0, 2, 3, 1]}),
            layer("Reshape", "reshape", "x", reshape_param={"shape": {"dim": [0, 2, -1]}}),
            layer("Eltwise", "sum", "x y", eltwise_param={"operation": "SUM", "coeff": [2, -1]}),
            layer("Eltwise", "max", "x y z", eltwise_param={"operation": "MAX"}),
            layer("Eltwise", "product", "x y z", eltwise_param={"operation": "PROD"}),
            layer("Split", "split", "x", "a b"),
            layer("Eltwise", "split_used", "a b", eltwise_param={"operation": "PROD"}),
            layer("InnerProduct", "fc", "x", inner_product_param={"num_output": 5}),
            layer(
                "InnerProduct",
                "fc_fc",
                "fc",
                inner_product_param={"num_output": 7, "bias_term": False},
            ),
            x=x,
            y=x,
            z=x,
            small=(2, 6, 5, 4),
        ),
    )
    yield (
        "upsampling",
        net(
            layer("Interp", "zoom", "x", interp_param={"zoom_factor": 2}),
            layer("Interp", "size", "x", interp_param={"height": 21, "width": 30}),
            x=(1, 3, 9, 7),
        ),
    )
    yield "ssd head", ssd_head()


def ssd_head(classes: int = 4) -> str:
    """Two maps of features, their boxes, and what is detected."""
    lines: list[str] = []
    names: dict[str, list[str]] = {"loc": [], "conf": [], "prior": []}
    for m, (size, ratios) in enumerate([(30, [2]), (60, [2, 3])]):
        lines.append(
            layer(
                "Convolution",
                f"map{m}",
                "data" if m == 0 else f"map{m - 1}",
                convolution_param={
                    "num_output": 8,
                    "kernel_size": 3,
                    "stride": 4 if m == 0 else 2,
                    "pad": 1,
                },
            )
        )
        count = 2 + 2 * len(ratios)
        for head, outputs in (("loc", 4 * count), ("conf", classes * count)):
            top = f"{head}{m}"
            lines.append(
                layer(
                    "Convolution",
                    top,
                    f"map{m}",
                    convolution_param={"num_output": outputs, "kernel_size": 3, "pad": 1},
                )
            )
            lines.append(
                layer("Permute", f"{top}_perm", top, permute_param={"order": [0, 2, 3, 1]})
            )
            lines.append(layer("Flatten", f"{top}_flat", f"{top}_perm", flatten_param={"axis": 1}))
            names[head].append(f"{top}_flat")
        lines.append(
            layer(
                "PriorBox",
                f"prior{m}",
                f"map{m} data",
                prior_box_param={
                    "min_size": size,
                    "max_size": 2 * size,
                    "aspect_ratio": ratios,
                    "flip": True,
                    "clip": False,
                    "variance": [0.1, 0.1, 0.2, 0.2],
                    "offset": 0.5,
                },
            )
        )
        names["prior"].append(f"prior{m}")
    lines.append(layer("Concat", "loc", " ".join(names["loc"])))
    lines.append(layer("Concat", "conf", " ".join(names["conf"])))
    lines.append(layer("Concat", "prior", " ".join(names["prior"]), concat_param={"axis": 2}))
    lines.append(
        layer("Reshape", "conf_reshape", "conf", reshape_param={"shape": {"dim": [0, -1, classes]}})
    )
    lines.append(layer("Softmax", "conf_softmax", "conf_reshape", softmax_param={"axis": 2}))
    lines.append(layer("Flatten", "conf_flat", "conf_softmax"))
    lines.append(
        layer(
            "DetectionOutput",
            "detection",
            "loc conf_flat prior",
            detection_output_param={
                "num_classes": classes,
                "share_location": True,
                "background_label_id": 0,
                "code_type": "CENTER_SIZE",
                "keep_top_k": 20,
                "confidence_threshold": 0.3,
                "nms_param": {"nms_threshold": 0.45, "top_k": 40},
            },
        )
    )
    return net(*lines, data=(1, 3, 64, 64))


def compare(prototxt: str, python: str, seed: int, folder: Path) -> dict[str, float]:
    """Layer -> its error beside OpenCV; layers that OpenCV does not keep are left out."""
    path = write(prototxt, folder / "net.prototxt", seed)
    weights = path.with_suffix(".caffemodel")
    converted = CaffeModel(path, weights).convert()
    tops = {
        c.text.name: c.tops[0] for c in converted.layers if len(c.tops) == 1
    }  # OpenCV gives one output per name
    model = folder / "net.onnx"
    declared = {v.name for v in converted.model.graph.output}
    converted.model.graph.output.extend(
        onnx.ValueInfoProto(name=n) for n in tops.values() if n not in declared
    )
    protobuf.write(converted.model, weights, model, external=False)
    rng = np.random.default_rng(seed)
    settings = ort.SessionOptions()
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model, settings)
    feeds = {i.name: rng.standard_normal(i.shape).astype(np.float32) for i in session.get_inputs()}
    unread = _inputs(prototxt) & converted.shapes.keys() - feeds.keys()  # whose shape alone is used
    extra = {n: np.zeros(converted.shapes[n], np.float32) for n in unread}
    ours = dict(zip(tops, session.run([*tops.values()], feeds), strict=True))
    theirs = _opencv(path, weights, extra | feeds, [*tops], python, folder)
    for found in (ours, theirs):  # Caffe orders rows by class and score, OpenCV by score
        tables = {n: v for n, v in found.items() if v.shape[:2] + v.shape[3:] == (1, 1, 7)}
        found |= {n: v[:, :, np.argsort(-v[0, 0, :, 2])] for n, v in tables.items()}
    return {name: error(ours[name], value) for name, value in theirs.items()}


def _inputs(prototxt: str) -> set[str]:
    return {line.split('"')[1] for line in prototxt.splitlines() if line.startswith("input: ")}


def error(ours: Array, theirs: Array) -> float:
    """The largest difference over the largest magnitude; shapes may differ by ones."""
    if ours.size != theirs.size:
        return float("inf")
    difference = np.abs(ours.reshape(-1) - theirs.reshape(-1)).max(initial=0)
    return float(difference / max(np.abs(theirs).max(initial=0), 1e-30)) if difference else 0.0


def _opencv(
    path: Path, weights: Path, feeds: dict[str, Array], names: list[str], python: str, folder: Path
) -> dict[str, Array]:
    np.savez(folder / "feeds.npz", **feeds)  # type: ignore[arg-type]
    np.save(folder / "names.npy", names)
    files = (path, weights, folder / "feeds.npz", folder / "names.npy", folder / "out.npz")
    words = [python, "-c", OPENCV, *map(str, files)]
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    env |= {"OPENCV_DNN_DISABLE_MEMORY_OPTIMIZATIONS": "1"}
    done = subprocess.run(words, check=False, capture_output=True, text=True, env=env)
    if done.returncode:
        raise SystemExit(f"OpenCV: {done.stderr.strip().splitlines()[-1]}")
    values = np.load(folder / "out.npz")
    return dict(zip(names, (values[f"arr_{k}"] for k in range(len(names))), strict=True))


def main() -> None:
    """Print a line for each net: layers, worst error and its layer, seconds."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.caffe", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--opencv", required=True, metavar="PYTHON")
    parser.add_argument("--prototxts", type=Path, metavar="FOLDER")
    parser.add_argument("--only", default="")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    nets = [*small_nets(), ("ResNet-50, ours", resnet50())]
    if options.prototxts:
        nets += [
            (p.stem, p.read_text(encoding="utf-8"))
            for p in sorted(options.prototxts.glob("*.prototxt"))
        ]
    for name, prototxt in nets:
        if options.only in name:
            prototxt = prototxt.replace(
                "dim: 500 dim: 500", f"dim: {LARGEST_INPUT} dim: {LARGEST_INPUT}"
            )
            with tempfile.TemporaryDirectory() as folder:
                start = time.monotonic()
                errors = compare(prototxt, options.opencv, options.seed, Path(folder))
            worst = max(errors, key=lambda n: errors[n])
            took = time.monotonic() - start
            print(
                f"{name:<24} {len(errors):>4} layers   worst {errors[worst]:.1e} {worst}  "
                f" {took:.0f} s"
            )
            for layer_name, value in errors.items():
                if value > LIMIT:
                    print(f"    {layer_name}: {value:.1e}")


if __name__ == "__main__":
    main()
