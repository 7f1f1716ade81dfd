"""Real bugs of real runtimes are found by one plain command, and nothing is blamed where they are
right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from benchmarks.real import BUGS, FIXTURES, LIGHT, Bug
from tests.helpers import fake_candidate, text_models
from tests.helpers.run_command import subcut
from tests.helpers.versions import with_padfusion_bug

LONG = 250  # seconds
CONTROLS = ("light_squeezenet", "light_shufflenet")
MNN_SOFTMAX = (
    "MNN takes Softmax of opset 9 over the last axis; that fails alone (`softmax_9` below)"
)


def bisect(model: Path, *words: str | Path, cwd: Path) -> dict[str, Any]:
    done = subcut("bisect", model, *words, "--json", cwd=cwd, timeout=LONG)
    assert done.code in (0, 1, 5), done
    return done.document


def name_of(bug: Bug) -> str:
    return f"{bug.case}-{bug.candidate}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "bug",
    [
        pytest.param(b, marks=with_padfusion_bug if b.candidate == "ort" else (), id=name_of(b))
        for b in BUGS
        if b.truth
    ],
)
def test_real_bug_comes_down_to_its_nodes(bug: Bug, tmp_path: Path) -> None:
    folder = FIXTURES / bug.case
    document = bisect(
        folder / "model.onnx", "-i", folder / "input_x.npy", "-c", bug.candidate, cwd=tmp_path
    )
    (finding,) = document["findings"]
    assert (finding["kind"], finding["certified"]) == ("culprit", True), finding
    assert sorted(finding["nodes"]) == sorted(bug.truth)
    (conclusion,) = (e["says"] for e in finding["evidence"] if e["kind"] == "conclusion")
    assert conclusion.startswith("a bug"), finding["evidence"]


@pytest.mark.slow
@pytest.mark.parametrize("criterion", ["", "numpy:rtol=1e-3,atol=1e-5"])
def test_rounding_has_no_culprit(criterion: str, tmp_path: Path) -> None:
    """Squares overflow float16 alone; in the whole model a fused kernel keeps them in float32: only
    noise is left.

    Seen with OpenVINO in f16. Few processors compute in it, so it is simulated.
    """
    (case,) = {b.case for b in BUGS if not b.truth}
    candidate = f"{fake_candidate.HERE}:half=yes,fuses=Pow+ReduceMean+Add+Sqrt+Div+Mul"
    words: list[str | Path] = [
        "-i",
        FIXTURES / case / "input_x.npy",
        "-c",
        candidate,
        "--precision",
        "fp16",
    ]
    words += ["--criterion", criterion] if criterion else []
    document = bisect(FIXTURES / case / "model.onnx", *words, cwd=tmp_path)
    assert not [f for f in document["findings"] if f["kind"] == "culprit"]
    assert document["outcome"] == ("disagree" if criterion else "agree")
    overflows = [s for s in document["steps"] if s["signature"] == "nan"]
    assert bool(overflows) == bool(criterion), "found alone, and not blamed"


@pytest.mark.slow
@pytest.mark.parametrize(
    "network", [CONTROLS[0], pytest.param(CONTROLS[1], marks=pytest.mark.rare)]
)
@pytest.mark.parametrize("runtime", ["ort", "openvino:precision=f32", "opencv", "tract", "mnn"])
def test_nothing_is_blamed_where_a_runtime_is_right(
    network: str, runtime: str, tmp_path: Path
) -> None:
    """All weights of these networks are equal: rounding separates equal sums, and a softmax
    magnifies that.

    Their outputs are the same for every input, so that "right" would not be earned.
    """
    document = bisect(LIGHT / f"{network}.onnx", "-c", runtime, cwd=tmp_path)
    assert document["outcome"] != "agree"
    blamed = [(f["kind"], f["certified"], f["ops"]) for f in document["findings"]]
    wrong = (runtime, network) == ("mnn", "light_squeezenet")
    assert blamed == ([("culprit", True, ["Softmax"])] if wrong else []), MNN_SOFTMAX


@pytest.mark.slow
def test_softmax_9_is_wrong_in_mnn(tmp_path: Path) -> None:
    text = (
        '<ir_version: 3, opset_import: ["" : 9]> g (float[1,10,1,1] x) => (float[1,10,1,1] y) { y ='
        " Softmax(x) }"
    )
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    document = bisect(tmp_path / "m.onnx", "-c", "mnn", cwd=tmp_path)
    assert [(f["kind"], f["ops"]) for f in document["findings"]] == [("culprit", ["Softmax"])]
    blamed = subcut(
        "blame", tmp_path / "m.onnx", "-c", "mnn", "--json", cwd=tmp_path, timeout=LONG
    ).document
    cures = {cure["what"]: cure["proven"] for cure in blamed["cures"]}
    assert cures["opset 13 instead of 9"], "the whole model, converted"


def save_gelus(path: Path, blocks: int) -> None:
    """Save blocks of Gemm, a GELU of single operators, and a sum by ScatterElements."""
    draw = np.random.default_rng(0).standard_normal
    weights = {"idx": np.arange(60).reshape(10, 6) // 6 % 5, "sqrt2": np.float32(2**0.5)}
    weights |= {
        "one": np.float32(1),
        "half": np.float32(0.5),
        "zeros": np.zeros((5, 6), np.float32),
    }
    nodes = []
    for k in range(blocks):
        weights[f"w{k}"] = (draw((6, 6)) / 3).astype(np.float32)
        weights[f"t{k}"] = (draw((10, 5)) / 3).astype(np.float32)
        nodes.append(
            f"[gemm{k}] g{k} = Gemm(x{k}, w{k}) [div{k}] d{k} = Div(g{k}, sqrt2)"
            f" [erf{k}] e{k} = Erf(d{k}) [add{k}] a{k} = Add(e{k}, one)"
            f" [mulh{k}] h{k} = Mul(a{k}, half) [gelu{k}] m{k} = Mul(g{k}, h{k})"
            f' [scatter{k}] s{k} = ScatterElements<axis = 0, reduction = "add">(zeros, idx, m{k})'
            f" [matmul{k}] u{k} = MatMul(t{k}, s{k}) [res{k}] x{k + 1} = Add(u{k}, x{k})"
        )
    text = f"g (float[10, 6] x0) => (float[10, 6] x{blocks}) {{ {' '.join(nodes)} }}"
    text_models.save(path, text, **weights)


@pytest.mark.slow
def test_each_cause_is_one_finding_in_opencv(tmp_path: Path) -> None:
    """OpenCV 5 dies of a GELU, and throws at a sum into fewer rows: twelve findings in 331 runs."""
    save_gelus(tmp_path / "m.onnx", 4)
    document = bisect(tmp_path / "m.onnx", "-c", "opencv", cwd=tmp_path)
    causes = {(f["nodes"][-1][:-1], f["signature"]): f for f in document["findings"]}
    assert causes.keys() == {("gelu", "crash"), ("scatter", "throws")}
    assert all(len(f["repeats"]) == 3 and f["certified"] for f in causes.values())
    assert document["complete"] and document["trials"] <= 70
