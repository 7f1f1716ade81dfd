"""A SPEC or a table of the project file becomes a candidate. Its identity covers all that its
results depend on; commands from a project file run only if they are trusted. Covers
`runtime.command_line`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from subgraph import project, trust
from subgraph.errors import UnknownName, UsageError
from subgraph.project import Project
from subgraph.runtime import candidate, command_line
from subgraph.runtime.candidate import DEFAULT_TIMEOUT, Candidate, parse
from subgraph.runtime.command_line import Code, list_python_code
from subgraph.system import PYTHON
from tests.helpers.facts import has_line
from tests.helpers.refusals import raises

Npu = Callable[..., Candidate]  # of a table of the project file
DOCS = Path(__file__).parents[2] / "docs/candidates"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to stand in and a home of one's own."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    return here


def toml(text: str, folder: Path | None = None) -> Project:
    """The project of a file with this text."""
    place = folder or Path.cwd()
    (place / "subcut.toml").write_text(text)
    return project.load(place)


def script(path: Path, text: str = "exit 0") -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


# ------------------------------------------------------------ SPEC


@pytest.mark.parametrize(
    ("spec", "backend", "options"),
    [
        ("ort", "ort", {}),
        ("ort:", "ort", {}),
        ("ort:opt=basic", "ort", {"opt": "basic"}),
        ("ort:opt=basic,threads=2", "ort", {"opt": "basic", "threads": "2"}),
        ("ort:opt=basic,", "ort", {"opt": "basic"}),
        ("ort:session.set_denormal_as_zero=1", "ort", {"session.set_denormal_as_zero": "1"}),
        ("ort:device=AUTO:GPU,CPU,threads=2", "ort", {"device": "AUTO:GPU,CPU", "threads": "2"}),
        ("ort:a=b=c", "ort", {"a": "b=c"}),
        ("ort:a=", "ort", {"a": ""}),
        ("ort:custom_ops=/lib/x.py", "ort", {"custom_ops": "/lib/x.py"}),
        ("ort:custom_ops=/a,b/c=d.so,opt=all", "ort", {"custom_ops": "/a,b/c=d.so", "opt": "all"}),
        ("onnx-reference", "onnx-reference", {}),
        ("cmd:./run.sh", "cmd", {"run": "./run.sh"}),
        (
            "cmd:ssh board './run it.sh' {model}:x,y=z",
            "cmd",
            {"run": "ssh board './run it.sh' {model}:x,y=z"},
        ),
        ("cmd:python a.py", "cmd", {"run": "python a.py"}),
    ],
)
def test_spec(spec: str, backend: str, options: dict[str, str]) -> None:
    for settings in (None, Project(), toml("seed = 1")):
        found = parse(spec, settings)
        assert (found.backend, found.options) == (backend, options)
        assert (found.name, found.precision, found.multi) == (spec, None, None)
        assert (found.timeout, found.memory, found.origin) == (DEFAULT_TIMEOUT, None, "")


@pytest.mark.parametrize("spec", ["", "cmd:  ", "or\x1b[31m"])
def test_slip_is_refused_with_a_hint(spec: str) -> None:
    with pytest.raises(UsageError) as e:
        parse(spec)
    assert e.value.hint and "\x1b" not in e.value.what


def test_every_recipe_is_named() -> None:
    assert sorted(candidate.RECIPES) == sorted(
        page.stem for page in DOCS.glob("*.md") if page.stem.islower()
    )
    for name in set(candidate.RECIPES) - {"litert", "tensorrt"}:  # a backend, a device as well
        with raises(UsageError, "candidate.is-recipe", f"docs/candidates/{name}.md"):
            parse(name)
    for name in candidate.RECIPES:
        # as the hint says
        assert (DOCS / name).is_dir() and "\n[candidates." in (DOCS / f"{name}.md").read_text()
    # one's own comes first
    assert parse("torch", toml('[candidates.torch]\nrun = "./run.sh"\n')).backend == "cmd"


@pytest.mark.parametrize(
    "braces", ['\'{"a": 1, "b": {"c": 2}}\'', "'{ print $1 }'", "${HOME}", "{}", "{a,b}", "{{x}}"]
)
def test_braces_that_are_no_places(braces: str) -> None:
    assert parse(f"cmd:./run.sh {{model}} {braces}").backend == "cmd"


def test_names_of_the_project_file_are_near_too() -> None:
    with pytest.raises(UnknownName) as e:
        parse("my npo", toml('[candidates."my npu"]\nspec = "ort"\n'))
    assert e.value.nearest == ("my npu",)


@pytest.mark.parametrize(
    "name",
    [
        "mine.py",
        "my backend.py",
        "a.py.py",
        pytest.param("a:b.py", marks=pytest.mark.posix("Windows has no such name")),
    ],
)
def test_python_file(name: str, home: Path) -> None:
    (home / name).write_text("")
    for spec in (name, f"./{name}", str(home / name)):
        found = parse(f"{spec}:a=1,b=2.py")
        assert found.backend == str(home / name)
        assert found.options == {"a": "1", "b": "2.py"}
        assert parse(spec).options == {}


@given(
    st.integers(1, 10**6),
    st.sampled_from("kKmMgGtT"),
    st.sampled_from(["", "b", "B", "iB", "ib"]),
    st.booleans(),
)
def test_size_of_memory(number: int, unit: str, tail: str, space: bool) -> None:
    found = candidate.parse_memory(f"{number}{' ' * space}{unit}{tail}")
    assert found == number * candidate.UNITS[unit.lower()]


@given(st.integers(1, 2**80))
def test_size_in_bytes_is_exact(number: int) -> None:
    assert candidate.parse_memory(str(number)) == candidate.parse_memory(f"{number}B") == number


@given(st.integers(0, 999), st.sampled_from("kmgt"))
def test_broken_size(thousandths: int, unit: str) -> None:
    found = candidate.parse_memory(f"1.{thousandths:03}{unit}")
    assert found == (1000 + thousandths) * candidate.UNITS[unit] // 1000


@pytest.mark.parametrize(
    "text",
    ["", "G", "0", "0.0G", "0.2", "-1G", "1e3", "1 G B", "8X", "inf", "nan", "٣G", "8Gi", "1_0"],
)
def test_no_size(text: str) -> None:
    if text == "8Gi":
        assert candidate.parse_memory(f"{text}B") == 8 << 30
    with raises(UsageError, "option.malformed"):
        candidate.parse_memory(text)


# ------------------------------------------------------------ project file


def test_table_with_commands(home: Path) -> None:
    found = parse(
        "npu",
        toml(
            "[candidates.npu]\n"
            'run = "./run.sh {converted} {inputs} {outputs}"\n'
            'convert = "./convert.sh"\n'
            'precision = "fp16"\nmulti = true\ntimeout = 90\nmemory_limit = "2G"\n'
        ),
    )
    assert found == Candidate(
        "npu",
        "cmd",
        {
            "convert": "./convert.sh",
            "run": "./run.sh {converted} {inputs} {outputs}",
            "folder": str(home),
        },
        "fp16",
        True,
        90.0,
        2 << 30,
        str(home / "subcut.toml"),
    )


def test_table_with_a_spec(home: Path) -> None:
    settings = toml(
        '[candidates."my npu"]\nspec = "ort:opt=basic"\ntimeout = 1.5\n[candidates.ort]\nspec ='
        ' "ort"\n'
    )
    found = parse("my npu", settings)
    assert (found.name, found.backend, found.options, found.timeout) == (
        "my npu",
        "ort",
        {"opt": "basic"},
        1.5,
    )
    assert parse("ort", settings).origin == str(home / "subcut.toml")


def test_table_of_pyproject(home: Path) -> None:
    (home / "pyproject.toml").write_text('[tool.subcut.candidates.npu]\nrun = "./run.sh"\n')
    assert parse("npu", project.load(home)).origin == str(home / "pyproject.toml")


def test_the_form_of_a_commands_tensors_is_declared(home: Path) -> None:
    candidate = parse("cmd[inputs=float16,outputs=big:NHWC]:./run.sh {model}")
    assert candidate.options == {
        "run": "./run.sh {model}",
        "inputs": "float16",
        "outputs": "big:NHWC",
    }
    (home / "subcut.toml").write_text('[candidates.npu]\nrun = "./run.sh"\noutputs = "NHWC"\n')
    assert parse("npu", project.load(home)).options["outputs"] == "NHWC"
    with raises(UnknownName, "candidate.unknown-key", "output"):
        parse("cmd[output=NHWC]:./run.sh")


@pytest.mark.parametrize(
    ("table", "error"),
    [
        ("npu = 3", UsageError),
        ("npu = {}", UsageError),
        ('npu = {spec = "ort", run = "./run.sh"}', UsageError),
        ('npu = {spec = "ort", convert = "./convert.sh"}', UsageError),
        ('npu = {run = ["./run.sh"]}', UsageError),
        ('npu = {run = ""}', UsageError),
        ('npu = {run = "a", timeout = true}', UsageError),
        ('npu = {run = "a", timeout = 0}', UsageError),
        ('npu = {run = "a", timeout = nan}', UsageError),
        ('npu = {run = "a {modle}"}', UnknownName),
        ('npu = {runn = "a"}', UnknownName),
        ('npu = {spec = "npx"}', UnknownName),
    ],
)
def test_slip_in_a_table_is_refused(table: str, error: type[UsageError]) -> None:
    with pytest.raises(error):
        parse("npu", toml(f"[candidates]\n{table}\n"))


def test_unknown_key_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownName) as e:
        parse("npu", toml('[candidates.npu]\nrun = "a"\nmemorylimit = "3G"\n'))
    assert e.value.nearest == ("memory_limit",)


def test_paths_of_a_project_file_are_relative_to_its_folder(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever folder below it subcut runs in."""
    (home / "mine.py").write_text("")
    (home / "lib").mkdir()
    (home / "lib/x.so").write_text("")
    (home / "GPU").write_text("")
    (home / "below/models").mkdir(parents=True)
    text = (
        '[candidates.py]\nspec = "mine.py:config=lib/x.so,none=lib/y.so,device=GPU"\n'
        '[candidates.lib]\nspec = "ort:custom_ops=./lib/x.so"\n'
        '[candidates.run]\nrun = "./run.sh"\n'
        '[candidates.cmd]\nspec = "cmd:./run.sh"\n'
    )
    toml(text)
    monkeypatch.chdir(home / "below/models")
    settings = project.load()
    library = str(home / "lib/x.so")
    py = parse("py", settings)
    assert py.backend == str(home / "mine.py")
    assert py.options == {"config": library, "none": "lib/y.so", "device": "GPU"}
    assert parse("lib", settings).options == {"custom_ops": library}
    for name in ("run", "cmd"):
        assert parse(name, settings).options == {"run": "./run.sh", "folder": str(home)}
    below = {name: parse(name, settings) for name in ("py", "lib", "run", "cmd")}
    monkeypatch.chdir(home)
    assert {name: parse(name, project.load()) for name in below} == below
    with raises(UsageError, "file.not-found", "mine.py"):
        parse("py", toml(text, home / "below"))


