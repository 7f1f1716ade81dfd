"""What holds for every file: imports point down, start-up stays light, one place prints, the public
names stay."""

from __future__ import annotations

import ast
import doctest
import importlib
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

import subgraph
from subgraph import plugins
from subgraph.children import make_python_command
from subgraph.system.shared import disable_telemetry
from tests.helpers.chain_models import chain
from tests.helpers.run_command import in_process, run_program
from tests.helpers.sources import parse

HOME = Path(subgraph.__file__).parent

PAGE = Path(__file__).parents[1].joinpath("docs/architecture.md").read_text(encoding="utf-8")
# A package imports only from the lines above its own; packages on one line do not know each other.
RULE = PAGE.partition("## The import rule")[2].split("```")[1]
BELOW = {word: depth for depth, line in enumerate(RULE.split("\n")) for word in line.split()}
# What may be imported from a package's outside, where that is less than the rule allows.
ONLY = {
    "search": {"verdict", "iterables", "reach", "types"},
    "reports": {
        "results",
        "verdict",
        "search",
        "drawing",
        "documents",
        "text",
        "system",
        "plugins",
        "iterables",
        "types",
    },
    "drawing": {"text", "documents", "iterables", "reach", "types"},
}
# These load none of HEAVY when they are imported: `subcut cut` and TAB start fast.
LIGHT = frozenset(
    "version errors text log types lazy iterables reach documents verdict plugins project"
    " precision trust storage graph runtime cases".split()
)
LIGHT |= {"commands", "__init__", "cli", "system", "children"}

HEAVY = frozenset(
    "numpy onnx onnxruntime onnxscript torch networkx PIL ml_dtypes google rich pydantic jinja2"
    " psutil".split()
)
PRINTERS = {
    "cli": "the command line",
    "cases.repro": "a script of its own, copied beside every cut",
}
MAX_FUNCTION = 80  # lines
# it cannot be imported here
OTHER_SYSTEM = "system.posix" if sys.platform == "win32" else "system.windows"

MODULES = {
    ".".join(path.relative_to(HOME).with_suffix("").parts)
    .removesuffix(".__init__")
    .replace("__init__", "subgraph"): path
    for path in sorted(HOME.rglob("*.py"))
}


def tree(module: str) -> ast.Module:
    return parse(MODULES[module])


@cache  # not when tests are collected, which each process of a run does
def nodes(module: str) -> list[ast.AST]:
    return list(ast.walk(tree(module)))


def package(module: str) -> str:
    """`graph.cut` → `graph`; `graph.rewrites.order` → `graph.rewrites`, which stands in the rule;
    the package itself → `__init__`."""
    first, _, rest = module.partition(".")
    inner = f"{first}.{rest.partition('.')[0]}"
    return "__init__" if module == "subgraph" else inner if inner in BELOW else first


def imports(module: str) -> Iterator[str]:
    """Modules of ours that a file imports anywhere, also inside functions, for types only, and by
    their name."""
    for node in nodes(module):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            names = [ast.unparse(node.args[0]).lstrip("f").strip("'\"").partition(".{")[0]]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if name.split(".")[0] == "subgraph" and not (
                isinstance(node, ast.Call) and name == "subgraph"
            ):
                yield module_of(name)


def module_of(name: str) -> str:
    """`subgraph.text.clean` → `text`."""
    parts = name.split(".")[1:]
    while parts and ".".join(parts) not in MODULES:
        parts.pop()
    return ".".join(parts) or "subgraph"


def each(modules: Iterable[str]) -> Callable[[Callable[[str], None]], Callable[[], None]]:
    """One test over all of these: an item for each, which each process of a run collects, costs
    more than the test."""

    def decorate(test: Callable[[str], None]) -> Callable[[], None]:
        def over_all() -> None:
            wrong = []
            for module in modules:
                try:
                    test(module)
                except AssertionError as e:
                    wrong.append(f"{module}: {e}")
            assert not wrong, "\n".join(wrong)

        over_all.__doc__ = test.__doc__
        return over_all

    return decorate


