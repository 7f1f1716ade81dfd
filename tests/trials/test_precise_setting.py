"""A runtime that is wrong only in the lower precision that it chose: the setting that heals it is
the answer, and no node is searched."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto

from tests.helpers import text_models
from tests.helpers.planted_candidates import planted
from tests.helpers.run_command import Done, subcut

MODEL = """g (float[1, 8] x) => (float[1, 8] y) {
    [a] a = Relu(x) [b] b = Add(a, x) [c] c = Sigmoid(b) [d] y = Neg(c)
}"""
SETTINGS = """
def precision(options):
    return "fp32" if options.get("full") == "yes" else "bf16"


def exact(options):
    return {**options, "full": "yes"} if options.get("full") != "yes" else None
"""
SIGMOID = 'wrong = any(node.op_type == "Sigmoid" for node in nodes)'
ALWAYS = planted(SIGMOID, "found = {n: v + 1 if wrong else v for n, v in found.items()}")
IN_BF16 = planted(
    f'{SIGMOID} and options.get("full") != "yes"',
    "found = {n: v + 1 if wrong else v for n, v in found.items()}",
)


def ask(
    command: str, folder: Path, candidate: str, *words: str, model: ModelProto | None = None
) -> Done:
    (folder / "m.onnx").write_bytes((model or text_models.model(MODEL)).SerializeToString())
    np.save(folder / "x.npy", np.linspace(-2, 2, 8, dtype=np.float32).reshape(1, 8))
    (folder / "c.py").write_text(candidate)
    fed = ("-i", "x.npy", "-c", "c.py", "--trust", "--json")
    return subcut(command, "m.onnx", *fed, *words, cwd=folder)


@pytest.mark.slow
def test_a_setting_that_heals_the_outputs_is_the_answer(tmp_path: Path) -> None:
    """With open shapes the file as it is shipped runs as well: four runs."""
    open_shapes = text_models.model(MODEL.replace("[1, 8]", "[N, 8]"))
    done = ask("bisect", tmp_path, IN_BF16 + SETTINGS, model=open_shapes)
    document = done.document
    assert (done.code, document["outcome"], document["findings"]) == (1, "disagree", [])
    healed = {"options": {"full": "yes"}, "precision": "fp32", "computes_in": "bf16"}
    assert document["precise"] == healed
    assert document["trials"] <= 4


@pytest.mark.slow
@pytest.mark.parametrize("words", [["--inside"], ["--within", "a..d"]])
def test_a_search_that_is_asked_for_is_made(words: list[str], tmp_path: Path) -> None:
    document = ask("bisect", tmp_path, IN_BF16 + SETTINGS, *words).document
    assert "precise" not in document
    assert ["c"] in [f["nodes"] for f in document["findings"]]


@pytest.mark.slow
@pytest.mark.turns(2)
@pytest.mark.parametrize(
    "candidate",
    [
        pytest.param(ALWAYS + SETTINGS, marks=pytest.mark.slow),
        ALWAYS,
        IN_BF16 + SETTINGS.replace('"bf16"', '"fp32"'),
    ],
    ids=["wrong in both", "one setting", "as precise"],
)
def test_a_fault_of_another_kind_is_searched(candidate: str, tmp_path: Path) -> None:
    document = ask("bisect", tmp_path, candidate).document
    assert "precise" not in document
    assert ["c"] in [f["nodes"] for f in document["findings"]]


@pytest.mark.slow
def test_failure_that_does_not_repeat_is_no_matter_of_precision(tmp_path: Path) -> None:
    first = "Path(__file__).with_name('ran').exists()"
    change = f'{SIGMOID} and options.get("full") != "yes" and not {first}'
    answer = """
        if wrong:
            Path(__file__).with_name("ran").touch()
        found = {n: v + 1 if wrong else v for n, v in found.items()}
    """
    document = ask("bisect", tmp_path, planted(change, answer) + SETTINGS).document
    assert "precise" not in document


@pytest.mark.slow
def test_a_crash_is_no_matter_of_precision(tmp_path: Path) -> None:
    crash = planted(f'{SIGMOID} and options.get("full") != "yes"', "if wrong: os.abort()")
    document = ask("bisect", tmp_path, crash + SETTINGS).document
    assert "precise" not in document
    assert [f["signature"] for f in document["findings"]] == ["crash"]


@pytest.mark.slow
def test_a_comparison_names_the_setting_beside_its_rows(tmp_path: Path) -> None:
    done = ask("compare", tmp_path, IN_BF16 + SETTINGS)
    assert (done.code, done.document["precise"]["options"]) == (1, {"full": "yes"})
    rows = done.document["rows"]
    assert [row["node"] for row in rows if row["alone"]["status"] == "fail"] == ["c"]
    assert "precise" not in ask("compare", tmp_path, ALWAYS + SETTINGS).document