def test_the_default_of_a_project_file_is_the_files(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stands behind `candidate =` was not typed by the user, though it is a SPEC."""
    (home / "below").mkdir()
    settings = toml('candidate = "cmd:./run.sh"\nreference = "cmd:./right.sh"\n')
    monkeypatch.chdir(home / "below")
    for spec in ("cmd:./run.sh", "cmd:./right.sh"):
        found = parse(spec, settings)
        assert (found.origin, found.options["folder"]) == (str(home / "subcut.toml"), str(home))
    assert parse("cmd:./other.sh", settings).origin == ""


# ------------------------------------------------------------ identity


def test_the_identity_is_all_that_an_answer_depends_on(home: Path) -> None:
    run = script(home / "run.sh")
    base = parse("cmd:./run.sh --config=net.json {model}")
    (home / "net.json").write_text("1")
    whole = base.identity("1")
    assert base.identity("1") == whole
    assert base.identity("2") != whole
    assert sorted(whole["files"]) == ["./run.sh", "net.json"]
    for change in (
        {"timeout": 3.0},
        {"memory": 1 << 30},
        {"options": {"run": "./run.sh"}},
        {"backend": "ort"},
    ):
        assert replace(base, **change).identity("1") != whole, change
    for same in (
        {"name": "x"},
        {"origin": "/x/subcut.toml"},
        {"precision": "fp16"},
        {"multi": True},
    ):
        assert replace(base, **same).identity("1") == whole, same
    os.utime(run, (1, 1))
    (home / "notes.txt").write_text("")
    assert base.identity("1") == whole
    script(run, "exit 1")
    assert base.identity("1") != whole
    script(run)
    assert base.identity("1") == whole
    (home / "net.json").write_text("2")
    assert base.identity("1") != whole
    (home / "net.json").unlink()
    assert base.identity("1") != whole


def test_the_identity_of_a_python_file_and_of_files_among_options(home: Path) -> None:
    for name in ("mine.py", "a.json", "ops.bin"):
        (home / name).write_text("1")
    base = {
        spec: parse(spec).identity("")
        for spec in ("mine.py:config=a.json", "ort:custom_ops=ops.bin")
    }
    for name, changed in (("mine.py", 0), ("a.json", 0), ("ops.bin", 1)):
        (home / name).write_text("2")
        now = {spec: parse(spec).identity("") for spec in base}
        assert [now[spec] != base[spec] for spec in base] == [changed == 0, changed == 1], name
        (home / name).write_text("1")
    assert parse("mine.py:config=b.json").identity("") != base["mine.py:config=a.json"]


def test_the_identity_of_a_projects_commands_does_not_depend_on_where_one_stands(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(home / "run.sh")
    elsewhere = home.parent / "elsewhere"
    elsewhere.mkdir()
    settings = toml('[candidates.npu]\nrun = "./run.sh"\n')
    whole = parse("npu", settings).identity("1")
    assert whole["files"]
    monkeypatch.chdir(elsewhere)
    script(elsewhere / "run.sh", "exit 3")
    assert parse("npu", settings).identity("1") == whole


def edited(found: Candidate, file: Path, text: str = "ERR = 2\n") -> bool:
    """Is the candidate another one, as far as its identity tells, after a file was edited? The edit
    is undone."""
    before = found.identity("")
    old = file.read_text()
    file.write_text(text)
    now = found.identity("")
    file.write_text(old)
    assert found.identity("") == before
    return now != before


REACHED: dict[
    str, tuple[str, dict[str, str]]
] = {  # SPEC → the files there; `code_.py` is the one that is edited
    "a Python file imports it": ("back.py", {"back.py": "import code_"}),
    "a Python file imports it by its name": ("back.py", {"back.py": "__import__('co' + 'de_')"}),
    "a script without suffix": (
        "cmd:python3 ./run",
        {"run": "#!/usr/bin/env python3\nimport code_"},
    ),
    "python -m": ("cmd:python3 -m code_ {model} {inputs} {outputs}", {}),
    "python -um of a package": (
        "cmd:env X=1 python3 -um part",
        {"part/__main__.py": "import code_"},
    ),
    "python -c": ("cmd:python3 -c 'import code_; code_.main()'", {}),
    "sh -c": ("cmd:sh -c './code_.py {model} {inputs} {outputs}'", {}),
    "a shell script": ("cmd:./run.sh", {"run.sh": 'exec python3 "$(dirname "$0")/code_.py" "$@"'}),
}


@pytest.mark.parametrize("case", REACHED)
def test_the_identity_covers_the_code_that_is_reached(case: str, home: Path) -> None:
    """Nothing is read for it: all code below the folder of a script counts."""
    spec, files = REACHED[case]
    for name, text in {
        **files,
        "code_.py": "ERR = 1\n",
        "deep/er/inner.py": "",
        "notes.txt": "",
    }.items():
        (home / name).parent.mkdir(exist_ok=True, parents=True)
        (home / name).write_text(text)
    found = parse(spec)
    assert edited(found, home / "code_.py") and edited(found, home / "deep/er/inner.py")
    assert not edited(found, home / "notes.txt")


LEFT_OUT = (
    "subcut_out/case/a.py .git/hook.py found/n1/repro.py env/a.py lib/site-packages/a.py"
).split()


def test_results_and_environments_are_no_code_of_the_users(home: Path) -> None:
    for name in ("back.py", "env/pyvenv.cfg", *LEFT_OUT):
        (home / name).parent.mkdir(exist_ok=True, parents=True)
        (home / name).write_text("")
    assert list_python_code(home / "back.py") == Code((home / "back.py",))


def test_too_much_code_is_said(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_line, "MAX_FILES", 3)
    for k in range(5):
        (home / f"b{k}.py").write_text("")
    found = list_python_code(home / "b4.py")
    assert len(found.files) == 4 and not found.complete  # the file itself always
    with pytest.raises(UsageError) as asked:
        trust.require(parse("b4.py", toml('candidate = "b4.py"\n')).code, False)
    assert has_line(asked.value.hint, "too many")


def test_subcut_itself_is_no_part_of_the_code(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its version is part of every key."""
    monkeypatch.setattr(command_line, "HOME", home / "subgraph")
    (home / "subgraph").mkdir()
    for name in ("mine.py", "beside.py", "subgraph/cli.py"):
        (home / name).write_text("")
    assert list_python_code(home / "mine.py").files == (home / "beside.py", home / "mine.py")


@pytest.mark.posix("words of a shell")
def test_files_that_a_script_writes_are_not_part_of_the_identity(home: Path) -> None:
    script(home / "run.sh", f"date >> '{home}/log'; cp x.txt out.txt")
    for name in ("log", "x.txt", "out.txt"):
        (home / name).write_text("1")
        for spec in ("cmd:./run.sh {model}", "cmd:sh -c './run.sh >> log 2> out.txt; cat x.txt'"):
            assert not edited(parse(spec), home / name), (spec, name)


@pytest.mark.posix("a script without an ending is no program on Windows")
def test_the_identity_covers_a_program_on_the_path(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    tool = script(tmp_path / "bin" / "mytool")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    for spec in ("cmd:mytool {model}", "cmd:nice sh -c 'mytool {model}'"):
        assert edited(parse(spec), tool)


def test_the_identity_covers_what_is_installed_for_the_interpreter(home: Path) -> None:
    library = home / ".venv/lib/python3.11/site-packages"
    library.mkdir(parents=True)
    python = home / ".venv" / PYTHON
    python.parent.mkdir()
    (library / "tool-1.0.dist-info").mkdir()
    script(python)
    (home / ".venv/pyvenv.cfg").write_text("")
    script(home / "run.sh", 'PATH="$PWD/.venv/bin:$PATH" python run.py')
    candidates = [parse(spec) for spec in (f"cmd:.venv/{PYTHON} run.py", "cmd:./run.sh")]
    before = [found.identity("")["installed"] for found in candidates]
    (library / "tool-1.0.dist-info").rename(library / "tool-1.1.dist-info")
    assert all(
        found.identity("")["installed"] != old
        for found, old in zip(candidates, before, strict=True)
    )


@pytest.mark.parametrize(
    ("python", "library"),
    [
        ("bin/python3.11", "lib/python3.11/dist-packages"),
        ("Scripts/python.exe", "Lib/site-packages"),
        ("python.exe", "Lib/site-packages"),
    ],
)
def test_packages_of_an_interpreter_are_listed(python: str, library: str, tmp_path: Path) -> None:
    (tmp_path / library / "tool-1.0.dist-info").mkdir(parents=True)
    assert command_line.find_packages([tmp_path / python]) == ["tool-1.0"]


def test_libraries_of_the_interpreter_are_not_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows has its extension modules beside `Lib`."""
    monkeypatch.setattr(sys, "base_prefix", "/python")
    assert not command_line.is_users(str(Path("/python/DLLs/_bz2.pyd"))) and command_line.is_users(
        "/mine/_bz2.pyd"
    )


@pytest.mark.parametrize("word", ["\0", "x" * 5000, "{model}", "/", "~"])
def test_words_that_are_no_files(word: str) -> None:
    assert Candidate("x", "cmd", {"run": f"./run.sh {word}"}).identity("")["files"] == {}
    assert Candidate("x", "ort", {"custom_ops": word}).identity("")["files"] == {}


# ------------------------------------------------------------ trust


TABLE = '[candidates.npu]\nrun = "./run.sh {model}"\nconvert = "./convert.sh"\n'


@pytest.fixture
def npu(home: Path) -> Npu:
    """The candidate of a project file with two scripts, read anew."""
    script(home / "run.sh")
    script(home / "convert.sh")

    def make(table: str = TABLE) -> Candidate:
        return parse("npu", toml(table))

    return make


def require_trust(found: Candidate, given_: bool) -> str:
    return trust.require(found.code, given_)


def trusted(found: Candidate) -> bool:
    try:
        return bool(require_trust(found, False))
    except UsageError as e:
        assert all(command in e.what for command in found.commands)
        assert str(Path.cwd() / "subcut.toml") in e.what
        assert "--trust" in e.hint
        return False


def test_commands_of_a_project_file_need_trust_once(npu: Npu, tmp_path: Path) -> None:
    assert not trusted(npu())
    assert has_line(require_trust(npu(), True), "./convert.sh", "./run.sh", "{model}")
    assert trusted(npu())
    assert require_trust(npu(), True)
    assert len((tmp_path / "config/subcut/trusted").read_text().split()) == 1


@pytest.mark.parametrize(
    ("what", "asked"),
    [
        ("run.sh", True),
        ("convert.sh", True),
        ("run", True),
        ("convert", True),
        ("limit", True),
        ("precision", False),
        ("comment", False),
    ],
)
def test_after_an_edit_it_is_asked_again(what: str, asked: bool, npu: Npu, home: Path) -> None:
    require_trust(npu(), True)
    changed = {
        "run": TABLE.replace("./run.sh", "./run.sh -f"),
        "convert": TABLE.replace("./convert.sh", "./convert.sh -f"),
        "limit": f"{TABLE}timeout = 9\n",
        "precision": f'{TABLE}precision = "fp16"\n',
        "comment": f"# mine\n{TABLE}[candidates.other]\nspec = 'ort'\n",
    }
    if what.endswith(".sh"):
        script(home / what, "rm -rf /")
    assert trusted(npu(changed.get(what, TABLE))) != asked
    if what.endswith(".sh"):
        script(home / what)
    assert trusted(npu()), "what was trusted before still is"


def test_the_same_commands_in_another_file_are_not_trusted(npu: Npu, home: Path) -> None:
    require_trust(npu(), True)
    (home / "below").mkdir()
    for name in ("run.sh", "convert.sh"):
        script(home / "below" / name)
    with raises(UsageError, "trust.required"):
        require_trust(parse("npu", toml(TABLE, home / "below")), False)


@pytest.mark.parametrize(
    "spec", ["mine.py", "mine.py:a=1", "ort:custom_ops=./lib.so", "ort:custom_ops=libm.so", "cmd:x"]
)
def test_whatever_brings_code_of_its_own_needs_trust(spec: str, home: Path) -> None:
    for name in ("mine.py", "lib.so"):
        (home / name).write_text("")
    from_file = parse("x", toml(f'[candidates.x]\nspec = "{spec}"\n'))
    as_default = parse(spec, toml(f'candidate = "{spec}"\n'))
    assert not trusted(from_file)
    assert not trusted(as_default)
    require_trust(from_file, True)
    assert trusted(from_file)
    assert trusted(as_default), "the same code from the same file"


def test_no_code_no_question() -> None:
    assert require_trust(parse("x", toml('[candidates.x]\nspec = "ort:opt=basic"\n')), False) == ""


@pytest.mark.parametrize("spec", ["cmd:./run.sh", "mine.py", "ort:custom_ops=./lib.so"])
def test_typed_command_is_trusted(spec: str, home: Path, tmp_path: Path) -> None:
    for name in ("mine.py", "lib.so"):
        (home / name).write_text("")
    for given_ in (False, True):
        assert require_trust(parse(spec, toml("seed = 3")), given_) == ""
    assert not (tmp_path / "config").exists()


def test_commands_are_shown_without_tricks() -> None:
    found = parse("x", toml('[candidates.x]\nrun = "rm \\u001b[2K\\u202e x"\n'))
    with raises(UsageError, "trust.required", "subcut.toml: rm  x"):
        require_trust(found, False)


NO_HOME = pytest.mark.posix("its folders are those of Linux; on Windows %APPDATA% names one")


@pytest.mark.parametrize(
    "kind",
    [
        "file in the way",
        pytest.param("read-only", marks=NO_HOME),
        "damaged",
        pytest.param("relative", marks=NO_HOME),
    ],
)
def test_config_folder_that_is_of_no_use_is_no_reason_to_stop(
    kind: str, npu: Npu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config"
    if kind == "file in the way":
        config.write_text("")
    elif kind == "read-only":
        # nobody, not even root, can make folders there
        monkeypatch.setenv("XDG_CONFIG_HOME", "/proc/self")
    elif kind == "damaged":
        (config / "subcut").mkdir(parents=True)
        (config / "subcut/trusted").write_bytes(b"\xff\xfe\n")
    else:
        monkeypatch.setenv("XDG_CONFIG_HOME", "config")
        monkeypatch.setenv("HOME", str(tmp_path / "mine"))
    assert require_trust(npu(), True)
    assert trusted(npu()) == (kind == "relative")
    assert len(list(tmp_path.glob("mine/**/subcut/trusted"))) == (kind == "relative")


@NO_HOME
def test_without_a_home_it_is_asked_each_time(npu: Npu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert require_trust(npu(), True)
    assert not trusted(npu())


@pytest.mark.parametrize("file", ["other.onnx", "other.tflite"])
def test_a_model_in_place_of_a_runtime_is_named(file: str) -> None:
    with pytest.raises(UsageError) as error:
        candidate.parse(file)
    assert error.value.code == "candidate.other-name"
    assert f"--candidate-model {file}" in error.value.hint


def test_file_of_another_kind_in_place_of_a_runtime_is_named(tmp_path: Path) -> None:
    (tmp_path / "net.espdl").write_bytes(b"EDL2" + bytes(60))
    with raises(UsageError, "candidate.other-name", "ESP-DL"):
        candidate.parse(str(tmp_path / "net.espdl"))