PACKAGES = sorted({module.rpartition(".")[0] for module in MODULES} - {""})
BACKENDS = plugins.list_own_names("backends")
PLUGINS = sorted(folder.replace("/", ".") for folder in plugins.FOLDERS.values())


def test_every_package_stands_in_the_rule() -> None:
    assert {package(module) for module in MODULES} == set(BELOW)


@each(MODULES)
def test_imports_point_down(module: str) -> None:
    mine = package(module)
    for other in map(package, imports(module)):
        if other != mine:
            assert BELOW[other] < BELOW[mine], f"{module} imports {other}"
            assert other in ONLY.get(mine, {other}), f"{module} imports {other}"


def test_no_cycle_among_modules() -> None:
    """Also inside a package, and with the imports inside functions: so each module can be imported
    alone."""
    left = {module: set(imports(module)) - {module} for module in MODULES if module != "subgraph"}
    while free := {module for module, needs in left.items() if not needs & left.keys()}:
        left = {module: needs for module, needs in left.items() if module not in free}
    assert not left, sorted(left)


@each([m for m in MODULES if m.rpartition(".")[0] in PLUGINS])
def test_plugins_of_one_kind_do_not_import_each_other(module: str) -> None:
    """Files that begin with `_` are what they share."""
    folder = module.rpartition(".")[0]
    for other in imports(module):
        shared = other.rpartition(".")[2].startswith("_")
        assert shared or other.rpartition(".")[0] != folder, f"{module} imports {other}"


@each(MODULES)
def test_private_names_are_not_public(module: str) -> None:
    """A name in its module, a file in its folder."""
    modules: set[str] = set()  # the local names of modules of ours
    for node in nodes(module):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "subgraph":
            for alias in node.names:
                other = module_of(f"{node.module}.{alias.name}")
                folder, _, name = other.rpartition(".")
                assert not name.startswith("_") or f"{module}.".startswith(f"{folder}."), (
                    f"{module} imports {other}"
                )
                if other.endswith(alias.name):
                    modules.add(alias.asname or alias.name)
                else:
                    assert not is_private(alias.name), f"{module} imports {alias.name}"
    for node in nodes(module):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in modules
        ):
            assert not is_private(node.attr), (
                f"{module}:{node.lineno} reads {node.value.id}.{node.attr}"
            )


def test_no_test_module_is_imported() -> None:
    """What several tests use is in tests/helpers."""
    tests = [*Path(__file__).parent.rglob("*.py")]
    imported = re.compile(r"^ *(?:from|import) (tests\.(?!helpers\b)\S+)", re.MULTILINE)
    found = {path.name: imported.findall(path.read_text(encoding="utf-8")) for path in tests}
    assert not {name: modules for name, modules in found.items() if modules}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


# by a test of the kind, by the tests of the command line
TESTED_BY_CONTRACT = (*PLUGINS, "commands")


@each([m for m in MODULES if m not in PACKAGES and m.rpartition(".")[0] not in TESTED_BY_CONTRACT])
def test_every_module_has_its_test(module: str) -> None:
    """`tests/graph/test_region.py` tests `graph.region`; else the docstring of the test that covers
    it names it."""
    folder, _, name = module.rpartition(".")
    mirrored = TESTS.joinpath(*folder.split("."), f"test_{name}.py")
    assert mirrored.is_file() or f"`{module}`" in covered(), (
        f"no {mirrored}, and no test says that it covers `{module}`"
    )


TESTS = Path(__file__).parent


@cache
def covered() -> str:
    """The docstrings of all test modules."""
    texts = (path.read_text(encoding="utf-8") for path in TESTS.rglob("test_*.py"))
    return "\n".join(text.split('"""')[1] for text in texts if text.startswith('"""'))


@each([m for m in MODULES if not m.startswith("runtime.backends.")])
def test_nobody_asks_which_backend_it_is(module: str) -> None:
    """A backend states what it can do: `runtime.backends.Capabilities`."""
    for node in nodes(module):
        if isinstance(node, ast.Compare):
            words = [word for word in ast.walk(node) if isinstance(word, ast.Constant)]
            assert not [word.value for word in words if word.value in BACKENDS], (
                f"{module}:{node.lineno}"
            )


