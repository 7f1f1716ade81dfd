"""Each kind of failure keeps its name from the first run to the finding and the headline."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from subgraph.verdict import Signature, name_failure
from tests.helpers import text_models
from tests.helpers.planted_candidates import planted
from tests.helpers.run_command import subcut

MODEL = """g (float[1, 8] x) => (float[1, 8] y) {
    [a] a = Relu(x) [b] b = Add(a, x) [c] c = Sigmoid(b) [d] y = Neg(c)
}"""
WRONG = 'wrong = any(node.op_type == "Sigmoid" for node in nodes)\n'
COMMAND = """
import os, signal, sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

model, inputs, outputs = map(Path, sys.argv[1:])
if any(node.op_type == "Sigmoid" for node in onnx.load(str(model)).graph.node):
    {end}
session = onnxruntime.InferenceSession(str(model))
feeds = {{one.name: np.load(inputs / f"{{one.name}}.npy") for one in session.get_inputs()}}
names = [one.name for one in session.get_outputs()]
for name, value in zip(names, session.run(names, feeds)):
    np.save(outputs / f"{{name}}.npy", value)
"""


def search(folder: Path, spec: str, *words: str) -> tuple[list[str], str, str]:
    """Return the nodes of the only finding, its kind, and that of the full model."""
    (folder / "m.onnx").write_bytes(text_models.model(MODEL).SerializeToString())
    np.save(folder / "x.npy", np.linspace(-2, 2, 8, dtype=np.float32).reshape(1, 8))
    fed = ("-i", "x.npy", "-c", spec, "--trust", "--json", *words)
    document = subcut("bisect", "m.onnx", *fed, cwd=folder).document
    (finding,) = document["findings"]
    return finding["nodes"], finding["signature"], document["whole"]["signature"]


@pytest.mark.slow
@pytest.mark.turns(3)
@pytest.mark.parametrize(
    ("load", "run", "kind"),
    [
        ("if wrong: raise ValueError('no Sigmoid')", "", "refused"),
        ("", "if wrong: raise ValueError('no Sigmoid')", "throws"),
        ("", "if wrong: raise RuntimeError('std::bad_alloc')", "memory"),
        ("", "if wrong: np.zeros(1 << 50)", "memory"),
        pytest.param("", "if wrong: os.abort()", "crash", marks=pytest.mark.slow),
        pytest.param("", "if wrong: os._exit(3)", "crash", marks=pytest.mark.slow),
        ("", "if wrong: found = {n: v[:, 1:] for n, v in found.items()}", "shape"),
        ("", "if wrong: found.clear()", "missing"),
        ("", "if wrong: found = {n: v * np.nan for n, v in found.items()}", "nan"),
        ("", "if wrong: found = {n: v + 1 for n, v in found.items()}", "mismatch"),
    ],
)
def test_failure_of_a_file_keeps_its_kind(load: str, run: str, kind: str, tmp_path: Path) -> None:
    (tmp_path / "c.py").write_text(planted(WRONG + load, run))
    assert search(tmp_path, "c.py") == (["c"], kind, kind)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "kind"),
    [
        ("sys.exit(1)", "throws"),
        ("raise ValueError", "throws"),
        ("sys.exit(125)", "refused"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "crash"),
    ],
)
def test_failure_of_a_command_keeps_its_kind(end: str, kind: str, tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text(COMMAND.format(end=end))
    spec = f"cmd:{sys.executable} run.py {{model}} {{inputs}} {{outputs}}"
    assert search(tmp_path, spec) == (["c"], kind, kind)


@pytest.mark.slow
def test_hang_keeps_its_kind(tmp_path: Path) -> None:
    (tmp_path / "c.py").write_text(planted(WRONG, "time.sleep(600 if wrong else 0)"))
    assert search(tmp_path, "c.py", "--timeout", "3") == (["c"], "timeout", "timeout")


def test_death_is_named_with_its_signal() -> None:
    assert name_failure(Signature.CRASH, {"signal": "SIGSEGV"}) == "dies of SIGSEGV"
