"""onnx's own operator tests and light networks -> examples: a model, its inputs, its expected
outputs.

onnx makes the tests with numpy while its modules are imported, which takes seconds. So they are
made once for each version and stored as one archive, from which each test is unpacked when it is
run. Nothing is downloaded: the light networks and their outputs are part of onnx's wheel.
"""

from __future__ import annotations

import contextlib
import fnmatch
import importlib
import pkgutil
import re
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, version_converter

from subgraph.documents import from_json, to_json
from subgraph.errors import BackendError, InputError, Refused, SubcutError, UnknownName
from subgraph.graph import graph as graphs
from subgraph.graph.opsets import get_opset, list_newest_opsets
from subgraph.graph.properties import RANDOM_OPS
from subgraph.graph.value_types import read_type
from subgraph.iterables import flatten, index_by_name
from subgraph.log import log
from subgraph.results.sweep import NamedTest
from subgraph.runtime.reference import Reference
from subgraph.storage import folders
from subgraph.storage.digest import digest, digest_file
from subgraph.storage.store import Store
from subgraph.storage.tensors import (
    Record,
    RecordTuple,
    Value,
    find_type,
    list_arrays,
    load,
    parse_type,
    save,
)
from subgraph.text import find_nearest
from subgraph.types import JsonObject, frozen
from subgraph.version import __version__

ARCHIVE = "tests.zip"
MODEL = "model.onnx"
NODE = "node"
NETWORK = "network"
RANDOM = "it draws random numbers, which nothing determines"
EXPANDED = re.compile(r"(.+)_expanded(_ver\d+)?")
LIGHT_NETWORKS = "backend/test/data/light"  # in the onnx package
DROPOUT_RATIO = 0.5  # ONNX's default


@frozen
class Example:
    """A model with inputs and expected outputs.

    Attributes:
        name: The name.
        model: The file.
        inputs: Records with absolute paths, as of `tensors.save`.
        outputs: Records with absolute paths, as of `tensors.save`.
        rtol: Relative tolerance per element, by the example's author.
        atol: Absolute tolerance per element, by the example's author.
        key: A hash of the model, the inputs and the outputs.
    """

    name: str
    model: Path
    inputs: RecordTuple
    outputs: RecordTuple
    rtol: float
    atol: float
    key: str


@frozen
class OperatorTest:
    """One test; `OperatorTests.unpack` returns the example.

    Attributes:
        name: The name.
        op: The operator that it tests, also by a model that is the operator's expanded definition;
            "" of a network.
        domain: The domain of the operator.
        kind: `node` or `network`.
        rtol: As of `Example`.
        atol: As of `Example`.
        inputs: Records with files of the archive.
        outputs: Records with files of the archive.
        key: As of `Example`.
    """

    name: str
    op: str
    domain: str
    kind: str
    rtol: float
    atol: float
    inputs: RecordTuple
    outputs: RecordTuple
    key: str


@frozen
class TestList:
    """All tests of onnx, or a choice of them, and those that cannot be run."""

    tests: tuple[OperatorTest, ...]
    left_out: tuple[NamedTest, ...]


@frozen
class OperatorTests(TestList):
    """Tests with their files.

    Attributes:
        archive: Their files. Several threads may read it. None if there are no tests.
    """

    archive: zipfile.ZipFile | None = None

    def select(self, patterns: Sequence[str]) -> OperatorTests:
        """Return the tests that a name or glob means: operators, or tests with or without `test_`.

        Without patterns, all.

        Raises:
            UnknownName: A pattern means no test; carries the nearest names.
        """
        names = [(t.op, t.name) for t in self.tests] + [(t.operator, t.test) for t in self.left_out]
        named: set[tuple[str, str]] = set()
        for pattern in patterns:
            found = set()
            for op, test in names:
                words = filter(None, (op, test, test.removeprefix("test_")))
                if any(fnmatch.fnmatchcase(word.lower(), pattern.lower()) for word in words):
                    found.add((op, test))
            if not found:
                parts = list(filter(None, flatten(names)))
                raise UnknownName(
                    f"no operator or test '{pattern}'",
                    nearest=find_nearest(pattern, parts),
                    code="sweep.unknown-test",
                )
            named |= found
        if not patterns:
            return self
        return replace(
            self,
            tests=tuple(t for t in self.tests if (t.op, t.name) in named),
            left_out=tuple(t for t in self.left_out if (t.operator, t.test) in named),
        )

    def unpack(self, test: OperatorTest, folder: Path) -> Example:
        """Write the files of a test into a new folder; return the example."""
        folder.mkdir(parents=True)
        assert self.archive
        files = list(flatten(record.files for record in (*test.inputs, *test.outputs)))
        for file in (MODEL, *files):
            (folder / file).write_bytes(self.archive.read(f"{test.name}/{file}"))
        inputs, outputs = (
            tuple(r.rebase(folder) for r in records) for records in (test.inputs, test.outputs)
        )
        return Example(test.name, folder / MODEL, inputs, outputs, test.rtol, test.atol, test.key)