# What only `system` may ask for: each operating system does it in its own way.
SYSTEM_MODULES = {*"fcntl grp msvcrt psutil pwd resource select signal termios winreg".split()}
SYSTEM_CALLS = {
    *(
        "sys.platform os.name os.uname os.sysconf os.kill os.killpg os.getpgid os.getpgrp "
        "os.getsid os.setsid os.fork os.register_at_fork os.waitpid os.waitid os.pread "
        "os.sched_getaffinity os.posix_fadvise os.copy_file_range ctypes.CDLL "
        "ctypes.windll"
    ).split()
}
SYSTEM_OPTIONS = {"start_new_session", "process_group", "preexec_fn", "pass_fds", "creationflags"}


@each([m for m in MODULES if package(m) != "system"])
def test_one_package_asks_the_operating_system(module: str) -> None:
    for node in nodes(module):
        found: set[str] = set()
        if isinstance(node, ast.Import):
            found = SYSTEM_MODULES.intersection(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found = SYSTEM_MODULES.intersection([node.module or ""])
        elif isinstance(node, ast.Attribute):
            found = SYSTEM_CALLS.intersection([ast.unparse(node)])
        elif isinstance(node, ast.keyword):
            found = SYSTEM_OPTIONS.intersection([node.arg or ""])
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found = {node.value} if node.value.startswith(("/proc/", "/sys/", "/dev/")) else set()
        assert not found, f"{node.lineno if isinstance(node, ast.stmt | ast.expr) else ''} {found}"


MUTABLE = ("Log", "Mode", "Progress")  # ends of the names of classes that record a session


def _stored_attributes(node: ast.AST) -> Iterator[ast.Attribute]:
    """Attributes that statements below a node set."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
            yield inner


@pytest.mark.parametrize("module", [m for m in MODULES if package(m) == "trials"])
def test_trials_change_nothing_after_they_were_made(module: str) -> None:
    """What asks, judges and knows the reference is shared by threads, and by stages of a search."""
    changes = []
    for owner in nodes(module):
        if not isinstance(owner, ast.ClassDef) or owner.name.endswith(MUTABLE):
            continue
        for method in owner.body:
            if isinstance(method, ast.FunctionDef) and method.name != "__init__":
                found = [ast.unparse(attribute) for attribute in _stored_attributes(method)]
                changes += [f"{owner.name}.{method.name}: {name}" for name in found]
    assert changes == []


@pytest.mark.parametrize("module", MODULES)
def test_no_private_field_is_replaced(module: str) -> None:
    calls = [node for node in nodes(module) if isinstance(node, ast.Call)]
    replaced = [call for call in calls if ast.unparse(call.func) == "replace"]
    keywords = [word.arg or "" for call in replaced for word in call.keywords]
    assert [word for word in keywords if word.startswith("_")] == []


def test_no_class_name_is_used_twice() -> None:
    modules = [module for module in MODULES if module != "system.windows"]  # the same as `posix`
    names = Counter(
        node.name for module in modules for node in nodes(module) if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in names.items() if count > 1] == []


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


@each([m for m in MODULES if package(m) in LIGHT and m != "cases.repro"])
def test_nothing_heavy_is_imported_at_start(module: str) -> None:
    for node in at_import(tree(module)):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert not HEAVY.intersection(name.split(".")[0] for name in names), (
            f"{module}:{node.lineno}"
        )


@each([m for m in MODULES if m not in PRINTERS])
def test_nobody_else_prints_or_exits(module: str) -> None:
    """The worker's `os._exit` ends a process that is not ours to keep."""
    for node in nodes(module):
        if isinstance(node, ast.Call):
            call = ast.unparse(node.func)
            assert call not in (
                "print",
                "exit",
                "quit",
                "sys.exit",
                "sys.stdout.write",
                "sys.stderr.write",
            ), node.lineno
            assert call != "os._exit" or module == "runtime.worker_main", node.lineno
        assert not (isinstance(node, ast.Raise) and "SystemExit" in ast.unparse(node)), node.lineno


@each([m for m in MODULES if m != "cases.repro"])
def test_public_functions_say_what_they_do(module: str) -> None:
    assert ast.get_docstring(tree(module))
    for node in tree(module).body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node), f"{module}.{node.name}"


