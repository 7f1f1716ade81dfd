"""What holds for every file: imports point down, start-up stays light, one place prints, the public names stay."""

from __future__ import annotations

import ast
import doctest
import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import chain

import subgraph

HOME = Path(subgraph.__file__).parent

# Each module imports only from modules above it. `folder.*` are the files in a folder, which do not know each other.
LAYERS = """
version types dtypes case_layout errors verdict
text completion repro
plugins folder wire digest entry layouts
archive privacy
tensors measure dumps._files
value_types
packing graph metrics store dumps
metrics.* precision choices dumps._npy dumps._text dumps._raw dumps._atc dumps._ascend
criteria
criteria.*
judge ranking fit grid placing msaccucmp fitting
likeness
region form inputs lengths scales schemas project
match feeds dumps.*
candidate
cut contents inference
problems pool recording
backends._foreign
backends backends.*
serve
worker
capture workers
subgraph
case check ranges rounding values perturb opset_tests
extract dump export inspect instrument
lint._places
lint._numbers lint._resize lint._windows
lint
lint.*
shake answer
noise counterpart
trial truth
session explain alike recorded
opinion device
comparison sweep observed
exhibit interval beside npu_table recut
replay contrast
letter scripts narrowed
search.cost search.flaky search.question
search.findings search.order search.predicate
search.book
search.accumulated search.baseline search.company search.gallop search.halve search.pools
search.profile search.shrink
search.proof
search.hunt
search.rest
search.culprits
search.strategy
search
suspects
costs
summary
reports._chart reports._layout reports._schema
reports
reports.*
evidence
bisection
handout
byhand brought
loop
manual
belongings
bundle
commands
commands.options commands.table
commands.recorded
commands.*
cli
"""
BELOW = {module: depth for depth, line in enumerate(LAYERS.split("\n")) for module in line.split()}

HEAVY = frozenset("numpy onnx onnxruntime networkx PIL ml_dtypes google rich pydantic jinja2".split())
PRINTERS = {"cli": "the command line", "repro": "a script of its own, copied beside every cut"}
MAX_LINES = 400
LONG = {
    "wire": "one format, read and written: its two halves share the field numbers and the window",
    "graph": "one class; its index, its order and its selectors share the tables",
    "trial": "one class: asking, running and judging share what is known of a region",
    "cut": "one function per kind of trouble, in the order in which a cut meets them",
}

MODULES = {
    ".".join(path.relative_to(HOME).with_suffix("").parts)
    .removesuffix(".__init__")
    .replace("__init__", "subgraph"): path
    for path in sorted(HOME.rglob("*.py"))
}
TREES = {module: ast.parse(path.read_text(encoding="utf-8")) for module, path in MODULES.items()}


def layer(module: str) -> str:
    """A command or a backend, and later a metric or a report, needs no line of its own."""
    return module if module in BELOW or "." not in module else f"{module.partition('.')[0]}.*"