def collect(store: Store, onnxruntime: str) -> OperatorTests:
    """Collect all tests of the installed onnx that this release of onnxruntime takes.

    They are made if they are not stored.

    Raises:
        BackendError: this onnx has no such tests. OutputError: nothing can be written.
    """
    versions = (metadata.version(name) for name in ("onnx", "numpy"))
    key = digest("operator tests/3", __version__, *versions, onnxruntime)
    document, folder = store.memo(key, _make)
    found = from_json(TestList, document, "the list of onnx's tests")
    return OperatorTests(found.tests, found.left_out, zipfile.ZipFile(folder / ARCHIVE))


# ------------------------------------------------------------ making them


@frozen
class _OnnxTest:
    """A test as onnx has it: the model, and values in the model's order."""

    name: str
    op: str
    domain: str
    kind: str
    model: Any
    inputs: Sequence[Any]
    outputs: Sequence[Any]
    rtol: float
    atol: float


def _make(folder: Path) -> JsonObject:
    """Write the archive to a folder; the document that lists its tests."""
    log.info("making onnx's operator tests, once for this folder of results")
    tests: list[OperatorTest] = []
    left_out: list[NamedTest] = []
    with (
        warnings.catch_warnings(action="ignore"),  # numpy's, of overflows that are meant
        folders.make_temporary("subcut-tests") as temporary,
        zipfile.ZipFile(folder / ARCHIVE, "w") as archive,
    ):
        newest = find_newest_opset(temporary)
        work = temporary / "test"
        work.mkdir()
        for onnx_test in (*_iter_node_tests(), *_iter_network_tests()):
            try:
                tests.append(_write(onnx_test, work, newest))
                for file in sorted(work.iterdir()):
                    archive.writestr(
                        zipfile.ZipInfo(f"{onnx_test.name}/{file.name}"), file.read_bytes()
                    )
            except SubcutError as e:
                left_out.append(NamedTest(onnx_test.name, onnx_test.op, e.what))
            finally:
                for file in work.iterdir():
                    file.unlink()
    return {"tests": to_json(tests), "left_out": to_json(left_out)}


def _iter_node_tests() -> Iterator[_OnnxTest]:
    """Yield onnx's node tests.

    Each module's random values start from the same seed, so that all runs are alike.
    """
    try:
        import onnx.backend.test.case.node as cases
    except ImportError as e:
        raise BackendError(
            f"this onnx has no operator tests: {e}", "pip install -U onnx", code="sweep.no-tests"
        ) from e
    state = np.random.get_state()
    modules = pkgutil.walk_packages(cases.__path__, f"{cases.__name__}.")
    for module in sorted(module.name for module in modules):
        np.random.seed(0)
        importlib.import_module(module)
    np.random.set_state(state)
    ops: dict[str, tuple[str, str]] = {}
    for case in list(cases._NodeTestCases):
        match = EXPANDED.fullmatch(case.name)
        node = case.model.graph.node[0]
        ops[case.name] = ops[match[1]] if match and match[1] in ops else (node.op_type, node.domain)
        for inputs, outputs in case.data_sets:
            yield _OnnxTest(
                case.name, *ops[case.name], NODE, case.model, inputs, outputs, case.rtol, case.atol
            )


def _iter_network_tests() -> Iterator[_OnnxTest]:
    """Yield the light networks, fed as onnx's runner does: a ramp from 0 to 1, for which the wheel
    has the outputs."""
    from onnx.backend.test.case.model import collect_testcases

    for case in collect_testcases():
        url = str(case.url)
        path = Path(str(onnx.__file__)).parent / LIGHT_NETWORKS / Path(url).name
        if LIGHT_NETWORKS not in url or not path.is_file():
            continue
        model = onnx.load(path)
        weights = {weight.name for weight in model.graph.initializer}
        inputs = []
        for info in model.graph.input:
            if info.name not in weights:
                _, _, dims = read_type(info.type)
                shape = [d if isinstance(d, int) else 1 for d in dims or ()]
                size = int(np.prod(shape))
                inputs.append((np.arange(size).reshape(shape) / size).astype(np.float32))
        files = [
            path.with_name(f"{path.stem}_output_{k}.pb") for k in range(len(model.graph.output))
        ]
        outputs = [
            numpy_helper.to_array(onnx.load_tensor(str(file))) for file in files if file.is_file()
        ]
        yield _OnnxTest(
            f"test_{path.stem}", "", "", NETWORK, model, inputs, outputs, case.rtol, case.atol
        )