@each(MODULES)
def test_functions_are_short(module: str) -> None:
    for node in nodes(module):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.end_lineno:
            # a command's options are its signature
            first = node.body[ast.get_docstring(node) is not None :]
            lines = node.end_lineno - first[0].lineno + 1 if first else 0
            assert lines <= MAX_FUNCTION, f"{node.name}: {lines}"


SLOW_EXAMPLES = ("questions.bisection.bisection", "search.findings", "trials.compare_tensors")


@pytest.mark.parametrize(
    "module",
    [
        pytest.param(m, marks=pytest.mark.slow if m in SLOW_EXAMPLES else ())
        for m, path in MODULES.items()
        if ">>>" in path.read_text(encoding="utf-8")
    ],
)
def test_examples_are_true(module: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder with a narrow ResNet-50 with Caffe's names, and with the demo."""
    monkeypatch.chdir(here)
    if "demo/" in (doc := MODULES[module].read_text(encoding="utf-8")) and ">>>" in doc:
        in_process("demo", "demo")
    imported = importlib.import_module("subgraph" if module == "subgraph" else f"subgraph.{module}")
    assert doctest.testmod(imported, optionflags=doctest.ELLIPSIS).failed == 0


def run(program: str, folder: Path) -> str:
    done = run_program(
        [sys.executable, "-c", program],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(HOME.parent)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


VERBS = """
import importlib
for name in {modules}:
    importlib.import_module(name)
import subgraph
from fixtures import ROOT
from subgraph import plugins
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
    names = [f"subgraph.{m}" for m in MODULES if m not in ("subgraph", "cases.repro", OTHER_SYSTEM)]
    for order in (names, names[::-1]):
        said = run(VERBS.format(modules=order), tmp_path)
        assert said.replace("(", "[").replace(",)", "]") == "['t0', 't2'] ['t0'] ['t2']\n"
    assert (tmp_path / "piece.onnx").exists()


def test_one_function_starts_python() -> None:
    """`children.python`, which imports nothing from where the user stands."""
    mentioned = {
        module
        for module in MODULES
        for node in nodes(module)
        if isinstance(node, ast.Attribute)
        and (node.attr, ast.unparse(node.value)) == ("executable", "sys")
    }
    # uv; code that is reached
    assert mentioned == {"children", "environments.installation", "runtime.command_line"}
    options = [
        m for m in MODULES for n in nodes(m) if isinstance(n, ast.Constant) and n.value == "-P"
    ]
    assert options == ["children"]
    assert make_python_command("-m", "pip", python=Path("other"))[:2] == ["other", "-P"]


def test_each_child_is_started_disable_telemetry() -> None:
    """By `ProcessGroup`, or with that environment. The children of a backend inherit it."""
    starts = {
        *"Popen run call check_call check_output getoutput getstatusoutput system popen".split()
    }
    assert disable_telemetry({})["ORT_DISABLE_TELEMETRY"] == "1"
    assert disable_telemetry({"ORT_DISABLE_TELEMETRY": "0"})["ORT_DISABLE_TELEMETRY"] == "0"
    for module in MODULES:
        if module.startswith(("system.", "runtime.backends.")):
            continue
        for node in ast.walk(tree(module)):
            assert not (isinstance(node, ast.ImportFrom) and node.module == "subprocess"), module
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id="subprocess" | "os"), attr=name)
                ) if name in starts:
                    env = next(
                        (ast.unparse(word.value) for word in node.keywords if word.arg == "env"), ""
                    )
                    assert env.startswith("disable_telemetry("), f"{module}: {ast.unparse(node)}"
                case ast.Call(func=ast.Attribute(value=ast.Name(id="os"), attr=name)):
                    assert not name.startswith(("spawn", "posix_spawn", "exec", "startfile")), (
                        module
                    )
