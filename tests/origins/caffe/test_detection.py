"""SSD's layers beside a plain implementation of Caffe's loops."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from benchmarks.caffe import ssd_head
from fixtures.caffe import layer, net
from subgraph.errors import ModelError
from subgraph.types import Array
from tests.helpers.caffe_layers import check, convert, run
from tests.helpers.refusals import raises


def test_normalize() -> None:
    def places(x: Array, s: Array) -> Any:
        return x / np.sqrt((x * x).sum(1, keepdims=True) + 1e-10) * s[:, None, None]

    check("Normalize", places, norm_param={"across_spatial": False, "channel_shared": False})
    check("Normalize", lambda x, s: x / np.sqrt((x * x).sum((1, 2, 3), keepdims=True) + 1e-10) * s)


def test_prior_boxes() -> None:
    """The loop of prior_box_layer.cpp."""
    given: Any = {
        "min_size": [10, 30],
        "max_size": [20, 50],
        "aspect_ratio": [2, 1],
        "clip": True,
        "variance": [0.1, 0.1, 0.2, 0.2],
    }
    boxes = []
    for row in range(3):
        for column in range(4):
            x = (column + 0.5) * 60 / 4
            y = (row + 0.5) * 50 / 3
            for low, high in zip(given["min_size"], given["max_size"], strict=True):
                for w, h in (
                    (low, low),
                    (sqrt(low * high),) * 2,
                    (low * sqrt(2), low / sqrt(2)),
                    (low / sqrt(2), low * sqrt(2)),
                ):
                    boxes.append(
                        [(x - w / 2) / 60, (y - h / 2) / 50, (x + w / 2) / 60, (y + h / 2) / 50]
                    )
    right = np.stack([np.clip(boxes, 0, 1).reshape(-1), np.tile([0.1, 0.1, 0.2, 0.2], len(boxes))])[
        None
    ]
    network = convert(
        net(
            layer("PriorBox", "p", "x data", prior_box_param=given),
            x=(1, 2, 3, 4),
            data=(1, 3, 50, 60),
        )
    )
    (value,) = ort.InferenceSession(network.model.SerializeToString()).run(None, {})
    np.testing.assert_allclose(value, right, rtol=1e-6)


def detect(location: Array, scores: Array, priors: Array, **p: Any) -> Array:
    """detection_output_layer.cpp with shared locations: decode, suppress per class, keep the
    best."""
    prior = priors[0, 0].reshape(-1, 4)
    variance = priors[0, 1].reshape(-1, 4)
    delta = location.reshape(-1, 4) * variance
    size = prior[:, 2:] - prior[:, :2]
    center = (prior[:, 2:] + prior[:, :2]) / 2 + delta[:, :2] * size
    half = np.exp(delta[:, 2:]) * size / 2
    boxes = np.concatenate([center - half, center + half], 1)
    rows = []
    for label in range(1, p["classes"]):
        score = scores.reshape(-1, p["classes"])[:, label]
        order = [k for k in np.argsort(-score, kind="stable") if score[k] > p["threshold"]][
            : p["top_k"]
        ]
        kept: list[int] = []
        for k in order:
            if all(overlap(boxes[k], boxes[other]) <= p["nms"] for other in kept):
                kept.append(k)
        rows += [[0, label, score[k], *boxes[k]] for k in kept]
    best = sorted(rows, key=lambda row: -row[2])[: p["keep"]]
    return np.array([row for row in rows if row in best] or [[0, *[-1] * 6]])


def overlap(a: Array, b: Array) -> float:
    w, h = (min(a[k + 2], b[k + 2]) - max(a[k], b[k]) for k in (0, 1))
    inside = max(w, 0) * max(h, 0)
    return float(inside / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - inside))


@pytest.mark.parametrize("threshold", [0.05, 0.3, 0.9999])
def test_detection_output(threshold: float) -> None:
    rng = np.random.default_rng(3)
    count = 30
    classes = 3
    low = rng.uniform(0, 0.6, (count, 2))
    prior = np.concatenate([low, low + rng.uniform(0.2, 0.4, (count, 2))], 1).reshape(-1)
    feeds = {
        "loc": rng.standard_normal((1, count * 4)).astype(np.float32),
        "conf": rng.uniform(0, 0.99, (1, count * classes)).astype(np.float32),
        "prior": np.stack([prior, np.tile([0.1, 0.1, 0.2, 0.2], count)])[None].astype(np.float32),
    }
    given = {
        "num_classes": classes,
        "code_type": "CENTER_SIZE",
        "keep_top_k": 7,
        "confidence_threshold": threshold,
        "nms_param": {"nms_threshold": 0.4, "top_k": 12},
    }
    prototxt = net(
        layer("DetectionOutput", "detection", "loc conf prior", detection_output_param=given),
        **{name: value.shape for name, value in feeds.items()},
    )
    (value,), _ = run(prototxt, feeds)
    loc, conf, priors = feeds.values()
    right = detect(
        loc, conf, priors, classes=classes, threshold=threshold, nms=0.4, top_k=12, keep=7
    )
    np.testing.assert_allclose(value[0, 0], right, rtol=1e-5, atol=1e-6)


def test_head_is_converted_and_a_batch_is_refused() -> None:
    assert convert(ssd_head()).model.graph.output[0].name == "detection"
    given: Any = {"detection_output_param": {"num_classes": 2}}
    with raises(ModelError, "caffe.layer-refused", "batch of 2"):
        convert(
            net(layer("DetectionOutput", "d", "a b c", **given), a=(2, 8), b=(2, 4), c=(1, 2, 8))
        )
    with raises(ModelError, "caffe.layer-refused", "2 boxes", "3 classes"):
        given = {"detection_output_param": {"num_classes": 3}}
        convert(
            net(layer("DetectionOutput", "d", "a b c", **given), a=(1, 8), b=(1, 4), c=(1, 2, 8))
        )
