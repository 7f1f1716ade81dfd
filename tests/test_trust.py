"""Every field of a file that can name code: nothing of it runs without `--trust`, and it runs with
it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from subgraph import trust
from subgraph.commands.resolve import find_criterion_code
from subgraph.errors import UsageError
from subgraph.project import Project
from subgraph.runtime.candidate import parse
from subgraph.trust import NamedCode
from tests.helpers.chain_models import chain
from tests.helpers.facts import has_line
from tests.helpers.refusals import raises
from tests.helpers.run_command import in_process, subcut

MARK = """import os, pathlib
pathlib.Path(os.environ["MARKFILE"]).write_text("ran")
"""
CRITERION = f"""{MARK}
from subgraph.comparison.criteria import agree
def rule(words): return lambda pair, context: agree("evil")
def measure(*both): return 0.0
"""
BACKEND = f"""{MARK}
import onnx
from onnx.reference import ReferenceEvaluator
def load(model, options):
    evaluator = ReferenceEvaluator(str(model))
    return lambda feeds: dict(zip(evaluator.output_names, evaluator.run(None, feeds)))
"""
COMMAND = f"""{MARK}
raise SystemExit(125)
"""


@dataclass(frozen=True)
class Field:
    """A field that can name code.

    Attributes:
        file: which file it stands in. value: what is written there, as TOML or JSON.
        words: the command that reads it. library: it names no Python file, so only its refusal is
            tested.
    """

    file: str
    key: str
    value: str
    words: tuple[str, ...] = ("compare", "m.onnx")
    library: bool = False


REPLAY = ("replay", "subcut_out/n0__n1")
NEXT = ("manual", "next")
FIELDS = [
    Field("subcut.toml", "criterion", "criterion.py"),
    Field("subcut.toml", "criterion", "./criterion.py:strict"),
    Field("subcut.toml", "criterion", "threshold:./criterion.py>=0"),
    Field("subcut.toml", "criterion", "cosine>0.5,criterion.py<1", ("sweep", "--only", "Abs")),
    Field("subcut.toml", "criterion", "criterion.py", ("bisect", "m.onnx")),
    Field("subcut.toml", "criterion", "criterion.py", ("manual", "start", "m.onnx")),
    Field("subcut.toml", "criterion", "criterion.py", REPLAY),
    Field("subcut.toml", "candidate", "backend.py"),
    Field("subcut.toml", "candidate", "cmd:python command.py {model}"),
    Field("subcut.toml", "candidate", "ort:custom_ops=lib.so", library=True),
    Field("subcut.toml", "candidates.x.spec", "backend.py", ("compare", "m.onnx", "-c", "x")),
    Field("subcut.toml", "candidates.x.run", "python command.py", ("compare", "m.onnx", "-c", "x")),
    Field("subcut.toml", "reference", "backend.py"),
    Field("subcut.toml", "reference", "backend.py", ("dump", "m.onnx", "--all")),
    Field("subcut.toml", "reference", "backend.py", ("cut", "m.onnx", "-s", "n0", "-e", "n0")),
    Field("subcut.toml", "custom_ops", "lib.so", library=True),
    Field("state.json", "criterion", "criterion.py", NEXT),
    Field("state.json", "criterion", "threshold:./criterion.py>=0", ("manual", "good", "1")),
    Field("state.json", "reference", "backend.py", NEXT),
    Field("state.json", "reference", "backend.py:threads=1", NEXT),
    Field("state.json", "custom_ops", "lib.so", NEXT, library=True),
    Field("manifest.json", "backend", "backend.py", REPLAY),
    Field("manifest.json", "run", "python command.py {model}", REPLAY),
    Field("manifest.json", "convert", "python command.py {model}", REPLAY),
    Field("manifest.json", "custom_ops", "lib.so", REPLAY, library=True),
]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, code, a case and a manual loop."""
    folder = tmp_path_factory.mktemp("template")
    chain(folder / "m.onnx", ["n0", "n1", "n2"])
    for name, text in (
        ("criterion.py", CRITERION),
        ("backend.py", BACKEND),
        ("command.py", COMMAND),
        ("lib.so", ""),
    ):
        (folder / name).write_text(text)
    before = Path.cwd()
    os.chdir(folder)
    try:
        in_process("-q", "cut", "m.onnx", "-s", "n0", "-e", "n1")
        in_process("-q", "manual", "start", "m.onnx")
    finally:
        os.chdir(before)
    return folder


