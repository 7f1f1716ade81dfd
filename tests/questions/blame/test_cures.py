"""Inputs that only set how operators work are constants for rewritings, and keep their values in
draws."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from subgraph.graph import region
from subgraph.questions.blame.cures import draw_samples, fix_parameters, list_parameters
from subgraph.storage.tensors import load, save
from tests.helpers import text_models
from tests.helpers.facts import has_line
from tests.helpers.planted_candidates import planted
from tests.helpers.run_command import subcut

RESIZE = (
    'g (float[1,1,2,4] x, int64[4] sizes) => (float[1,1,N,M] y) { y = Resize<mode="nearest">(x, , ,'
    " sizes) }"
)
WRONG = planted(
    change='wrong = any(node.op_type == "Resize" for node in nodes)',
    answer="found = {n: v + wrong for n, v in found.items()}",
)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (RESIZE, ["sizes"]),
        (
            (
                "g (float[2,3] x, int64[1] s) => (float[6] y, int64[1] t) { y = Reshape(x, s) t ="
                " Neg(s) }"
            ),
            [],
        ),
        ("g (float[2,3] x, int64[1] s) => (float[6] y, int64[1] s) { y = Reshape(x, s) }", []),
        ("g (int64[1] x, int64[1] s) => (int64[1] y) { y = Reshape(s, s) }", []),
        (
            (
                "g (float[4] x, int64 k, bool c) => (float[2] y) { y, i = TopK(x, n) n ="
                " Unsqueeze(k, z) }"
            ),
            [],
        ),
        (
            (
                "g (bool c, float[2,3] x, int64[1] s) => (float[6] y) { y = If(c) <then_branch = t"
                " () => (float[6] a) { a = Reshape(x, s) }, else_branch = e () => (float[6] b) { b"
                " = Reshape(x, s) }> }"
            ),
            [],
        ),
        ("g (float[4] x, float[1] unread) => (float[4] y) { y = Relu(x) }", []),
    ],
)
def test_only_inputs_that_nothing_computes_with(
    text: str, found: list[str], tmp_path: Path
) -> None:
    assert list(list_parameters(text_models.load(tmp_path, text, z=np.zeros(1, np.int64)))) == found


def test_they_enter_a_cut_as_shapes_do(tmp_path: Path) -> None:
    graph = text_models.load(tmp_path, RESIZE)
    whole = region.build_region(graph, [0])
    constant = fix_parameters(graph, whole)
    assert (whole.inputs, constant.inputs, constant.shapes) == (
        ("x", "sizes"),
        ("x",),
        (*whole.shapes, "sizes"),
    )


def test_they_keep_their_values_in_draws(tmp_path: Path) -> None:
    sizes = np.array([1, 1, 4, 8], np.int64)
    sample = {"sizes": save("sizes", sizes, "tensor(int64)", tmp_path, "s").rebase(str(tmp_path))}
    assert all(draw == sample for draw in draw_samples([sample], 3, tmp_path, ["sizes"]))
    assert any(
        not np.array_equal(np.asarray(load(d["sizes"], Path("/"))), sizes)
        for d in draw_samples([sample], 3, tmp_path)
    )


@pytest.mark.slow
def test_operator_that_takes_its_size_as_an_input_has_a_cure(tmp_path: Path) -> None:
    text_models.load(tmp_path, RESIZE)
    np.save(tmp_path / "x.npy", np.arange(8, dtype=np.float32).reshape(1, 1, 2, 4))
    np.save(tmp_path / "sizes.npy", np.array([1, 1, 4, 8]))
    (tmp_path / "wrong.py").write_text(WRONG)
    done = subcut(
        *"blame --json model.onnx -i x.npy -i sizes.npy -c wrong.py".split(), cwd=tmp_path
    )
    cure, *_ = [c for c in json.loads(done.out)["cures"] if c["kind"] == "rewrite"]
    assert cure["proven"] and "Gather" in cure["what"] and has_line(cure["what"], "these shapes")
