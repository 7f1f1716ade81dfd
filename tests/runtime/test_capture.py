"""Reference values come from a run of the tensors' ancestors, and of nothing else."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import subgraph
from fixtures import oracle
from subgraph.cases import write_case
from subgraph.cases.case import Case, ResultPlace
from subgraph.errors import InputError, ModelError, Refused, UnknownName
from subgraph.graph import graph, protobuf, region
from subgraph.graph.graph import Graph
from subgraph.graph.kinds import VALUE, find_kinds
from subgraph.graph.walks import find_descendants
from subgraph.runtime.capture import Captured, capture_samples, list_needed_inputs
from subgraph.runtime.inputs import Feeding, FeedingOptions
from subgraph.runtime.reference import Reference
from subgraph.storage import dtypes
from subgraph.storage.tensors import load
from tests.helpers import text_models
from tests.helpers.facts import has_line
from tests.helpers.refusals import raises
from tests.helpers.run_command import run_program

LIGHT = sorted((Path(onnx.__file__).parent / "backend/test/data/light").glob("light_*.onnx"))


@pytest.fixture
def taken(tmp_path: Path, reference: Reference) -> Callable[..., list[dict[str, Any]]]:
    """Values of some tensors, by sample, through the shared reference."""

    def take(
        g: Graph, *tensors: str, given: tuple[str, ...] = (), **more: Any
    ) -> list[dict[str, Any]]:
        above = region.find_upstream(g, tensors)
        samples = Feeding(given, **more).plan(g, list_needed_inputs(g, above, tensors))
        into = tmp_path / f"taken{len(list(tmp_path.iterdir()))}"
        into.mkdir()
        found: list[Captured] = capture_samples(
            reference, g, above, {n: f"t{i}" for i, n in enumerate(tensors)}, samples, into
        )
        return [
            {n: load(c.tensors[n], into / str(k)) for n in tensors} for k, c in enumerate(found)
        ]

    return take


Take = Callable[..., list[dict[str, Any]]]
UNIT = np.linspace(0, 1, 12, dtype=np.float32).reshape(1, 3, 2, 2)
TEXT = "g (float[1,3,2,2] x) => (float[1,3,2,2] y) { y = Relu(x) }"
QUANTIZED = """g (float[1,3,2,2] x) => (int8[1,3,2,2] y) <float s = {0.00784}, int8 z = {-1}> {
    y = QuantizeLinear(x, s, z) }"""


@pytest.mark.parametrize(
    ("text", "values", "said"),
    [
        (TEXT, [UNIT, UNIT * 255], ("input x", "b.npy", "0…255", "a.npy", "0…1")),
        (QUANTIZED, [UNIT * 255], ("input x", "a.npy", "0…255", "-0.996…1")),
        (TEXT, [UNIT * 255, UNIT * 200], ()),
        (TEXT, [UNIT, UNIT * 2 - 1], ()),
        (TEXT, [UNIT, UNIT * 2000], ()),
        (QUANTIZED, [UNIT * 3 - 1], ()),
    ],
)
def test_pixels_for_what_was_fed_as_0_to_1_are_noticed(
    text: str,
    values: list[Any],
    said: tuple[str, ...],
    tmp_path: Path,
    taken: Take,
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder = tmp_path / "samples"
    folder.mkdir()
    for name, value in zip("ab", values, strict=False):
        np.save(folder / f"{name}.npy", value)
    taken(text_models.load(tmp_path, text), "y", given=(str(folder),))
    warned = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert len(warned) == bool(said) and all(has_line(w, *said) for w in warned), warned


@pytest.fixture
def cases(tmp_path: Path, reference: Reference) -> Callable[..., list[Case]]:
    """The folders of a cut."""

    def make(g: Graph, start: str, end: str, **more: Any) -> list[Case]:
        request = write_case.CaseRequest(start=tuple(start.split()), end=tuple(end.split()), **more)
        return write_case.extract(g, request, ResultPlace(tmp_path / "out", ""), reference)

    return make


Cases = Callable[..., list[Case]]


def script(case: Case) -> str:
    """What the folder's own script says."""
    done = run_program([sys.executable, "repro.py"], cwd=case.path)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# ------------------------------------------------------------ what is run