@pytest.fixture
def place(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of it, in which the test stands."""
    shutil.copytree(template, tmp_path / "place")
    monkeypatch.chdir(tmp_path / "place")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("MARKFILE", str(tmp_path / "mark"))
    yield tmp_path / "place"


def write(field: Field, place: Path) -> None:
    """Put the field into its file, as somebody who edits it would."""
    if field.file == "subcut.toml":
        table, _, key = field.key.rpartition(".")
        (place / "subcut.toml").write_text(
            f"[{table}]\n" * bool(table) + f"{key} = {json.dumps(field.value)}\n"
        )
    elif field.file == "state.json":
        file = next(place.glob("subcut_out/manual-*/state.json"))
        state = json.loads(file.read_text())
        state["model"]["path"] = str(place / "m.onnx")
        state["request"][field.key] = (
            str(place / field.value) if field.key == "custom_ops" else field.value
        )
        file.write_text(json.dumps(state))
    else:
        backend = "cmd" if field.key in ("run", "convert") else "ort"
        options = {} if field.key == "backend" else {field.key: field.value}
        options |= {"run": "python other.py"} if field.key == "convert" else {}
        identity = {
            "backend": str(place / field.value) if field.key == "backend" else backend,
            "options": options,
        }
        request = {"candidate": "x", "identity": identity | {"timeout": 60.0, "memory": None}}
        around = {
            "schema": "subcut.evidence/1",
            "source": {},
            "command": "",
            "request": request,
            "files": [],
        }
        (place / "subcut_out/manifest.json").write_text(json.dumps(around))


@pytest.mark.parametrize("field", FIELDS, ids=lambda f: f"{f.file} {f.key} {f.value} {f.words[0]}")
def test_without_trust_nothing_of_it_runs(field: Field, place: Path, tmp_path: Path) -> None:
    write(field, place)
    with raises(UsageError, "trust.required") as refused:
        in_process("-q", *field.words)
    assert "--trust" in refused.value.hint and has_line(refused.value.hint, "not what", "loads")
    assert not (tmp_path / "mark").exists() and not (tmp_path / "config").exists()


def test_lint_asks_a_candidate_for_its_name_alone_so_it_needs_no_trust(
    place: Path, tmp_path: Path
) -> None:
    for line in ('spec = "backend.py"', 'run = "python command.py {model}"'):
        (place / "subcut.toml").write_text(f"[candidates.x]\n{line}\n")
        done = subcut("lint", "m.onnx", "-c", "x", cwd=place)
        assert (done.code, "would run" in done.err) == (0, False), done
        assert not (tmp_path / "mark").exists()


def test_file_is_no_scheme_of_an_executor(place: Path, tmp_path: Path) -> None:
    """It would be imported while the candidate is read, before anybody could ask."""
    (place / "subcut.toml").write_text(
        '[candidates.x]\nspec = "ort"\nexecutor = "./backend.py://there"\n'
    )
    done = subcut("compare", "m.onnx", "-c", "x", "--trust", cwd=place)
    assert (done.code, "does not name an executor" in done.err) == (2, True), done
    assert not (tmp_path / "mark").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "field", [f for f in FIELDS if not f.library][::8], ids=lambda f: f"{f.file} {f.key} {f.value}"
)
def test_with_trust_it_runs_and_is_asked_about_again_when_it_changes(
    field: Field, place: Path, tmp_path: Path
) -> None:
    write(field, place)
    env = {"XDG_CONFIG_HOME": str(tmp_path / "config"), "MARKFILE": str(tmp_path / "mark")}
    shutil.copytree(place / "subcut_out", tmp_path / "before")
    done = subcut(*field.words, "--trust", cwd=place, env=env)
    assert (tmp_path / "mark").is_file(), done
    (tmp_path / "mark").unlink()
    shutil.rmtree(place / "subcut_out")
    (tmp_path / "before").rename(place / "subcut_out")
    for name in ("criterion.py", "backend.py", "command.py"):
        (place / name).write_text((place / name).read_text() + "# edited\n")
    again = subcut(*field.words, cwd=place, env=env)
    assert again.code == 2 and has_line(again.err, "run code") and not (tmp_path / "mark").exists()


def test_typed_candidate_runs(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_process("-q", "compare", "m.onnx", "--criterion", "criterion.py")
    assert (tmp_path / "mark").exists()
    (tmp_path / "mark").unlink()
    (place / "criterion.py").write_text(f"{CRITERION}\n# another\n")
    monkeypatch.setenv("SUBCUT_CRITERION", "criterion.py")
    in_process("-q", "compare", "m.onnx")
    assert (tmp_path / "mark").exists()


def test_loop_goes_on_with_what_was_typed_at_its_start(place: Path) -> None:
    in_process("-q", "manual", "start", "m.onnx", "-o", "mine", "--criterion", "criterion.py")
    in_process("-q", "manual", "next", "-o", "mine")
    (place / "criterion.py").write_text(f"{CRITERION}\n# edited\n")
    with raises(UsageError, "trust.required", "criterion", "state.json"):
        in_process("-q", "manual", "next", "-o", "mine")
    in_process("-q", "manual", "next", "-o", "mine", "--trust")


def test_settings_of_a_case_do_not_take_effect_silently(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    case = place / "subcut_out/n0__n1"
    (case / "subcut.toml").write_text('criterion = "criterion.py"\n')
    monkeypatch.chdir(case)
    with raises(UsageError, "trust.required"):
        in_process("replay", ".")
    assert has_line(capsys.readouterr().err, "bundle")


# ------------------------------------------------------------ what it reaches


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("import helper", "helper.py"),
        ("from inner import part", "inner/part.py"),
        ("import subprocess\nsubprocess.run(['./tool.sh', 'x'])", "tool.sh"),
        ("import os\nos.system('sh tool.sh x')", "tool.sh"),
        ("import first", "last.py"),
        ("import importlib\nimportlib.import_module('helper')", "helper.py"),
    ],
)
@pytest.mark.parametrize("key", ["criterion", "candidate"])
def test_trust_ends_where_what_it_reaches_changes(
    key: str, text: str, other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    tmp_path /= "here"
    (tmp_path / "inner").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for name in ("helper.py", "last.py", "tool.sh"):
        (tmp_path / name).write_text("")
    (tmp_path / "first.py").write_text("import last")
    (tmp_path / "inner/part.py").write_text("")
    (tmp_path / "run.py").write_text(text)
    project = Project(tmp_path / "subcut.toml", {"candidate": "run.py"})

    def code() -> NamedCode:
        return (
            find_criterion_code("run.py", "subcut.toml")
            if key == "criterion"
            else parse("run.py", project).code
        )

    with pytest.raises(UsageError) as asked:
        trust.require(code(), False)
    assert has_line(asked.value.hint, "files of")
    assert trust.require(code(), True) == trust.require(code(), False) == str(tmp_path / "run.py")
    (tmp_path / other).write_text("# edited")
    with raises(UsageError, "trust.required", "run.py"):
        trust.require(code(), False)


@pytest.mark.posix("access lists are not read on Windows")
def test_list_of_trusted_code_that_others_can_write_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    code = NamedCode("criterion", ["rules.py"], "subcut.toml")
    trust.require(code, True)
    assert trust.require(code, False)
    (tmp_path / "subcut" / "trusted").chmod(0o666)
    with raises(UsageError, "trust.required"):
        trust.require(code, False)
