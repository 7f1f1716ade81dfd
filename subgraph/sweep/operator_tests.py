"""onnx's own operator tests and light networks -> examples: a model, what it is fed, what it must give.

onnx makes the tests with numpy while its modules are imported, which takes seconds; so they are made once for each
version and kept in the store as one archive, from which each test is taken when its turn comes. Nothing is fetched:
the light networks and what they give lie in onnx's wheel.
"""

from __future__ import annotations

import fnmatch
import logging
import re
import tempfile
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from subgraph.errors import BackendError, InputError, SubcutError, UnknownName
from subgraph.graph import graph as graphs
from subgraph.graph.types import declared_type
from subgraph.storage.digest import digest, file_digest
from subgraph.storage.store import Store
from subgraph.storage.tensors import Record, Value, load, parse_type, save, type_of
from subgraph.text import clean, nearest
from subgraph.version import __version__

if TYPE_CHECKING:
    from subgraph.types import Array

log = logging.getLogger("subcut")

ARCHIVE = "tests.zip"
MODEL = "model.onnx"
NODE, NETWORK = "node", "network"
DRAWS = "it draws random numbers, and nothing says which"
EXPANDED = re.compile(r"(.+)_expanded(_ver\d+)?")
DATA = "backend/test/data/light"  # in the onnx package
RATIO = 0.5  # Dropout's, where none is fed


@dataclass(frozen=True)
class Example:
    """A model with inputs and the outputs that it must give.

    Attributes:
        model: the file. inputs, outputs: records with absolute paths, as `tensors.save` makes them.
        rtol, atol: how far each element may be off, by whoever made the example.
        key: a hash of the model, the inputs and the outputs.
    """

    name: str
    model: Path
    inputs: tuple[Record, ...]
    outputs: tuple[Record, ...]
    rtol: float
    atol: float
    key: str


@dataclass(frozen=True)
class OperatorTest:
    """One test, as a line of a table; `OperatorTests.unpacked` gives the example.

    Attributes:
        op: the operator that it tests, also where the model is the operator's definition, expanded. "" of a network.
        kind: `node` or `network`.
    """

    name: str
    op: str
    domain: str
    kind: str
    rtol: float
    atol: float
    inputs: tuple[Record, ...]
    outputs: tuple[Record, ...]
    key: str

    def fits(self, pattern: str) -> bool:
        """Does a name or glob mean this test: by its operator, or by its own name with or without `test_`?"""
        names = (self.op, self.name, self.name.removeprefix("test_"))
        return any(fnmatch.fnmatchcase(name.lower(), pattern.lower()) for name in names if name)


@dataclass(frozen=True)
class LeftOut:
    """A test that is not run, and why."""

    name: str
    op: str
    why: str


@dataclass(frozen=True)
class OperatorTests:
    """All that onnx has, or those of them that were chosen."""

    tests: tuple[OperatorTest, ...]
    left_out: tuple[LeftOut, ...]
    archive: Path

    @cached_property
    def _opened(self) -> zipfile.ZipFile:
        """Open as long as this is used: reading its index takes longer than all of a test. Several threads may read."""
        return zipfile.ZipFile(self.archive)

    def chosen(self, patterns: Sequence[str]) -> OperatorTests:
        """Those that the patterns mean; all, where there is none.

        Raises:
            UnknownName: a pattern means none; carries the nearest names.
        """
        everything = [*self.tests, *(_row(t) for t in self.left_out)]
        for pattern in patterns:
            if not any(t.fits(pattern) for t in everything):
                names = [n for t in everything for n in (t.op, t.name) if n]
                raise UnknownName(f"no operator or test '{clean(pattern)}'", nearest=nearest(pattern, names))
        if not patterns:
            return self
        return replace(
            self,
            tests=tuple(t for t in self.tests if any(map(t.fits, patterns))),
            left_out=tuple(t for t in self.left_out if any(map(_row(t).fits, patterns))),
        )

    def unpacked(self, test: OperatorTest, folder: Path) -> Example:
        """The example of a test, its files in `folder`, which is made."""
        folder.mkdir(parents=True)
        files = [f for record in (*test.inputs, *test.outputs) for f in record.files]
        for file in (MODEL, *files):
            (folder / file).write_bytes(self._opened.read(f"{test.name}/{file}"))
        inputs, outputs = (tuple(r.within(str(folder)) for r in records) for records in (test.inputs, test.outputs))
        return Example(test.name, folder / MODEL, inputs, outputs, test.rtol, test.atol, test.key)