@pytest.fixture
def branches(tmp_path: Path) -> Graph:
    r"""
    x ─ a ─┬─ good ─▶ y
           ├─ bad ─▶ z           (an index that lies outside: fails when it is run)
    v ─ sum ┴ unknown ─▶ u       (an operator that nobody has: does not even load)
    """
    return text_models.load(
        tmp_path,
        """g (float[4] x, float[4,T] v) => (float[4] y, float[1] z, float[4] u) <int64[1] far = {99}> {
            [a] a = Neg(x)
            [good] y = Tanh(a)
            [bad] z = Gather(a, far)
            [sum] t = ReduceSum(v)
            [unknown] u = acme.Swirl(a, t)
        }""",  # noqa: E501
        domains=("acme",),
    )


def test_branch_that_is_not_above_is_not_run(branches: Graph, taken: Take) -> None:
    (values,) = taken(branches, "y", "a", "x")
    assert np.array_equal(values["a"], -values["x"])
    assert values["y"].dtype == np.float32 and values["y"].shape == (4,)


def test_input_that_is_not_above_needs_no_value(branches: Graph, taken: Take) -> None:
    """`v` has an unknown dimension, which nobody asks about."""
    taken(branches, "y")
    with raises(InputError, "input.unknown-dimension", "v", "T"):
        taken(branches, "t")


def test_failure_at_load_or_run_has_a_reason(branches: Graph, taken: Take) -> None:
    with raises(ModelError, "backend.run-failed", "idx=99") as failure:
        taken(branches, "z")
    assert not isinstance(failure.value, Refused)
    with raises(Refused, "backend.refused-model", "acme", "Swirl") as refusal:
        taken(branches, "u", shapes={"v": [4, 2]})
    assert "partial" not in refusal.value.what and "--no-capture" in refusal.value.hint


def test_inputs_alone_can_be_had(branches: Graph, taken: Take) -> None:
    """Also one that nothing above the others reads."""
    (values,) = taken(branches, "x")
    assert values["x"].shape == (4,)
    (values,) = taken(branches, "y", "v", shapes={"v": [4, 2]})
    assert values["v"].shape == (4, 2)


# ------------------------------------------------------------ from Python


def test_from_python(tmp_path: Path) -> None:
    g = text_models.load(
        tmp_path,
        """g (float[N,2] x) => (float[N,2] y) {
            [a] h = Tanh(x)
            [s] parts = SequenceConstruct(h, x)
            [b] y = Relu(h)
        }""",
    )
    np.save(tmp_path / "x.npy", np.full((3, 2), -1, np.float32))
    values: Any
    (values,) = subgraph.capture(g, ["h", "b", "parts", "x"], [str(tmp_path / "x.npy")])
    assert list(values) == ["h", "y", "parts", "x"]
    assert np.allclose(values["h"], np.tanh(-1)) and not values["y"].any()
    assert [a.shape for a in values["parts"]] == [(3, 2), (3, 2)]
    (values,) = subgraph.capture(g, ["x"], shapes={"x": [2, 2]}, seed=3)
    (again,) = subgraph.capture(g, ["x"], shapes={"x": [2, 2]}, seed=3)
    assert values["x"].shape == (2, 2) and not oracle.differences(values["x"], again["x"])
    with raises(UnknownName, "node.unknown", "hh"):
        subgraph.capture(g, ["hh"])


# ------------------------------------------------------------ samples


@pytest.fixture
def batches(tmp_path: Path) -> tuple[Graph, str]:
    """x (batch, 4) ▶ first ▶ fold (by x's own shape) ▶ last; three samples: of 1, 2 and again 1
    row."""
    g = text_models.load(
        tmp_path,
        """g (float[batch,4] x) => (float[batch,2,2] y) <int64[1] zero = {0}, int64[2] rest = {2, 2}> {
            [shape] dims = Shape(x)
            [rows] rows = Gather(dims, zero)
            [target] target = Concat<axis = 0>(rows, rest)
            [first] a = Tanh(x)
            [fold] b = Reshape(a, target)
            [last] y = Neg(b)
        }""",  # noqa: E501
    )
    folder = tmp_path / "samples"
    folder.mkdir()
    for name, rows in (("one", 1), ("two", 2), ("three", 1)):
        np.save(
            folder / f"{name}.npy",
            np.random.default_rng(rows).standard_normal((rows, 4), np.float32),
        )
    return g, str(folder)