def _write(test: _OnnxTest, folder: Path, newest: int) -> OperatorTest:
    """Write a test's files to a folder; `newest`: the newest opset that onnxruntime takes.

    Raises:
        SubcutError: why it cannot be run.
    """
    graph = test.model.graph
    weights = {w.name for w in graph.initializer}
    ends = [i for i in graph.input if i.name not in weights]
    model = lower_opset(test.model, newest)
    (folder / MODEL).write_bytes(model.SerializeToString(deterministic=True))
    inputs = _save(ends, test.inputs, folder, "i")
    outputs = _save(graph.output, test.outputs, folder, "o")
    if not outputs:
        raise InputError("it names no output", code="sweep.no-output")
    if _is_random(folder, inputs):
        raise InputError(RANDOM, code="sweep.random")
    records = {"inputs": to_json(inputs), "outputs": to_json(outputs)}
    files = {f.name: digest_file(f) for f in folder.iterdir()}
    key = digest(test.name, records, files, test.rtol, test.atol)
    return OperatorTest(
        test.name, test.op, test.domain, test.kind, test.rtol, test.atol, inputs, outputs, key
    )


def lower_opset(model: Any, newest: int) -> Any:
    """Return a test's model at the opset `newest`, if its own is newer and onnx converts it.

    onnx stamps a test with its own newest opset, which older runtimes refuse.
    """
    if get_opset(model) <= newest:
        return model
    try:
        lower = version_converter.convert_version(model, newest)
    except Exception:  # noqa: BLE001  # assertions of its C++ code are of no class
        return model
    least = helper.find_min_ir_version_for(lower.opset_import, ignore_unknown=True)
    lower.ir_version = min(model.ir_version, least)
    return lower


def find_newest_opset(folder: Path) -> int:
    """Return the newest opset that onnxruntime accepts; the models tried are in `folder`."""
    newest = list_newest_opsets()[""]
    graph = onnx.parser.parse_graph("g (float[1] x) => (float[1] y) { y = Relu (x) }")
    with Reference() as reference:
        for version in range(newest, 13, -1):
            path = folder / f"opset{version}.onnx"
            opsets = [helper.make_opsetid("", version)]
            least = helper.find_min_ir_version_for(opsets)
            onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=least), path)
            with contextlib.suppress(Refused):
                reference.load_model(path.stem, graphs.load(path).model, path, folder)
                return version
    return newest


def _save(infos: Sequence[Any], values: Sequence[Any], folder: Path, stem: str) -> RecordTuple:
    """Write the values of a model's inputs or outputs, in the types that the model declares.

    Raises:
        InputError: an input or output has no value, or one of another type.
    """
    if len(infos) != len(values):
        raise InputError(
            f"the model names {len(infos)} tensors where the test has {len(values)} values",
            code="sweep.other-count",
        )
    records = []
    for k, (info, value) in enumerate(zip(infos, map(_to_value, values), strict=True)):
        form, dtype, _ = read_type(info.type)
        for array in list_arrays(value):
            actual = parse_type(find_type(array))[1]
            if actual != dtype:
                raise InputError(
                    f"{info.name} is declared as {dtype}, and the test has {actual}",
                    code="sweep.other-type",
                )
        text = Record(info.name, form, dtype, (), ()).type_text
        records.append(save(info.name, value, text, folder, f"{stem}{k}"))
    return tuple(records)


def _to_value(value: Any) -> Value:
    """Make a value from an array, a number, a message, or a list of these."""
    if isinstance(value, (list, tuple)):
        return [array for v in value if isinstance(array := _to_value(v), np.ndarray)]
    if isinstance(value, TensorProto):
        return np.asarray(numpy_helper.to_array(value))
    return None if value is None else np.asarray(value)


def _is_random(folder: Path, inputs: Iterable[Record]) -> bool:
    """Return whether the model draws random numbers on these inputs."""
    data = (folder / MODEL).read_bytes()
    if not any(op.encode() in data for op in (*RANDOM_OPS, "Dropout")):
        return False
    graph = graphs.load(folder / MODEL)
    nodes = [graph.nodes[i] for i in graph.random_nodes]
    fed = index_by_name(inputs)

    def value(node: Any, place: int, default: Any) -> Any:
        name = node.input[place] if place < len(node.input) else ""
        array = load(fed[name], folder) if name in fed else None
        if array is None or isinstance(array, list):
            return default
        return array.item()

    return any(
        n.op_type != "Dropout" or (value(n, 2, True) and value(n, 1, DROPOUT_RATIO)) for n in nodes
    )
