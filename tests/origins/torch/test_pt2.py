"""PyTorch's `.pt2`, and a module in memory, in the place of a model.

Covers `origins.torch.program` and `origins.converted`. What needs torch is skipped without it.
"""

from __future__ import annotations

import shutil
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import subgraph
from subgraph import children
from subgraph.errors import BackendError, ModelError, UsageError
from subgraph.origins.torch import program as program_module
from tests.helpers.facts import has_line
from tests.helpers.refusals import raises
from tests.helpers.run_command import in_process

pytestmark = pytest.mark.filterwarnings("ignore")  # torch uses its own deprecated functions
TINY = Path(__file__).parents[3] / "fixtures" / "torch" / "tiny_dynamo.onnx"
needs_torch = pytest.mark.skipif(
    not (find_spec("torch") and find_spec("onnxscript")),
    reason="torch and onnxscript are not installed",
)


@pytest.fixture(autouse=True)
def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that was trusted or converted before counts."""
    for name in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The layout of `torch.export.save`."""
    path = tmp_path / "it's.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("m/data/weights/weight_0", "\0" * 9000)
    return path


def exporting(monkeypatch: pytest.MonkeyPatch, code: int = 0) -> list[list[str]]:
    """Pretend that torch is installed and exports; returns the commands that run."""
    ran: list[list[str]] = []

    def run(command: list[str], cwd: Path, **_: Any) -> children.CommandOutput:
        ran.append(command)
        if not code:
            shutil.copyfile(TINY, cwd / "model.onnx")
        return children.CommandOutput(
            code, b"", b"Traceback\nValueError: too old\nsee the manual\n"
        )

    monkeypatch.setattr(program_module, "find_spec", lambda name: name)
    monkeypatch.setattr(program_module, "version", lambda name: "2.13.0")
    monkeypatch.setattr(children, "run", run)
    return ran


def test_without_torch_it_says_what_to_install(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program_module, "find_spec", lambda name: None)
    with raises(BackendError, "package.not-installed", "torch and onnxscript") as refused:
        in_process("inspect", program)
    assert has_line(refused.value.hint, "torch onnxscript")


def test_nothing_runs_without_trust(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = exporting(monkeypatch)
    with raises(UsageError, "trust.required", "it's.pt2"):
        in_process("inspect", program, "--no-run")
    assert not ran
    assert (
        in_process("inspect", program, "--no-run", "--trust")
        .document["model"]["path"]
        .endswith("it's.pt2")
    )
    assert "torch.export.load(" in ran[0][-1]
    compile(ran[0][-1], "command", "exec")  # whatever the file is called
    assert len(subgraph.load(program).nodes) == 23 and len(ran) == 1  # trusted and converted
    program.write_bytes(program.read_bytes() + b" ")
    with raises(UsageError, "trust.required", "it's.pt2"):
        subgraph.load(program)
    assert len(subgraph.load(program, trust=True).nodes) == 23


def test_export_that_fails_says_why(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exporting(monkeypatch, code=1)
    with raises(ModelError, "torch.export-failed", "ValueError: too old") as refused:
        subgraph.load(program, trust=True)
    assert sys.executable in str(refused.value.hint)


def test_weights_do_not_belong_to_it(program: Path) -> None:
    with raises(UsageError, "option.conflict", "--weights"):
        in_process("inspect", program, "--weights", "random:0")


@needs_torch
@pytest.mark.slow
def test_real_program_and_a_module(tmp_path: Path) -> None:
    import torch

    from fixtures import torch_networks

    module, args = torch_networks.tiny()
    torch.export.save(torch.export.export(module, args), tmp_path / "net.pt2")
    shown = in_process("inspect", tmp_path / "net.pt2", "node_linear", "--no-run", "--trust")
    assert shown.document["nodes"][0]["source"]["module"] == "mix.qkv"
    graph = subgraph.load(module, args=args)
    assert len(graph.nodes) == 23 and graph.path.name == "Tiny.onnx"
    with raises(UsageError, "torch.no-arguments"):
        subgraph.load(module)
    with raises(UsageError, "api.wrong-type", "list"):
        subgraph.load([])
    with raises(ModelError, "torch.export-failed", "Tiny"):
        subgraph.load(module, args=(torch.zeros(3),))


class Choosing:
    """The body of a module whose path depends on a value."""

    def forward(self, x: Any) -> Any:
        return x * 2 if x.sum() > 0 else x


@needs_torch
@pytest.mark.slow
def test_module_that_cannot_be_exported_is_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    """The first cause and the user's line; not the graphs that PyTorch shows."""
    import torch

    module = type("Choosing", (Choosing, torch.nn.Module), {})()
    place = " at torch/test_pt2.py:"
    with raises(ModelError, "torch.export-failed", "data-dependent", place, "return x * 2 if"):
        subgraph.load(module, args=(torch.ones(2),))
    assert "def forward" not in capsys.readouterr().err