def test_samples_of_equal_shapes_share_a_cut_others_get_their_own(
    batches: tuple[Graph, str], cases: Cases
) -> None:
    g, folder = batches
    found = cases(g, "first", "last", fed=FeedingOptions((folder,)))
    assert [c.path.name for c in found] == ["first__last", "first__last-2"]
    labels = [[s.label for s in c.manifest.samples] for c in found]
    assert labels == [["one", "three"], ["two"]]
    for case, rows in zip(found, (1, 2), strict=True):
        assert case.manifest.check.status == "identical"
        assert case.manifest.region.frozen == ("target",)
        model = onnx.load(case.path / "model.onnx")
        assert oracle.weight(model, "target").tolist() == [rows, 2, 2]
        assert [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim] == [rows, 4]
        for k, sample in enumerate(case.manifest.samples):
            files = case.manifest.inputs[0].samples[k].files
            value = np.load(case.path / files[0].file)
            assert np.array_equal(value, np.load(Path(folder) / f"{sample.label}.npy"))
        assert script(case).count("bit-identical") == len(case.manifest.samples)


def test_open_dimensions_take_all_samples(batches: tuple[Graph, str], cases: Cases) -> None:
    g, folder = batches
    (case,) = cases(g, "first", "last", fed=FeedingOptions((folder,)), dynamic=True, freeze=False)
    assert len(case.manifest.samples) == 3 and case.manifest.check.status == "identical"
    model = onnx.load(case.path / "model.onnx")
    assert {v.name for v in model.graph.input} == {"x", "target"}
    (x,) = (v for v in model.graph.input if v.name == "x")
    assert x.type.tensor_type.shape.dim[0].dim_param == "batch"
    assert script(case).count("bit-identical") == 3


def test_shapes_that_are_not_frozen_are_inputs(batches: tuple[Graph, str], cases: Cases) -> None:
    g, folder = batches
    found = cases(g, "first", "last", fed=FeedingOptions((folder,)), freeze=False)
    assert [len(c.manifest.samples) for c in found] == [2, 1]
    for case in found:
        assert case.manifest.region.frozen == ()
        assert [t.name for t in case.manifest.inputs] == ["x", "target"]
        assert case.manifest.check.status == "identical"


# ------------------------------------------------------------ types at the edge


@pytest.mark.turns(3)
@pytest.mark.parametrize("shape", ["", "[3,5]"])
@pytest.mark.parametrize(
    "number", [TensorProto.BFLOAT16, TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E5M2]
)
def test_types_that_numpy_lacks_at_the_edge(
    tmp_path: Path, cases: Cases, number: int, shape: str
) -> None:
    """A scalar, too: it must not become a vector of one."""
    g = text_models.load(
        tmp_path,
        f"""g (float{shape} x) => (float{shape} y) {{
            [narrow] a = Cast<to = {number}>(x)
            [first] b = Cast<to = 1>(a)
            [middle] c = Neg(b)
            [last] d = Cast<to = {number}>(c)
            [widen] y = Cast<to = 1>(d)
        }}""",
        opset=19,
        ir=9,
    )
    (case,) = cases(g, "first", "last")
    assert case.manifest.check.status == "identical"
    assert case.manifest.inputs[0].dtype == dtypes.TYPES[number][0]
    assert case.manifest.inputs[0].shape == ((3, 5) if shape else (),)
    assert "bit-identical" in script(case)