def _row(left: LeftOut) -> OperatorTest:
    return OperatorTest(left.name, left.op, "", NODE, 0.0, 0.0, (), (), "")


def collect(store: Store) -> OperatorTests:
    """All tests of the onnx that is installed; made now where the store does not have them.

    Raises:
        BackendError: this onnx has no such tests. OutputError: nothing can be written.
    """
    key = digest("operator tests/1", __version__, *(metadata.version(name) for name in ("onnx", "numpy")))
    document, folder = store.memo(key, _made)
    tests = tuple(_test(entry) for entry in document["tests"])
    return OperatorTests(tests, tuple(LeftOut(**entry) for entry in document["left_out"]), folder / ARCHIVE)


def _test(entry: Mapping[str, Any]) -> OperatorTest:
    records = {role: tuple(map(Record.from_json, entry[role])) for role in ("inputs", "outputs")}
    return OperatorTest(**{**entry, **records})


# ---------------------------------------------------------------------------------------------------- making them


@dataclass(frozen=True)
class _Raw:
    """A test as onnx has it: the model's bytes and values in the model's order."""

    name: str
    op: str
    domain: str
    kind: str
    model: Any
    inputs: Sequence[Any]
    outputs: Sequence[Any]
    rtol: float
    atol: float


def _made(room: Path) -> dict[str, Any]:
    log.info("making onnx's operator tests: a few seconds, once")
    found: dict[str, list[dict[str, Any]]] = {"tests": [], "left_out": []}
    with (
        tempfile.TemporaryDirectory(prefix="subcut-tests-") as temporary,
        zipfile.ZipFile(room / ARCHIVE, "w") as archive,
    ):
        for raw in (*_nodes(), *_networks()):
            folder = Path(temporary) / raw.name
            folder.mkdir()
            try:
                entry = _written(raw, folder)
            except SubcutError as e:
                found["left_out"].append({"name": raw.name, "op": raw.op, "why": e.what})
                continue
            for file in sorted(folder.iterdir()):
                archive.writestr(zipfile.ZipInfo(f"{raw.name}/{file.name}"), file.read_bytes())
                file.unlink()
            found["tests"].append(entry)
    return found


def _nodes() -> Iterator[_Raw]:
    """The node tests; each module's random values start from the same seed, so that all runs see the same."""
    with _quiet():
        cases = _generated()
    ops: dict[str, tuple[str, str]] = {}
    for case in cases:
        m = EXPANDED.fullmatch(case.name)
        node = case.model.graph.node[0]
        ops[case.name] = ops[m[1]] if m and m[1] in ops else (node.op_type, node.domain)
        for inputs, outputs in case.data_sets:
            yield _Raw(case.name, *ops[case.name], NODE, case.model, inputs, outputs, case.rtol, case.atol)


def _generated() -> list[Any]:
    import importlib
    import pkgutil

    import numpy as np

    try:
        import onnx.backend.test.case.node as node
    except ImportError as e:
        raise BackendError(f"this onnx has no operator tests: {e}", "pip install -U onnx") from e
    state = np.random.get_state()
    for module in sorted(m.name for m in pkgutil.walk_packages(node.__path__, f"{node.__name__}.")):
        np.random.seed(0)
        importlib.import_module(module)
    np.random.set_state(state)
    return list(node._NodeTestCases)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without numpy's warnings about the overflows that the tests are about."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _networks() -> Iterator[_Raw]:
    """The light networks, fed as onnx's runner feeds them: a ramp from 0 to 1, for which the wheel has the outputs."""
    import onnx
    from onnx import numpy_helper
    from onnx.backend.test.case.model import collect_testcases

    with _quiet():
        cases = [c for c in collect_testcases() if c.url and DATA in c.url]
    for case in cases:
        path = Path(str(onnx.__file__)).parent / DATA / Path(str(case.url)).name
        if not path.is_file():
            continue
        model = onnx.load(path)
        weights = {w.name for w in model.graph.initializer}
        inputs = [_ramp(i.type) for i in model.graph.input if i.name not in weights]
        expected = [path.with_name(f"{path.stem}_output_{k}.pb") for k in range(len(model.graph.output))]
        outputs = [numpy_helper.to_array(onnx.load_tensor(str(f))) for f in expected if f.is_file()]
        name = f"test_{path.stem}"
        yield _Raw(name, "", "", NETWORK, model, inputs, outputs, case.rtol, case.atol)


