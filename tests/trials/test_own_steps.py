"""What only the steps of a quantized model move is no error: `compare` and `bisect` say the same.

Covers the steps of the candidate's own model in `trials.compare_tensors` and `trials.doubt`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from fixtures import converted
from subgraph.types import Array, Strings
from tests.helpers import text_models
from tests.helpers.facts import has_line
from tests.helpers.run_command import subcut

SLOW = pytest.mark.slow
# without it, int8 sums saturate on processors without VNNI
EXACT = ("-c", "ort:session.x64quantprecision=1")
BLOCKS = 4
DEPTH = 12

Net = Callable[[int], tuple[onnx.ModelProto, list[Array]]]


def make_vision_net(seed: int) -> tuple[onnx.ModelProto, list[Array]]:
    """Depthwise and pointwise convolutions with Relu6, as a detector of two classes has them; and
    two images, of which the second may have values beyond those of the first."""
    draw = np.random.default_rng(seed).normal
    lines = ["[stem] c0 = Conv <kernel_shape = [3, 3], strides = [2, 2]> (x, w0)"]
    weights: dict[str, Any] = {"w0": draw(0, np.sqrt(2 / 27), (8, 3, 3, 3))}
    lines.append("[stem_relu] r0 = Clip (c0, lo, hi)")
    for i in range(BLOCKS):
        weights |= {f"d{i}": draw(0, np.sqrt(2 / 9), (8, 1, 3, 3))}
        weights |= {f"p{i}": draw(0, 0.5, (8, 8, 1, 1))}
        same = "kernel_shape = [3, 3], pads = [1, 1, 1, 1], group = 8"
        lines += [
            f"[dw{i}] a{i} = Conv <{same}> (r{i}, d{i})",
            f"[dw{i}_relu] b{i} = Clip (a{i}, lo, hi)",
            f"[pw{i}] c{i + 1} = Conv <kernel_shape = [1, 1]> (b{i}, p{i})",
            f"[pw{i}_relu] r{i + 1} = Clip (c{i + 1}, lo, hi)",
        ]
    weights |= {"w1": draw(0, 0.5, (8, 2)), "lo": np.float32(0), "hi": np.float32(6)}
    lines.append(f"[pool] p = GlobalAveragePool (r{BLOCKS}) [flat] f = Flatten (p)")
    text = "\n".join([*lines, "[head] y = MatMul (f, w1)"])
    typed: dict[str, Any] = {name: np.asarray(value, np.float32) for name, value in weights.items()}
    model = text_models.model(f"g (float[1,3,17,17] x) => (float[1,2] y) {{ {text} }}", **typed)
    images = [draw(0, size, (1, 3, 17, 17)).astype(np.float32) for size in (1.1, 1)]
    return model, images


def make_chaotic_net(seed: int) -> tuple[onnx.ModelProto, list[Array]]:
    """Layers that amplify each error, so that the steps of 8 bits make the output useless."""
    draw = np.random.default_rng(seed).normal
    shape = (16, 16)
    lines = ["[mm0] m0 = MatMul (x, w0) [sin0] t0 = Sin (m0)"]
    lines += [
        f"[mm{i}] m{i} = MatMul (t{i - 1}, w{i}) [sin{i}] t{i} = Sin (m{i})"
        for i in range(1, DEPTH)
    ]
    weights: dict[str, Any] = {
        f"w{i}": draw(0, 0.5, shape).astype(np.float32) for i in range(DEPTH)
    }
    text = "\n".join(lines).replace(f"t{DEPTH - 1} ", "y ")
    model = text_models.model(f"g (float[8,16] x) => (float[8,16] y) {{ {text} }}", **weights)
    return model, [draw(size=(8, 16)).astype(np.float32)] * 2


def write_models(folder: Path, make: Net, seed: int, fault: str = "") -> None:
    """Write `model.onnx`, `other.onnx` in 8 bits and `x.npy`; `fault`: a weight whose last axis is
    reversed in the latter."""
    model, (calibrated, tested) = make(seed)
    onnx.save(model, folder / "model.onnx")
    np.save(folder / "x.npy", tested)
    other = converted.quantized(model, {"x": calibrated})
    for tensor in other.graph.initializer:
        if tensor.name == f"{fault}_quantized":
            codes = np.ascontiguousarray(numpy_helper.to_array(tensor)[::-1])
            tensor.CopyFrom(numpy_helper.from_array(codes, tensor.name))
    onnx.save(other, folder / "other.onnx")


COMMANDS = ("compare", "bisect")
WORDS = ("model.onnx", "-i", "x.npy", *EXACT, "--candidate-model", "other.onnx", "--json")
# of which nodes do not run alone, or only one
PARTS = pytest.mark.parametrize(
    "part", [(), *(pytest.param(p, marks=SLOW) for p in (("--in-place",), ("--at", "y")))]
)


@pytest.mark.slow
@PARTS
def test_steps_that_add_up_are_inconclusive(part: Strings, tmp_path: Path) -> None:
    """The outputs are useless, and no node is wrong."""
    write_models(tmp_path, make_chaotic_net, 0)
    done = subcut("compare", *WORDS, *part, cwd=tmp_path)
    assert done.code == 5 and done.document["first_bad"] is None, done
    assert has_line(done.document["says"], "no node is wrong", "these steps add up")
    assert any("bisect" in one["argv"] for one in done.document["next"])


@pytest.mark.slow
@PARTS
def test_tensors_that_steps_move_are_no_errors(part: Strings, tmp_path: Path) -> None:
    write_models(tmp_path, make_vision_net, 1)
    done = subcut("compare", *WORDS, *part, cwd=tmp_path)
    assert done.code == 0 and done.document["first_bad"] is None, done
    if "--at" not in part:
        assert has_line(done.document["notes"], "no node adds", "quantizers")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "fault"), [(make_vision_net, "p2"), pytest.param(make_chaotic_net, "w3", marks=SLOW)]
)
def test_fault_among_steps_is_wrong(make: Net, fault: str, tmp_path: Path) -> None:
    write_models(tmp_path, make, 1, fault)
    done = subcut("compare", *WORDS, "--in-place", cwd=tmp_path)
    assert done.code == 1, done
    assert done.document["first_bad"]["node"] in ("pw2", "pw2_relu", "mm3")


@SLOW
@pytest.mark.parametrize("fault", ["", "planted"])
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("make", [make_vision_net, make_chaotic_net])
def test_compare_and_bisect_agree(make: Net, seed: int, fault: str, tmp_path: Path) -> None:
    planted = "p1" if make is make_vision_net else "w5"
    write_models(tmp_path, make, seed, planted if fault else "")
    codes = {command: subcut(command, *WORDS, cwd=tmp_path).code for command in COMMANDS}
    assert len(set(codes.values())) == 1, codes
    assert codes["compare"] == 1 or not fault