@pytest.mark.parametrize("number", [TensorProto.INT4, TensorProto.UINT4])
def test_packed_types_at_the_edge(tmp_path: Path, cases: Cases, number: int) -> None:
    """15 values: the last byte is half full."""
    zero = helper.make_tensor("zero", number, [], [1])
    g = text_models.load(
        tmp_path,
        """g (float[3,5] x) => (float[3,5] y) <float scale = {0.25}> {
            [narrow] a = QuantizeLinear(x, scale, zero)
            [first] b = DequantizeLinear(a, scale, zero)
            [middle] c = Neg(b)
            [last] d = QuantizeLinear(c, scale, zero)
            [widen] y = DequantizeLinear(d, scale, zero)
        }""",
        lambda m: m.graph.initializer.append(zero),
        opset=21,
        ir=10,
    )
    (case,) = cases(g, "first", "last")
    assert case.manifest.check.status == "identical"
    assert [t.dtype for t in (*case.manifest.inputs, *case.manifest.outputs)] == [
        dtypes.TYPES[number][0]
    ] * 2
    assert len((case.path / "inputs/a.bin").read_bytes()) == 8 and np.load(
        case.path / "inputs/a.npy"
    ).shape == (3, 5)
    assert "bit-identical" in script(case)


def test_texts_booleans_and_empty_tensors_at_the_edge(tmp_path: Path, cases: Cases) -> None:
    g = text_models.load(
        tmp_path,
        """g (string[2,2] words, float[0,3] none, bool[2] flags) => (string[4] flat, float[0,3] z, bool[2] no) {
            [one] w = Identity(words)
            [two] n = Neg(none)
            [three] b = Not(flags)
            [texts] flat = Reshape(w, all)
            [empty] z = Abs(n)
            [truth] no = Not(b)
        }""",  # noqa: E501
        all=np.array([-1]),
    )
    (case,) = cases(g, "texts empty truth", "texts empty truth")
    assert case.manifest.check.status == "identical"
    assert [t.dtype for t in case.manifest.inputs] == ["string", "float32", "bool"]
    assert case.manifest.inputs[1].shape == ((0, 3),)
    assert script(case).count("bit-identical") == 3


def test_half_precision_may_round_once(tmp_path: Path, cases: Cases) -> None:
    """onnxruntime keeps float32 between float16 nodes, and where its Casts stand depends on what is
    around them."""
    layers = "".join(
        f"[mm{i}] m{i} = MatMul(a{i}, w{i}) [act{i}] a{i + 1} = Tanh(m{i})\n" for i in range(8)
    )
    weights: dict[str, Any] = {
        f"w{i}": (np.random.default_rng(i).standard_normal((64, 64)) / 8).astype(np.float16)
        for i in range(8)
    }
    g = text_models.load(
        tmp_path, f"g (float16[4,64] a0) => (float16[4,64] a8) {{ {layers} }}", **weights
    )
    (case,) = cases(g, "mm2", "act6")
    check = case.manifest.check
    assert check.status in ("identical", "rounding")
    if check.status == "rounding":
        assert has_line(check.what, "fp16", "float32", "float16")
        assert all((far.relative or 0) < 2**-10 for far in check.outputs or ())
        assert "agrees" in script(case)


def test_sequence_of_shapes_is_an_input_it_cannot_be_frozen(tmp_path: Path, cases: Cases) -> None:
    g = text_models.load(
        tmp_path,
        """g (float[N,4] x) => (float[M] y) <int64 zero = {0}> {
            [shape] dims = Shape(x)
            [list] both = SequenceConstruct(dims, dims)
            [first] target = SequenceAt(both, zero)
            [last] y = Reshape(x, target)
        }""",
    )
    (case,) = cases(g, "first", "last")
    assert case.manifest.check.status == "identical" and case.manifest.region.frozen == ()
    assert sorted(t.name for t in case.manifest.inputs) == ["both", "x"]


# ------------------------------------------------------------ weights


def heavy(folder: Path, place: str, offset: int, *, inline: bool = False) -> Graph:
    """x ▶ first (a weight of 128 KiB) ▶ last, its bytes in a file at an offset."""
    made = text_models.model("""g (float[2,256] x) => (float[2,128] y) {
            [before] h = Tanh(x) [first] a = MatMul(h, w) [last] y = Neg(a)
        }""")
    values = np.random.default_rng(0).standard_normal((256, 128), np.float32) / 16
    tensor = numpy_helper.from_array(values, "w")
    if not inline:
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_bytes(b"\xff" * offset + tensor.raw_data)
        protobuf.point_to(tensor, place, offset, len(tensor.raw_data))
    made.graph.initializer.append(tensor)
    return text_models.read(folder, made)