def _ramp(type_proto: Any) -> Array:
    import numpy as np

    _, _, dims = declared_type(type_proto)
    shape = [d if isinstance(d, int) else 1 for d in dims or ()]
    size = int(np.prod(shape))
    found: Array = (np.arange(size).reshape(shape) / size).astype(np.float32)
    return found


def _written(raw: _Raw, folder: Path) -> dict[str, Any]:
    """A test's files in a folder, and the entry that describes them.

    Raises:
        SubcutError: why it cannot be run.
    """
    graph = raw.model.graph
    weights = {w.name for w in graph.initializer}
    (folder / MODEL).write_bytes(raw.model.SerializeToString(deterministic=True))
    feeds = [i for i in graph.input if i.name not in weights]
    inputs = _records(feeds, raw.inputs, folder, "i")
    outputs = _records(graph.output, raw.outputs, folder, "o")
    if not outputs:
        raise InputError("it names no output")
    if _draws(folder, inputs):
        raise InputError(DRAWS)
    records = {"inputs": [r.to_json() for r in inputs], "outputs": [r.to_json() for r in outputs]}
    files = {f.name: file_digest(f) for f in folder.iterdir()}
    return {
        "name": raw.name,
        "op": raw.op,
        "domain": raw.domain,
        "kind": raw.kind,
        "rtol": raw.rtol,
        "atol": raw.atol,
        "key": digest(raw.name, records, files, raw.rtol, raw.atol),
    } | records


def _records(infos: Sequence[Any], values: Sequence[Any], folder: Path, stem: str) -> list[Record]:
    """The values of a model's inputs or outputs, as files of the types that the model declares.

    Raises:
        InputError: there is no value for one of them, or it cannot be stored as what it is declared to be.
    """
    if len(infos) != len(values):
        raise InputError(f"the model names {len(infos)} tensors where the test has {len(values)} values")
    found = []
    for k, (info, value) in enumerate(zip(infos, map(_plain, values), strict=True)):
        form, dtype, _ = declared_type(info.type)
        for array in value if isinstance(value, list) else [] if value is None else [value]:
            have = parse_type(type_of(array))[1]
            if have != dtype:
                raise InputError(f"{info.name} is declared as {dtype}, and the test has {have}")
        found.append(save(info.name, value, Record(info.name, form, dtype, (), ()).type_text, folder, f"{stem}{k}"))
    return found


def _plain(value: Any) -> Value:
    """What onnx has as an array, a number, a message, or a list of these."""
    import numpy as np
    from onnx import TensorProto, numpy_helper

    if isinstance(value, (list, tuple)):
        return [one for v in value if isinstance(one := _plain(v), np.ndarray)]
    if isinstance(value, TensorProto):
        return np.asarray(numpy_helper.to_array(value))
    return None if value is None else np.asarray(value)


def _draws(folder: Path, inputs: Iterable[Record]) -> bool:
    """Does the model draw random numbers, fed with these?"""
    data = (folder / MODEL).read_bytes()
    if not any(op.encode() in data for op in (*graphs.RANDOM_OPS, "Dropout")):
        return False
    graph = graphs.load(folder / MODEL)
    random = [graph.nodes[i] for i in graph.random_nodes]
    fed = {r.name: r for r in inputs}

    def value(node: Any, place: int, default: Any) -> Any:
        name = node.input[place] if place < len(node.input) else ""
        array = load(fed[name], folder) if name in fed else None
        return default if array is None or isinstance(array, list) else array.item()

    return any(node.op_type != "Dropout" or (value(node, 2, True) and value(node, 1, RATIO)) for node in random)