def imports(tree: ast.AST) -> Iterator[str]:
    """Modules of ours that a file imports anywhere, also inside functions and for types only."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if name.split(".")[0] == "subgraph":
                yield module_of(name)


def module_of(name: str) -> str:
    """`subgraph.text.clean` → `text`."""
    parts = name.split(".")[1:]
    while parts and ".".join(parts) not in MODULES:
        parts.pop()
    return ".".join(parts) or "subgraph"


def test_every_module_has_a_layer() -> None:
    assert {layer(module) for module in MODULES} == set(BELOW)


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_down(module: str) -> None:
    """So there are no cycles."""
    later = set(subgraph.LATER.values()) if module == "subgraph" else set()  # not before somebody asks for them
    for other in set(imports(TREES[module])) - later:
        assert BELOW[layer(other)] < BELOW[layer(module)], f"{module} imports {other}"


def at_import(tree: ast.Module) -> Iterator[ast.stmt]:
    """The statements that run when a module is imported."""
    waiting: list[ast.stmt] = list(tree.body)
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.dump(node.test):
            waiting += [*node.body, *node.orelse]
        elif isinstance(node, (ast.Try, ast.With, ast.ClassDef)):
            waiting += node.body


@pytest.mark.parametrize("module", [m for m in MODULES if m != "repro"])
def test_nothing_heavy_is_imported_at_start(module: str) -> None:
    for node in at_import(TREES[module]):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert not HEAVY.intersection(name.split(".")[0] for name in names), f"{module}:{node.lineno}"


@pytest.mark.parametrize("module", [m for m in MODULES if m not in PRINTERS])
def test_nobody_else_prints_or_exits(module: str) -> None:
    """The worker's `os._exit` ends a process that is not ours to keep."""
    for node in ast.walk(TREES[module]):
        if isinstance(node, ast.Call):
            call = ast.unparse(node.func)
            assert call not in ("print", "exit", "quit", "sys.exit", "sys.stdout.write", "sys.stderr.write"), (
                node.lineno
            )
            assert call != "os._exit" or module == "serve", node.lineno
        assert not (isinstance(node, ast.Raise) and "SystemExit" in ast.unparse(node)), node.lineno


@pytest.mark.parametrize("module", [m for m in MODULES if m != "repro"])
def test_public_functions_say_what_they_do(module: str) -> None:
    assert ast.get_docstring(TREES[module])
    for node in TREES[module].body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node), f"{module}.{node.name}"


@pytest.mark.parametrize("module", MODULES)
def test_files_are_short_or_there_is_a_reason(module: str) -> None:
    lines = len(MODULES[module].read_text(encoding="utf-8").splitlines())
    assert (lines > MAX_LINES) <= (module in LONG), lines


@pytest.mark.parametrize("module", MODULES)
def test_examples_are_true(module: str) -> None:
    found = importlib.import_module("subgraph" if module == "subgraph" else f"subgraph.{module}")
    assert doctest.testmod(found).failed == 0


def run(program: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(HOME.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_every_module_can_be_imported_alone(tmp_path: Path) -> None:
    """Each by a fresh interpreter: no module needs another one to have been imported before."""
    names = [f"subgraph.{m}" if m != "subgraph" else m for m in MODULES]
    runs = [
        subprocess.Popen([sys.executable, "-c", f"import {n}"], stderr=subprocess.PIPE, cwd=tmp_path) for n in names
    ]
    for name, process in zip(names, runs, strict=True):
        _, said = process.communicate()
        assert process.returncode == 0, (name, said.decode())


VERBS = """
import importlib
for name in {modules}:
    importlib.import_module(name)
import subgraph
graph = subgraph.load("m.onnx")
piece = subgraph.cut(graph, start="b", end="c")
values = subgraph.capture(graph, [*piece.inputs, *piece.outputs])
piece.save("piece.onnx")
assert not subgraph.compare(graph, at=["t0"]).first_bad
running = subgraph.bisect(graph)
assert [step.outcome for step in running] and running.document["agree"] and running.findings
print(sorted(values[0]), piece.inputs, piece.outputs)
"""


@pytest.mark.slow
def test_verbs_work_with_all_modules_imported(tmp_path: Path) -> None:
    """Modules share their names with the verbs: importing one must not hide the other."""
    chain(tmp_path / "m.onnx", ["a", "b", "c", "d"])
    names = [f"subgraph.{m}" for m in MODULES if m not in ("subgraph", "repro")]
    for order in (names, names[::-1]):
        said = run(VERBS.format(modules=order), tmp_path)
        assert said.replace("(", "[").replace(",)", "]") == "['t0', 't2'] ['t0'] ['t2']\n"
    assert (tmp_path / "piece.onnx").exists()


def test_public_names() -> None:
    assert subgraph.__all__ == ["__version__", "bisect", "capture", "compare", "cut", "load"]
    assert all(hasattr(subgraph, name) for name in subgraph.__all__)
    assert all(callable(getattr(subgraph, name)) for name in subgraph.__all__[1:])