@pytest.mark.parametrize("place", ["w.data", "deeper/w.data"])
@pytest.mark.parametrize("offset", [0, 64, 4096, 4, 7])
def test_weights_in_another_file_give_the_same_values_wherever_they_lie(
    tmp_path: Path, taken: Take, place: str, offset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Aligned ones are read where they lie; of others a copy is run, for kernels round differently
    there."""
    copies: list[Path] = []
    write = protobuf.write

    def counted(
        model: protobuf.ModelProto, source: Path, path: Path, *, external: bool
    ) -> list[Path]:
        copies.append(path)
        return write(model, source, path, external=external)

    monkeypatch.setattr(protobuf, "write", counted)
    (tmp_path / "inline").mkdir()
    (tmp_path / "outside").mkdir()
    (want,) = taken(heavy(tmp_path / "inline", "", 0, inline=True), "y")
    copies.clear()
    (got,) = taken(heavy(tmp_path / "outside", place, offset), "y")
    assert not oracle.differences(want["y"], got["y"])
    assert bool(copies) == (offset % 64 != 0)


@pytest.mark.parametrize(
    "link",
    [
        pytest.param(
            "symbolic", marks=pytest.mark.posix("on Windows symbolic links need a privilege")
        ),
        "hard",
    ],
)
def test_weights_behind_a_link_within_the_folder(tmp_path: Path, cases: Cases, link: str) -> None:
    """As download caches lay them out; the cut carries a file of its own."""
    g = heavy(tmp_path, "blob", 0)
    model = onnx.load(g.path, load_external_data=False)
    protobuf.point_to(model.graph.initializer[0], "w.data", 0, 256 * 128 * 4)
    if link == "hard":
        (tmp_path / "w.data").hardlink_to(tmp_path / "blob")
    else:
        (tmp_path / "w.data").symlink_to("blob")
    (case,) = cases(text_models.read(tmp_path, model), "first", "last")
    assert case.manifest.check.status == "identical"
    files = sorted(p.name for p in case.path.iterdir() if p.is_file())
    assert files == ["log.txt", "manifest.json", "model.onnx", "model.onnx.data", "repro.py"]
    onnx.checker.check_model(case.path / "model.onnx")
    (tmp_path / "blob").unlink()
    assert "bit-identical" in script(case)


def test_large_inline_model_is_captured_without_reading_it(
    tmp_path: Path, cases: Cases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protobuf, "MIN_WALKED_BYTES", 1000)
    g = heavy(tmp_path, "", 0, inline=True)
    assert protobuf.is_on_disk(g.weights["w"])
    (case,) = cases(g, "first", "last")
    assert case.manifest.check.status == "identical"
    assert sorted(p.name for p in case.path.iterdir() if p.suffix != ".txt" and p.is_file()) == [
        "manifest.json",
        "model.onnx",
        "repro.py",
    ]


# ------------------------------------------------------------ real networks


@pytest.mark.turns(4)
@pytest.mark.parametrize(
    "path",
    [*LIGHT[:3], *(pytest.param(p, marks=pytest.mark.rare) for p in LIGHT[3:])],
    ids=lambda p: str(p.stem).removeprefix("light_"),
)
def test_networks_of_the_onnx_package_are_cut_in_the_middle(path: Path, cases: Cases) -> None:
    """IR 3, nameless nodes, weights filled by ConstantOfShape: from a tenth before the middle to a
    tenth after."""
    g = graph.load(path)
    trunk = [
        i
        for i in g.in_order(range(len(g.nodes)))
        if find_kinds(g, g.makes[i][:1]) == {g.makes[i][0]: VALUE}
    ]
    first = trunk[len(trunk) * 4 // 10]
    last = trunk[len(trunk) * 6 // 10]
    below = find_descendants(g, [first])
    last = next(i for i in trunk[trunk.index(last) :] if i in below)
    (case,) = cases(g, f"#{first}", f"#{last}")
    assert case.manifest.check.status == "identical"
    piece = onnx.load(case.path / "model.onnx")
    onnx.checker.check_model(piece, full_check=True)
    assert {n.index for n in case.manifest.region.nodes} == oracle.between(
        onnx.load(path), [first], [last]
    )
    weights = [i for i in case.manifest.region.pulled if i.op == "ConstantOfShape"]
    assert len(weights) >= 1
