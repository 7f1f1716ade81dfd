"""Source code in models that are to be sent: found, shown, left out of models and reports, unless
the user sends it.

Covers `origins.source`.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import onnx
import pytest
from onnx import helper

from subgraph.cases.redact import Redactor
from subgraph.errors import UsageError
from subgraph.origins.source import strip_source_code
from tests.helpers import fake_candidate
from tests.helpers.facts import has_line
from tests.helpers.refusals import raises
from tests.helpers.run_command import in_process

TORCH = Path(__file__).parents[2] / "fixtures" / "torch"
MODEL = TORCH / "tiny_dynamo.onnx"
HOME = b"/home/me"
SOURCE = {
    "module": "mix.qkv",
    "class": "Linear",
    "file": "/home/me/m.py",
    "line": 3,
    "code": "self.qkv(x)",
}


def texts(path: Path) -> bytes:
    """All names and bytes of a zip."""
    with zipfile.ZipFile(path) as archive:
        return b"".join(name.encode() + archive.read(name) for name in archive.namelist())


def test_remaining_model_computes_the_same(tmp_path: Path) -> None:
    path = strip_source_code(MODEL, tmp_path, "copy.onnx")
    assert HOME not in path.read_bytes()
    model = onnx.load(MODEL)
    left = onnx.load(path)
    for node in left.graph.node:
        keys = {entry.key for entry in node.metadata_props}
        assert keys <= {"pkg.torch.onnx.name_scopes", "pkg.onnxscript.rewriter.rule_name"}
    for one in (model, left):
        for message in (
            *one.graph.node,
            *one.graph.value_info,
            *one.graph.input,
            *one.graph.output,
            one.graph,
        ):
            message.ClearField("metadata_props")
    assert left == model
    assert strip_source_code(path, tmp_path, "again.onnx") == path


def test_bodies_declarations_and_documentation(tmp_path: Path) -> None:
    model = onnx.load(MODEL)
    inner = model.graph.node[0]
    body = helper.make_graph([inner], "body", [], [])
    outer = helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body)
    outer.doc_string = "/home/me/m.py(33): forward"
    kept = helper.make_node("Relu", ["y"], ["z"], doc_string="a remark")
    info = helper.make_tensor_value_info("y", 1, [1])
    info.metadata_props.add(
        key="pkg.torch.onnx.stack_trace", value='File "/home/me/m.py", line 1, in forward'
    )
    graph = helper.make_graph([outer, kept], "g", [], [], value_info=[info])
    onnx.save(helper.make_model(graph), tmp_path / "m.onnx")
    path = strip_source_code(tmp_path / "m.onnx", tmp_path, "copy.onnx")
    assert HOME not in path.read_bytes() and b"a remark" in path.read_bytes()


def test_weights_in_another_file_stay_there(tmp_path: Path) -> None:
    model = onnx.load(MODEL)
    onnx.save(
        model, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0
    )
    path = strip_source_code(tmp_path / "m.onnx", tmp_path, "copy.onnx")
    weights = onnx.load(path, load_external_data=False).graph.initializer
    assert path.name == "copy.onnx" and all(w.external_data[0].value == "m.data" for w in weights)


def test_documents_keep_the_module_alone() -> None:
    document = {"findings": [{"sources": [SOURCE, None]}], "rows": [{"source": SOURCE}]}
    plain = SOURCE | {"class": "", "file": None, "line": None, "code": None}
    assert Redactor().document(document) == {
        "findings": [{"sources": [plain, None]}],
        "rows": [{"source": plain}],
    }
    assert Redactor(source=True).document(document) == document


def cut_model(model: Path | str, folder: Path) -> str:
    """Cut a model from its first to its last node; return the case."""
    last = len(onnx.load(model).graph.node) - 1
    done = in_process("cut", model, "-s", "#0", "-e", f"#{last}", "-o", folder / "cut")
    return str(done.document["results"][0]["path"])


def test_source_code_is_left_out_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = cut_model(MODEL, tmp_path)
    in_process("bundle", case, "-o", tmp_path / "a.zip")
    assert HOME not in texts(tmp_path / "a.zip")
    said = capsys.readouterr().err
    assert has_line(said, "model.onnx", "--keep-source")
    in_process("bundle", case, "-o", tmp_path / "b.zip", "--keep-source")
    assert HOME in texts(tmp_path / "b.zip")


@pytest.mark.slow
def test_reports_of_a_bisection_name_the_module_alone(tmp_path: Path) -> None:
    wrong = f"{fake_candidate.HERE}:fault=wrong,nodes=node_linear"
    in_process("bisect", MODEL, "-c", wrong, "-o", tmp_path / "out")
    (folder,) = (tmp_path / "out").glob("bisect-*")
    in_process("bundle", folder, "-o", tmp_path / "a.zip")
    assert b"/home/me/project" not in texts(tmp_path / "a.zip") and b"from mix.qkv" in texts(
        tmp_path / "a.zip"
    )
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        document = json.loads(archive.read("a/run.json"))
    assert document["findings"][0]["sources"][0]["line"] is None
    in_process("bundle", folder, "-o", tmp_path / "b.zip", "--keep-source")
    assert b"project/torch_networks.py" in texts(tmp_path / "b.zip")


def test_all_metadata_is_left_out_of_models_and_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = onnx.load(MODEL)
    model.metadata_props.add(key="customer", value="acme")
    model.doc_string = model.graph.doc_string = model.graph.node[0].doc_string = "made for acme"
    onnx.save(model, "m.onnx")
    case = cut_model("m.onnx", tmp_path)
    in_process("bundle", case, "-o", "b.zip")
    assert b"acme" in texts(Path("b.zip"))
    in_process("bundle", case, "-o", "c.zip", "--strip-metadata")
    left = texts(Path("c.zip"))
    assert b"acme" not in left and b"name_scopes" not in left
    assert Redactor(metadata=False).document({"rows": [{"source": SOURCE}]}) == {
        "rows": [{"source": None}]
    }
    with raises(UsageError, "option.conflict"):
        in_process("bundle", case, "--strip-metadata", "--keep-source")
