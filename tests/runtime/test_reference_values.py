"""Reference values in several batches belong to the same inputs, whatever is needed, and in
whatever order."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fixtures.dags import random_dag
from subgraph.errors import InputError, ModelError
from subgraph.graph.graph import Graph
from subgraph.graph.walks import find_ancestors
from subgraph.runtime.inputs import Feeding
from subgraph.runtime.protocol import ModelRun
from subgraph.runtime.reference import Reference
from subgraph.runtime.reference_values import ReferenceValues, Watched
from subgraph.storage.tensors import load, write_value
from tests.helpers import text_models
from tests.helpers.refusals import raises

LINE = "g (float[N,4] x) => (float[N,4] y) { a = Relu(x)  b = Neg(a)  y = Exp(b) }"
Make = Callable[..., ReferenceValues]


class Counting:
    """A reference that counts its runs, and may fail at one."""

    def __init__(self, real: Reference, fail_at: int = 0) -> None:
        self._real = real
        self.fail_at = fail_at
        self.runs = 0

    def run(self, *args: Any, **more: Any) -> ModelRun:
        self.runs += 1
        if self.runs == self.fail_at:
            raise ModelError("seeded")
        return self._real.run(*args, **more)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


@pytest.fixture
def make(tmp_path: Path, reference: Reference) -> Make:
    def made(
        text: str | Graph, *inputs: str, counting: Counting | None = None, **more: Any
    ) -> ReferenceValues:
        graph = text_models.load(tmp_path, text) if isinstance(text, str) else text
        samples = Feeding(inputs=inputs, **more).plan(graph, graph.inputs)
        real: Any = counting or reference
        return ReferenceValues(graph, real, samples, tmp_path / "values")

    return made


def array(values: ReferenceValues, name: str, k: int = 0) -> np.ndarray[Any, Any]:
    found = load(values.records[k][name], Path("/"))
    assert isinstance(found, np.ndarray)
    return found


def test_batches_belong_together(make: Make) -> None:
    values = make(LINE, shapes={"x": [3, 4]})
    for name in ("b", "x", "y", "a"):
        values.need([name])
    assert array(values, "x").shape == (3, 4)
    assert np.array_equal(array(values, "a"), np.maximum(array(values, "x"), 0))
    assert np.array_equal(array(values, "b"), -array(values, "a"))
    assert np.allclose(array(values, "y"), np.exp(array(values, "b")))


def test_open_dimension_is_the_same_in_every_batch(make: Make, tmp_path: Path) -> None:
    """The size that a file gives `N` holds for the other, made-up input as well, whichever is
    needed first."""
    np.save(tmp_path / "some.npy", np.ones((5, 3), np.float32))
    text = (
        "g (float[N,3] x, float[N,2] z) => (float[N,5] y) { a = Relu(z)  b = Neg(x)  y ="
        " Concat<axis=1>(a, b) }"
    )
    values = make(text, f"x={tmp_path / 'some.npy'}")
    values.need(["a"])
    values.need(["b"])
    values.need(["y"])
    assert array(values, "z").shape == (5, 2)
    expected = np.concatenate([np.maximum(array(values, "z"), 0), -np.ones((5, 3), np.float32)], 1)
    assert np.array_equal(array(values, "y"), expected)


def test_samples_keep_their_order_and_shapes(make: Make, tmp_path: Path) -> None:
    (tmp_path / "samples").mkdir()
    for k in range(3):
        np.save(tmp_path / f"samples/{k}.npy", np.full((k + 1, 4), k, np.float32))
    values = make(LINE, str(tmp_path / "samples"))
    assert values.labels == ["0", "1", "2"]
    values.need(["a"])
    values.need(["b"])
    for k in range(3):
        assert np.array_equal(array(values, "b", k), np.full((k + 1, 4), -k))


@pytest.mark.parametrize(
    "order", [("y", "r", "s"), ("s", "y", "r"), ("r", "s", "y"), ("b", "s", "r", "y")]
)
@pytest.mark.parametrize("samples", [1, 3])
def test_random_numbers_are_drawn_once(
    order: tuple[str, ...], samples: int, make: Make, tmp_path: Path
) -> None:
    """A run of other nodes, or in another order, would draw others."""
    text = (
        "g (float[6] x) => (float[6] y) { a = Relu(x)  b = Neg(a)  r = RandomNormalLike(x)  c ="
        " Add(b, r)  s = RandomUniformLike(r)  y = Add(c, s) }"
    )
    (tmp_path / "samples").mkdir()
    for k in range(samples):
        np.save(tmp_path / f"samples/{k}.npy", np.full(6, k + 1, np.float32))
    values = make(text, str(tmp_path / "samples"))
    for name in (*order, "c", "b", "x"):
        values.need([name])
    for k in range(samples):
        b, r, s = (array(values, name, k) for name in "brs")
        assert np.array_equal(b, np.full(6, -(k + 1)))
        assert np.array_equal(array(values, "c", k), b + r)
        assert np.array_equal(array(values, "y", k), b + r + s)


@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_asked_in_whatever_order(seed: int, make: Make, tmp_path: Path) -> None:
    """On random graphs: one batch of all tensors gives, bit for bit, what many batches give."""
    rng = np.random.default_rng(seed)
    graph = text_models.read(tmp_path, random_dag(rng, 16))
    some = make(graph)
    one = ReferenceValues(graph, some.reference, some.samples, tmp_path / "one")
    names = [
        n
        for n in graph.maker
        if graph.maker[n] in find_ancestors(graph, graph.producers(graph.outputs))
    ]
    one.need(names)
    rng.shuffle(names)
    for batch in np.array_split(names, 5):
        some.need([str(n) for n in batch])
    for name in names:
        assert np.array_equal(array(one, name), array(some, name)), name
    every = [one.records[0][n] for n in names]
    assert one.digest(every) == some.digest([some.records[0][n] for n in names])


def test_stored_value_is_not_run_again(make: Make, reference: Reference) -> None:
    counting = Counting(reference)
    values = make(LINE, counting=counting, shapes={"x": [1, 4]})
    values.need(["a", "b"])
    assert counting.runs == 1
    values.need(["b", "a", "x"])
    values.need([])
    assert counting.runs == 1
    values.need(["b", "y"])
    assert counting.runs == 2


@pytest.mark.parametrize("fail_at", [1, 2, 3, 4])
def test_after_a_failure_all_samples_have_the_same(
    fail_at: int, make: Make, reference: Reference, tmp_path: Path
) -> None:
    (tmp_path / "samples").mkdir()
    for k in range(2):
        np.save(tmp_path / f"samples/{k}.npy", np.full((1, 4), k, np.float32))
    values = make(LINE, str(tmp_path / "samples"), counting=Counting(reference, fail_at))
    failed = 0
    for name in ("a", "b"):
        try:
            values.need([name])
        except ModelError:
            failed += 1
            assert values.records[0].keys() == values.records[1].keys()
            values.need([name])
    assert failed == 1
    for k in range(2):
        assert np.array_equal(array(values, "b", k), np.full((1, 4), -k))


def test_input_that_does_not_fit_is_told_and_may_be_asked_again(make: Make, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((2, 3), np.float32))
    values = make(LINE, str(tmp_path / "x.npy"))
    for _ in range(2):
        with raises(InputError, "input.wrong-shape", "'x'"):
            values.need(["a"])
    assert not values.records[0]


def test_several_threads_ask_at_once(make: Make) -> None:
    values = make(LINE, shapes={"x": [2, 4]})
    threads = [
        threading.Thread(target=values.need, args=([name],)) for name in ("a", "b", "y", "x") * 3
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert np.allclose(array(values, "y"), np.exp(-np.maximum(array(values, "x"), 0)))


def test_digest_tells_types_and_contents_apart(make: Make, tmp_path: Path) -> None:
    text = (
        "g (float[2] x) => (float[2] y, float[1,2] z, int32[2] i) { y = Neg(x) s ="
        " Constant<value=int64[2]{1,2}>() "
    )
    values = make(text + "z = Reshape(x, s) w = Neg(y) i = Cast<to=6>(x) }", seed=1)
    values.need(["x", "y", "z", "w", "i"])
    records = values.records[0]
    digests = dict(zip(records, values.digest(list(records.values())), strict=True))
    assert len(set(digests.values())) == len(digests)
    assert array(values, "w").tobytes() == array(values, "x").tobytes()
    again = ReferenceValues(values.graph, values.reference, values.samples, tmp_path / "again")
    again.need(list(records))
    assert again.digest([again.records[0][n] for n in digests]) == list(digests.values())


def test_digest_reads_each_file_once(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    values = make(LINE, shapes={"x": [2, 4]})
    values.need(["a"])
    before = values.digest([values.records[0]["a"]])
    Path(values.records[0]["a"].files[0]).unlink()
    assert values.digest([values.records[0]["a"]]) == before


def test_model_without_inputs_has_one_sample(make: Make) -> None:
    values = make("g () => (float[2] y) { c = Constant<value=float[2] {1.0, -2.0}>()  y = Abs(c) }")
    values.need(["y"])
    assert array(values, "y").tolist() == [1, 2]


def test_other_inputs_run_in_the_session_that_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: Reference
) -> None:
    graph = text_models.load(tmp_path, "g (float[2] x) => (float[2] y) { a = Abs(x) y = Neg(a) }")
    values = ReferenceValues(graph, reference, Feeding().plan(graph, graph.inputs), tmp_path)
    values.need(["x", "y"])
    monkeypatch.setattr(reference, "load_model", lambda *_, **__: pytest.fail("it is loaded again"))
    inputs = [{"x": write_value("x", np.full(2, k, np.float32), tmp_path, f"x{k}")} for k in (1, 2)]
    other = values.replace_inputs(inputs)
    other.need(["y"])
    assert [record["y"].array().tolist() for record in other.records] == [[-1, -1], [-2, -2]]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "x.npy"
    path.write_bytes(b"abc")
    return path


def test_another_size_and_another_time_are_a_change(file: Path, tmp_path: Path) -> None:
    watched = Watched()
    watched.add([str(file)])
    assert watched.find_change([str(file), str(tmp_path / "unknown")]) == ""
    before = file.stat()
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1000))
    assert watched.find_change([str(file)]) == str(file)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert watched.find_change([str(file)]) == ""
    file.write_bytes(b"abcd")
    watched.add([str(file)])  # it stays as it was
    assert watched.find_change([str(file)]) == str(file)


def test_removed_process_is_none(file: Path) -> None:
    watched = Watched()
    watched.add([str(file), f"{file}.none"])
    file.unlink()
    assert watched.find_change([str(file), f"{file}.none"]) == ""
