"""The questions before a search: a candidate that contradicts itself is flaky, whatever comes
first."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.helpers import text_models
from tests.helpers.planted_candidates import planted
from tests.helpers.run_command import Done, subcut

MODEL = """g (float[N, 8] x) => (float[N, 8] y) {
    [a] a = Relu(x) [b] b = Add(a, x) [c] c = Sigmoid(b) [d] y = Neg(c)
}"""
# PATTERN tells which runs of a model with Sigmoid are wrong, counted over all processes.
VARYING = planted(
    'varies = any(node.op_type == "Sigmoid" for node in nodes)',
    """
    if varies:
        file = Path(__file__).with_name("runs")
        with file.open("a") as runs:
            runs.write("x")
        number = len(file.read_text()) - 1
        if PATTERN[number % len(PATTERN)] == "F":
            found = {n: v + 1 for n, v in found.items()}
    """,
)


def ask(command: str, folder: Path, pattern: str) -> Done:
    (folder / "m.onnx").write_bytes(text_models.model(MODEL).SerializeToString())
    np.save(folder / "x.npy", np.linspace(-2, 2, 8, dtype=np.float32).reshape(1, 8))
    (folder / "c.py").write_text(f"PATTERN = {pattern!r}\n{VARYING}")
    return subcut(command, "m.onnx", "-i", "x.npy", "-c", "c.py", "--json", cwd=folder)


@pytest.mark.slow
@pytest.mark.turns(3)
@pytest.mark.parametrize(
    ("command", "pattern"),
    [
        pytest.param("bisect", "FA", marks=pytest.mark.slow),
        pytest.param("bisect", "FFA", marks=pytest.mark.slow),
        pytest.param("bisect", "FAA", marks=pytest.mark.slow),
        ("compare", "FA"),
        ("compare", "FFA"),
        ("compare", "FAA"),
    ],
)
def test_a_session_that_contradicts_itself_is_flaky(
    command: str, pattern: str, tmp_path: Path
) -> None:
    done = ask(command, tmp_path, pattern)
    assert (done.code, "y" in done.document["flaky_tensors"]) == (1, True)


@pytest.mark.slow
def test_open_dimensions_are_no_reason_of_a_failure_that_does_not_repeat(tmp_path: Path) -> None:
    document = ask("bisect", tmp_path, "FFFAAAAAA").document
    assert [form["form"] for form in document["forms"]] == ["as shipped"]
