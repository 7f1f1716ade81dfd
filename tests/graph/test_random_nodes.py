"""Nodes that draw random numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.helpers import text_models

NOISE = "noise (v) => (r) { n = RandomNormalLike(v)  r = Add(v, n) }"


@pytest.mark.parametrize(
    ("text", "random"),
    [
        ("g (float[2] x) => (float[2] y) { a = RandomNormal<shape = [2]>()  y = Add(x, a) }", [0]),
        ("g (float[2] x) => (float[2] y) { a = Bernoulli(x)  y = Add(x, a) }", [0]),
        ("g (float[2] x) => (float[2] y) { a = acme.Bernoulli(x)  y = Add(x, a) }", []),
        (
            """g (float[2] x, bool c) => (float[2] y) { a = Relu(x)  y = If(c) <
                then_branch = t () => (float[2] r) { r = If(c) <
                    then_branch = tt () => (float[2] q) { q = RandomUniformLike(a) },
                    else_branch = ee () => (float[2] q) { q = Identity(a) }> },
                else_branch = e () => (float[2] r) { r = Identity(a) }> }""",
            [1],
        ),
        (
            'g (float[2] x) => (float[2] y) { y = fx.noise(x) } <domain: "fx", opset_import: ["" :'
            " 17]> " + NOISE,
            [0],
        ),
        (
            'g (float[2] x) => (float[2] y) { a = fx.quiet(x)  y = fx.outer(a) } <domain: "fx",'
            ' opset_import: ["" : 17, "fx" : 1]> outer (v) => (r) { r = fx.noise(v) } <domain:'
            ' "fx", opset_import: ["" : 17]> quiet (v) => (r) { r = Relu(v) } <domain: "fx",'
            ' opset_import: ["" : 17]> ' + NOISE,
            [1],
        ),
        (  # a function that is called like a plain operator
            "g (float[2] x) => (float[2] y) { a = Relu(x)  y = fx.Relu(a) } "
            '<domain: "fx", opset_import: ["" : 17]> ' + NOISE.replace("noise", "Relu"),
            [1],
        ),
    ],
)
def test_random_nodes_are_found_wherever_the_draw_is(
    tmp_path: Path, text: str, random: list[int]
) -> None:
    g = text_models.load(tmp_path, text, domains=("fx", "acme"))
    assert sorted(g.random_nodes) == random


def test_functions_that_call_many_are_looked_at_once(tmp_path: Path) -> None:
    """f0 calls f1 twice, which calls f2 twice …: following each call would take 2^20 steps."""
    functions = [
        f'<domain: "fx", opset_import: ["" : 17, "fx" : 1]> f{i} (v) => (r) {{ a = fx.f{j}(v)  r ='
        f" fx.f{j}(a) }}"
        for i, j in enumerate(range(1, 21))
    ]
    text = "g (float[2] x) => (float[2] y) { y = fx.f0(x) } " + " ".join(functions)
    text += ' <domain: "fx", opset_import: ["" : 17]> ' + NOISE.replace("noise", "f20")
    assert text_models.load(tmp_path, text, domains=("fx",)).random_nodes == {0}


@pytest.mark.parametrize(
    ("mode", "random"),
    [
        ("y = Dropout(x)", False),
        ("y = Dropout(x, ratio)", False),
        ("y = Dropout(x, ratio, no)", False),
        ("y = Dropout(x, ratio, yes)", True),
        ("m = Constant<value = bool {0}>() y = Dropout(x, ratio, m)", False),
        ("m = Constant<value = bool {1}>() y = Dropout(x, ratio, m)", True),
        ("y = Dropout(x, ratio, given)", True),  # nobody knows before a run
    ],
)
def test_dropout_draws_only_in_training(tmp_path: Path, mode: str, random: bool) -> None:
    g = text_models.load(
        tmp_path,
        f"g (float[2] x, bool given) => (float[2] y) <float ratio = {{0.5}}> {{ {mode} }}",
        yes=np.array(True),
        no=np.array(False),
    )
    assert bool(g.random_nodes) == random
