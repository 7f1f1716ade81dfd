"""Releases of runtimes. Covers `environments.releases`."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import pytest

from fixtures.toy_releases import wheel
from subgraph.environments import releases
from subgraph.environments.installation import (
    Installation,
    list_environments,
    make,
    read_requirements,
)
from subgraph.errors import BackendError, UnknownName, UsageError
from subgraph.runtime.candidate import parse
from subgraph.storage.tensors import find_dtype
from tests.helpers.facts import has_line
from tests.helpers.refusals import raises
from tests.helpers.run_command import run_program


def test_each_backend_with_releases_names_its_package() -> None:
    named = {
        name: releases.find_package(name)[0]
        for name in ("ort", "openvino", "opencv", "tract", "mnn", "ncnn")
    }
    assert named["ort"] == "onnxruntime"
    assert named["opencv"] == "opencv-python-headless"
    with raises(UsageError, "release.unsupported", "cmd") as error:
        releases.find_package("cmd")
    assert has_line(
        error.value.hint, "litert, mnn", ", ncnn, opencv", ", openvino, ort", ", tract, web"
    )


def test_old_releases_run_with_the_numpy_that_they_were_built_for() -> None:
    assert releases.make_release("ort", "1.18.1").requirements == ("onnxruntime==1.18.1", "numpy<2")
    assert releases.make_release("ort", "1.19.0").requirements == ("onnxruntime==1.19.0", "numpy")
    assert releases.make_release("ort", "1.100.0").requirements[1] == "numpy"
    command = " ".join(releases.make_release("ort", "1.19.0").list_commands(Path("x"))[1])
    # an old one without a wheel would be built for minutes
    assert has_line(command, "--no-deps", "--only-binary")


def test_dependencies_of_a_release_are_of_its_day() -> None:
    assert releases.make_release("ncnn", "1.0.20250503").requirements == (
        "ncnn==1.0.20250503",
        "numpy",
        "pnnx<=20250503",
    )
    assert releases.make_release("ncnn", "").requirements == ("ncnn", "numpy", "pnnx")
    # apart, though none is named
    assert parse("ncnn:package=ncnn").installation == releases.make_release("ncnn", "")


def test_release_is_part_of_a_spec() -> None:
    candidate = parse("ort==1.22.1:opt=basic")
    assert (candidate.backend, candidate.release, dict(candidate.options)) == (
        "ort",
        "1.22.1",
        {"opt": "basic"},
    )
    assert candidate.identity("")["release"] == "1.22.1"
    assert "release" not in parse("ort").identity("")
    # of a file that names it, only with trust
    assert candidate.code.shown == ["onnxruntime==1.22.1"]
    for wrong, code, about in [
        ("ort==", "release.malformed", "''"),
        ("ort==x;y", "release.malformed", "x;y"),
        ("cmd==1:true", "release.unsupported", "cmd"),
    ]:
        with raises((UsageError, UnknownName), code, about):
            parse(wrong)


@pytest.mark.slow
def test_releases_of_a_folder_are_listed_installed_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    backend = tmp_path / "toy.py"
    backend.write_text('"""A toy."""\nRELEASES = "toyruntime", ""\n')
    sources = ("--no-index", "--find-links", str(wheels))
    with raises(BackendError, "release.no-index", "toyruntime", "ERROR: No matching"):
        releases.find_published(str(backend), sources)
    for version in ("1.9", "1.10", "2.0rc1"):
        wheel(wheels, "toyruntime", version, "")
    assert releases.find_published(str(backend), sources) == ["1.9", "1.10"]
    assert releases.find_installed(str(backend)) == []
    python = make(Installation(("toyruntime==1.9",), sources, alone=True))
    assert releases.find_installed(str(backend)) == ["1.9"]
    assert [read_requirements(folder) for folder in list_environments()] == [["toyruntime==1.9"]]
    assert python.exists()


def test_another_environment_sees_what_reads_models_and_nothing_else(tmp_path: Path) -> None:
    python = tmp_path / "own" / "bin" / "python"
    other = tmp_path / "toy" / "bin" / "python"
    for folder in ("own", "toy"):
        (tmp_path / folder).mkdir()
    (tmp_path / "own" / "requirements.txt").write_text("onnxruntime==1.22.1\nnumpy\n")
    releases.lend(tmp_path / "lent", python)
    assert sorted(p.name for p in (tmp_path / "lent").iterdir()) == [
        "google",
        "ml_dtypes",
        "onnx",
        "subgraph",
    ]
    (tmp_path / "toy" / "requirements.txt").write_text("toyruntime==1\n")
    releases.lend(tmp_path / "more", other)
    assert (tmp_path / "more" / "numpy" / "__init__.py").is_file()
    asked = (
        "import subgraph.runtime.worker_main, importlib.util as u; print(u.find_spec('networkx'))"
    )
    said = run_program(
        [sys.executable, "-S", "-P", "-c", asked], env={"PYTHONPATH": str(tmp_path / "lent")}
    )
    assert said.stdout == "None\n", said.stderr


def test_interpreter_of_the_users_is_lent_what_any_python_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seen(
        version: tuple[int, int], present: set[str], machine: str = platform.machine()
    ) -> None:
        interpreter = releases.Interpreter(version, machine, frozenset(present))
        monkeypatch.setattr(releases, "read_interpreter", lambda _: interpreter)

    python = tmp_path / "bin" / "python"
    seen((3, 14), {"numpy"})
    releases.lend(tmp_path / "other", python)
    assert sorted(p.name for p in (tmp_path / "other").iterdir()) == ["google", "onnx", "subgraph"]
    seen((3, 14), set())
    with raises(BackendError, "package.not-installed", "no numpy"):
        releases.lend(tmp_path / "none", python)
    seen((3, 10), {"numpy"})
    with raises(BackendError, "environment.old-python", "3.10", "3.11"):
        releases.lend(tmp_path / "old", python)
    seen(sys.version_info[:2], {"numpy"}, "riscv64")
    with raises(BackendError, "package.not-installed", "no protobuf"):
        releases.lend(tmp_path / "foreign", python)
    seen(sys.version_info[:2], {"numpy", "google.protobuf", "onnx"}, "riscv64")
    releases.lend(tmp_path / "processor", python)
    # nothing that is built for this one
    assert [p.name for p in (tmp_path / "processor").iterdir()] == ["subgraph"]


def test_interpreter_is_asked_what_it_has(tmp_path: Path) -> None:
    found = releases.read_interpreter(Path(sys.executable))
    assert (found.version, found.machine) == (sys.version_info[:2], platform.machine())
    assert {"numpy", "ml_dtypes", "onnx", "google.protobuf"} <= found.present
    with raises(BackendError, "environment.not-python"):
        releases.read_interpreter(tmp_path / "python")


def test_interpreter_without_ml_dtypes_says_which_type_needs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with raises(BackendError, "package.not-installed", "bfloat16"):
        find_dtype("bfloat16")
