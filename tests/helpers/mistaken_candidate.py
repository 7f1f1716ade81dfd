"""onnxruntime with one typical mistake of people who deploy models. A Python file for `-c`.

mistake   one of `CHANGES`, on the output `tensor`
          before: from the second run on, the output is the previous sample's
          fed: float32 inputs of three channels are taken for BGR
          half: computes in float16, but claims float32
          jitter: every output is off by half a rounding of float16
exact     the result of `exact(options)`: options without the mistake
switches  the result of `switches(options)`: two names, the second of which turns the mistake off if
it is "heal" claim     the precision that it claims
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

Array = np.ndarray[Any, np.dtype[Any]]
Run = Callable[[Mapping[str, Any]], dict[str, Any]]
HERE = str(Path(__file__).resolve())
CHANGES: dict[str, Callable[[Array], Array]] = {
    "nhwc": lambda v: v.transpose(0, 2, 3, 1).reshape(v.shape),
    "offset": lambda v: v - np.float32(128),
    "bgr": lambda v: v[:, ::-1],
    "sign": lambda v: -v,
    "drift": lambda v: (
        v
        + np.abs(v).max()
        * np.float32(2e-3)
        * np.sin(np.arange(v.size, dtype=v.dtype)).reshape(v.shape)
    ),
    "gain": lambda v: v * np.float32(1.0015),
    "last-bits": lambda v: v * np.float32(1 + 2**-23),
    "noise": lambda v: np.asarray(np.random.default_rng(0).standard_normal(v.shape, np.float32)),
    "nan": lambda v: np.where(v > 0, v, np.nan).astype(v.dtype),
    "shape": lambda v: v[..., :1],
}


def precision(options: Mapping[str, str]) -> str:
    """The claimed precision."""
    return options.get("claim", "fp32")


def exact(options: Mapping[str, str]) -> Mapping[str, str] | None:
    """The options that `exact` names; None without it."""
    words = {
        "right": {"precision": "f32"},
        "wrong": {**options, "precision": "f32", "claim": "fp32"},
    }
    return words.get(options.get("exact", ""))


def switches(options: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Two switches, if the options name any."""
    if "switches" not in options:
        return {}
    healed = {"switches": options["switches"]} if options["switches"] == "heal" else options
    return {"threads": {**options, "threads": "1"}, "fast exp": {**healed, "exp": "exact"}}


def load(model: Path, options: Mapping[str, str]) -> Run:
    """A session with the mistake around it."""
    made = onnx.load(model)
    mistake = options.get("mistake", "")
    if mistake in ("half", "inside"):
        from onnxruntime.transformers.float16 import convert_float_to_float16

        made = convert_float_to_float16(made, keep_io_types=True, disable_shape_infer=True)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    settings.log_severity_level = 4
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        made.SerializeToString(), settings, providers=["CPUExecutionProvider"]
    )
    names = [o.name for o in session.get_outputs()]
    last: dict[str, Any] = {}

    def run(feeds: Mapping[str, Any]) -> dict[str, Any]:
        found = dict(zip(names, session.run(names, _fed(feeds, mistake)), strict=True))
        if mistake == "half":
            found = {n: v.astype(np.float16).astype(np.float32) for n, v in found.items()}
        if mistake == "jitter":
            jitter = {
                n: np.sin(np.arange(v.size, dtype=v.dtype)).reshape(v.shape)
                for n, v in found.items()
            }
            found = {
                n: v + np.abs(v).max() * np.float32(2e-3) * jitter[n] for n, v in found.items()
            }
        name = options.get("tensor", "")
        if name in found and mistake in CHANGES:
            found[name] = np.ascontiguousarray(CHANGES[mistake](found[name]))
        if name in found and mistake == "before":
            found[name], last[name] = last.get(name, found[name]), found[name]
        return found

    return run


def _fed(feeds: Mapping[str, Any], mistake: str) -> dict[str, Any]:
    if mistake != "fed":
        return dict(feeds)
    return {
        n: np.ascontiguousarray(v[:, ::-1]) if v.ndim == 4 and v.shape[1] == 3 else v
        for n, v in feeds.items()
    }
