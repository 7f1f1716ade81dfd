"""Whatever an edited document of ours holds: an error that names the file, or none; never an error
of subcut itself."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from hypothesis import HealthCheck, given, settings, strategies as st

from subgraph.errors import BackendError, InputError, SubcutError
from subgraph.runtime.worker import Worker
from subgraph.view.page_session import LayoutRequest
from subgraph.view.server import ViewServer
from tests.helpers.chain_models import chain
from tests.helpers.facts import has_line
from tests.helpers.run_command import in_process

BACKEND = """
import onnx
from onnx.reference import ReferenceEvaluator
def load(model, options):
    evaluator = ReferenceEvaluator(str(model))
    bad = any(node.name == "n1" for node in onnx.load(str(model)).graph.node)
    return lambda feeds: {k: v + bad for k, v in zip(evaluator.output_names, evaluator.run(None, feeds))}
"""  # noqa: E501
CASE = "subcut_out/n0__n1"
FOUND = "subcut_out/bisect-bad.py"
LOOP = "subcut_out/manual-device"
UNPACKED = "b"
FORMS = "text,html,md,model-explorer"
READERS = {  # document → the commands that read it
    f"{CASE}/manifest.json": [
        f"replay {CASE} -c ort",
        f"bundle {CASE} -o q.zip",
        "cut m.onnx -s n0 -e n1",
        f"compare m.onnx -i {CASE}",
        f"compare m.onnx --recorded {CASE}",
        f"export {CASE} -o e",
    ],
    f"{FOUND}/manifest.json": [
        f"replay {FOUND}",
        f"bundle {FOUND} -o q.zip",
        "bisect m.onnx -c bad.py -i x.npy",
    ],
    f"{FOUND}/run.json": [
        f"report {FOUND}/run.json -f {FORMS} -o r",
        f"bundle {FOUND} -o q.zip",
        f"bundle {FOUND}/culprit -o q.zip",
        f"view {FOUND} --no-browser",
    ],
    f"{FOUND}/culprit/manifest.json": [f"replay {FOUND} -c ort", f"bundle {FOUND} -o q.zip"],
    f"{LOOP}/state.json": [
        "manual log",
        "manual next",
        "manual good",
        "manual take",
        "manual undo",
    ],
    f"{LOOP}/todo/1/manifest.json": [
        "manual take",
        f"replay {LOOP}/todo/1 -c ort",
        f"bundle {LOOP}/todo/1 -o q.zip",
    ],
    f"{UNPACKED}/bundle.json": [f"replay {UNPACKED}", f"replay {UNPACKED} -c ort"],
    "subcut.json": ["compare", "backends", "inspect", "bisect -c a", "cut -s n0 -e n0"],
}
SETTINGS = {
    "model": "m.onnx",
    "output": "subcut_out",
    "input": ["x.npy"],
    "shape": [],
    "seed": 1,
    "mean": "1",
    "scale": "1",
    "bgr": False,
    "format": "npy",
    "candidate": "ort",
    "reference": "ort",
    "criterion": "noise",
    "timeout": 9.0,
    "memory": "4G",
    "memory_limit": "8G",
    "jobs": 1,
    "candidates": {
        "a": {
            "spec": "ort",
            "timeout": 3.0,
            "memory_limit": "8G",
            "multi": False,
            "precision": "fp16",
        }
    },
}
ODD: st.SearchStrategy[Any] = st.sampled_from(
    [
        None,
        -1,
        *"x 7 nan 1e3".split(),
        "",
        [],
        {},
        float("inf"),
        10**400,
        10**30,
        True,
        1.5,
        ["a", {"b": 1}],
        "../../etc/passwd",
        "\0",
    ]
)
DELETED = object()
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with each kind of document, in which the tests stand; no process can be started
    there any more."""
    folder = tmp_path_factory.mktemp("documents")
    before = Path.cwd()
    os.chdir(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
        chain(folder / "m.onnx", ["n0", "n1", "n2"])
        (folder / "bad.py").write_text(BACKEND)
        np.save("x.npy", np.array([[1, -2, 3]], np.float32))
        in_process("-q", "cut", "m.onnx", "-s", "n0", "-e", "n1")
        in_process("-q", "manual", "start", "m.onnx")
        in_process("-q", "bisect", "m.onnx", "-c", "bad.py", "-i", "x.npy")
        culprit = f"{FOUND}/culprit"
        in_process("-q", "bundle", culprit, "-o", "b.zip", "--candidate-files", "bad.py")
        in_process("-q", "replay", "b.zip", "--trust")
        (folder / "subcut.json").write_text(json.dumps(SETTINGS))
        patch.setattr(Worker, "__init__", _no_process)
        patch.setattr(ViewServer, "serve_forever", _looked_at)
        shutil.copytree(folder, folder / ".kept", ignore=shutil.ignore_patterns(".kept"))
        yield folder
    os.chdir(before)


def _no_process(*_: object, **__: object) -> None:
    raise BackendError("nothing runs here")


def _looked_at(server: ViewServer, poll_interval: float) -> None:
    """What the page asks first."""
    server.session.describe_model()
    server.session.lay_out(LayoutRequest())
    json.dumps(server.session.runs.wait_for_events(0, 0))


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path to every value in a document; of a list to its first three."""
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value[:3])
        if isinstance(value, list)
        else ()
    )
    return [at, *(p for k, v in inner for p in places(v, (*at, k)))]


def edited(document: Any, at: tuple[Any, ...], value: Any) -> Any:
    """A copy with another value at a place, or without it."""
    if not at:
        return None if value is DELETED else value
    document = inner = copy.deepcopy(document)
    for key in at[:-1]:
        inner = inner[key]
    if value is DELETED:
        del inner[at[-1]]
    else:
        inner[at[-1]] = value
    return document


def toml(value: Any) -> str:
    """A value as TOML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    return '""' if value is None else "inf" if value == float("inf") else json.dumps(value)


def put(documents: Path, file: str, document: Any) -> None:
    """Write an edited document; all others are as they were."""
    for name in READERS:
        (documents / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(documents / ".kept" / name, documents / name)
    (documents / "subcut.toml").unlink(missing_ok=True)
    if file == "subcut.json":
        lines = (
            [f"{key} = {toml(value)}\n" for key, value in document.items()]
            if isinstance(document, dict)
            else []
        )
        (documents / "subcut.toml").write_text("".join(lines))
    else:
        (documents / file).write_text(json.dumps(document))


@pytest.mark.parametrize("file", READERS)
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    max_examples=60,  # 480 of all kinds
    derandomize="SUBCUT_SEED" not in os.environ,  # with it, another run draws others
)
@given(st.data())
def test_no_edited_document_is_an_internal_error(
    file: str, documents: Path, data: st.DataObject
) -> None:
    document = json.loads((documents / ".kept" / file).read_text())
    at = data.draw(st.sampled_from(places(document)), label="place")
    put(documents, file, edited(document, at, data.draw(ODD | st.just(DELETED), label="value")))
    command = data.draw(st.sampled_from(READERS[file]), label="command")
    # any other is an error of subcut itself
    with contextlib.suppress(SubcutError, typer.TyperException):
        in_process("-q", *command.split())


CASE_FILE = f"{CASE}/manifest.json"
FOUND_FILE = f"{FOUND}/manifest.json"
STATE_FILE = f"{LOOP}/state.json"
TODO_FILE = f"{LOOP}/todo/1/manifest.json"
BUNDLE_FILE = f"{UNPACKED}/bundle.json"
OUTPUT = ("outputs", 0, "samples", 0, "files")


@pytest.mark.parametrize(
    ("file", "at", "value", "says"),
    [
        (CASE_FILE, ("inputs", 0, "name"), 3, ("n0__n1/manifest.json", "inputs[0].name")),
        (CASE_FILE, ("samples",), {}, ("manifest.json", "samples: expected a list")),
        (FOUND_FILE, ("request", "identity"), [], ("request", "identity: expected an object")),
        (FOUND_FILE, ("request", "identity", "timeout"), 10**400, ("bounds",)),
        (STATE_FILE, ("request", "feeding", "seed"), None, ("feeding.seed", "whole number")),
        (STATE_FILE, ("asked", 0, "key"), DELETED, ("asked[0].key", "missing")),
        (TODO_FILE, (*OUTPUT, 1, "dtype"), "x", ("type x",)),
        (TODO_FILE, OUTPUT, [], ("no file", "output")),
        ("subcut.json", ("timeout",), 10**400, ("subcut.toml", "'timeout'", "number")),
        (BUNDLE_FILE, ("files",), [], ("bundle.json", "files: expected an object")),
    ],
)
def test_the_error_names_file_and_key(
    file: str, at: tuple[Any, ...], value: Any, says: tuple[str, ...], documents: Path
) -> None:
    put(documents, file, edited(json.loads((documents / ".kept" / file).read_text()), at, value))
    (documents / LOOP / "state-before.json").unlink(missing_ok=True)
    with pytest.raises(SubcutError) as refused:
        in_process("-q", *READERS[file][0].split())
    assert has_line(refused.value.what, *says)
    assert refused.value.hint and refused.value.exit_code == InputError.exit_code
