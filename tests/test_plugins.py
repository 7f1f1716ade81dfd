"""A plugin is found by its file, its path or an installed package's entry point; its errors name
the file."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from subgraph import plugins
from subgraph.errors import UnknownName, UsageError
from tests.helpers.facts import has_line
from tests.helpers.refusals import raises


@pytest.mark.parametrize("kind", plugins.FOLDERS)
def test_names_are_words_that_load(kind: str) -> None:
    names = plugins.list_names(kind)
    assert names and all(re.fullmatch(r"[a-z0-9]+([-_][a-z0-9]+)*", name) for name in names)
    for name in names:
        assert plugins.load(kind, name).__doc__
        assert plugins.read_help(kind, name)


def test_hyphens_and_underscores_are_alike() -> None:
    assert plugins.load("metrics", "max-abs") is plugins.load("metrics", "max_abs")
    assert "max_abs" in plugins.list_names("metrics")


@pytest.mark.parametrize("name", ["max_abss", "__init__", "../plugins", "os.path", "", "max abs"])
def test_unknown_name(name: str) -> None:
    with raises(UnknownName, "plugin.unknown", "metric"):
        plugins.load("metrics", name)


def test_typo_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownName) as e:
        plugins.load("criteria", "numpi")
    assert has_line(e.value.what, "'numpi'") and e.value.nearest[0] == "numpy"


def test_file_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "my_metric.py"
    path.write_text(
        '"""Half."""\n\ndef measure(reference, candidate):\n    """0.5"""\n    return 0.5\n'
    )
    module = plugins.load("metrics", str(path))
    assert module.measure([], []) == 0.5 and plugins.read_help("metrics", str(path)) == "Half."
    assert plugins.load("metrics", str(path)) is module, "run once, however often it is asked for"
    assert sys.modules[module.__name__] is module


def test_file_may_import_what_lies_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "limits_beside_it.py").write_text("LIMIT = 3\n")
    (tmp_path / "mine.py").write_text("from limits_beside_it import LIMIT\n")
    assert plugins.load("metrics", str(tmp_path / "mine.py")).LIMIT == 3


def test_module_beside_a_file_hides_no_installed_namespace_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `google` of protobuf. A folder without a package in it, which some wheels leave, is not
    one."""
    installed = tmp_path / "installed"
    own = tmp_path / "own"
    for folder in (installed / "toyspace" / "inner", installed / "toyhelper", own):
        folder.mkdir(parents=True)
    (installed / "toyspace" / "inner" / "__init__.py").touch()
    for name in ("toyspace", "toyhelper"):
        (own / f"{name}.py").write_text("WORD = 'beside'\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(installed)])
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    (own / "mine.py").write_text(
        "import toyhelper, toyspace.inner\nfound = toyspace.inner.__file__\n"
    )
    module = plugins.load("metrics", str(own / "mine.py"))
    assert Path(module.found).parent == installed / "toyspace" / "inner"
    assert module.toyhelper.WORD == "beside"


def test_file_that_changed_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "rule.py"
    path.write_text("word = 1\n")
    assert plugins.load("criteria", str(path)).word == 1
    path.write_text("word = 22\n")
    os.utime(path, ns=(1, 1))
    assert plugins.load("criteria", str(path)).word == 22


def test_two_files_of_one_name_are_two_plugins(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "rule.py").write_text(f"word = {folder!r}\n")
    found = [plugins.load("criteria", str(tmp_path / folder / "rule.py")) for folder in ("a", "b")]
    assert [module.word for module in found] == ["a", "b"]
    assert found[0].__name__ != found[1].__name__


@pytest.mark.parametrize(
    "text", ["1 / 0", "def (", "raise SystemExit(3)", "import no_such_module_anywhere"]
)
def test_file_that_fails_says_where(tmp_path: Path, text: str) -> None:
    path = tmp_path / "broken.py"
    path.write_text(text)
    before = set(sys.modules)
    with raises(UsageError, "plugin.import-failed", "broken.py"):
        plugins.load("metrics", str(path))
    # no half of it stays
    assert not {name for name in set(sys.modules) - before if "broken" in name}


def test_no_such_file(tmp_path: Path) -> None:
    with raises(UsageError, "file.not-found", "none.py"):
        plugins.load("metrics", str(tmp_path / "none.py"))


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that offers two metrics, of which one is broken, and a criterion of a name that is
    ours."""
    package = tmp_path / "subcut_half"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "half.py").write_text("def measure(reference, candidate):\n    return 0.5\n")
    info = tmp_path / "subcut_half-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: subcut-half\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[subcut.metrics]\nhalf = subcut_half.half\nwrong = subcut_half.none\nrmse ="
        " subcut_half.half\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("installed")
def test_installed_package_offers_more() -> None:
    names = plugins.list_names("metrics")
    assert names[-2:] == ["half", "wrong"] and names.count("rmse") == 1
    assert plugins.load("metrics", "half").measure([], []) == 0.5
    # ours come first
    assert plugins.load("metrics", "rmse").__name__ == "subgraph.comparison.metrics.rmse"
    assert has_line(plugins.read_help("metrics", "half"), "subcut_half.half")


@pytest.mark.usefixtures("installed")
def test_broken_package_is_named() -> None:
    with raises(UsageError, "plugin.import-failed", "'wrong': subcut_half.none"):
        plugins.load("metrics", "wrong")


def test_file_that_keeps_its_size_and_time_is_run_as_it_is_now(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    seen = []
    for value in (1, 2):
        file.write_text(f"VALUE = {value}\n")
        os.utime(file, (1e9, 1e9))
        code = f"from subgraph import plugins; print(plugins.load('metrics', {str(file)!r}).VALUE)"
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        seen.append(done.stdout.strip())
    assert seen == ["1", "2"]
