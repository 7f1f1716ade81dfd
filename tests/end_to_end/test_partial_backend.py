"""A side that has values of some tensors only, as the module from which a model was exported: the
search cuts there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from subgraph.errors import UnknownName, UsageError
from subgraph.runtime.candidate import parse
from tests.helpers import text_models
from tests.helpers.facts import has_line
from tests.helpers.refusals import raises
from tests.helpers.run_command import in_process

# Of x + 1, tanh of it, times 2, minus 1: it has no value between the tanh and the product.
PARTIAL = '''"""It knows the tensors x, a, c and y, and what the model should compute."""
import numpy as np
import onnx

STEPS = {"a": ("x", lambda v: v + 1), "c": ("a", lambda v: np.tanh(v) * 2), "y": ("c", lambda v: v - 1)}


def tensors(model, options):
    return ["x", *STEPS]


def load(model, options):
    assert options["model"].endswith("m.onnx"), "it is told of which model these are cuts"
    graph = onnx.load(model).graph
    outputs = [o.name for o in graph.output]
    assert {*outputs, *(i.name for i in graph.input)} <= {"x", *STEPS}, "it is asked for nothing else"

    def value(name, feeds):
        return feeds[name] if name in feeds else STEPS[name][1](value(STEPS[name][0], feeds)).astype(np.float32)

    return lambda feeds: {name: value(name, feeds) for name in outputs}
'''  # noqa: E501
MODEL = """
m (float[2,3] x) => (float[2,3] y) {
    a = Add(x, one)
    b = OPERATOR(a)
    c = Mul(b, two)
    y = Sub(c, one)
}
"""


def write(folder: Path, operator: str) -> None:
    model = text_models.model(
        MODEL.replace("OPERATOR", operator),
        one=np.array(1, np.float32),
        two=np.array(2, np.float32),
    )
    onnx.save(model, folder / "m.onnx")
    (folder / "partial.py").write_text(PARTIAL)


@pytest.mark.slow
@pytest.mark.parametrize(
    "sides",
    [
        pytest.param(("-c", "partial.py"), marks=pytest.mark.rare),
        ("--reference", "partial.py", "-c", "ort"),
    ],
)
def test_wrong_operator_is_found_with_those_that_only_one_side_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sides: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "Softsign")
    done = in_process("bisect", "m.onnx", *sides, "--json", "-q")
    (finding,) = done.document["findings"]
    assert (finding["kind"], finding["certified"], finding["ops"]) == (
        "culprit",
        True,
        ["Softsign", "Mul"],
    )
    conclusion = finding["evidence"][0]
    assert conclusion["kind"] == "conclusion" and has_line(conclusion["says"], "exporter")
    write(tmp_path, "Tanh")
    healthy = in_process("bisect", "m.onnx", *sides, "--inside", "--json", "-q")
    assert healthy.document["agree"] and not healthy.document["findings"]


def test_spec_of_a_module_needs_its_builder_and_trust(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text("def build(): ...\n")
    candidate = parse(f"torch:{file}:build")
    assert (candidate.backend, candidate.options) == (
        "torch",
        {"file": str(file), "build": "build"},
    )
    # a file that names it needs --trust
    assert candidate.script == str(file) and candidate.commands == [str(file)]
    before = candidate.identity("")
    file.write_text("def build(): return 1\n")
    assert candidate.identity("") != before, "its stored answers hold no more"
    for spec, code in (
        ("torch:net", "torch.no-function"),
        (f"torch:{file}", "torch.no-function"),
        ("torch:none.py:build", "file.not-found"),
    ):
        with raises(UsageError, code):
            parse(spec)
    with raises((UsageError, UnknownName), "candidate.is-recipe") as e:
        parse("torch")
    assert "torch:module.py:build" in e.value.hint
