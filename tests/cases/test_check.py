"""The check of a cut says bit-identical, or how far apart and why; a fake reference gives each
outcome.

Covers `cases.check` and the comparison of `cases.repro`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from subgraph.cases import repro
from subgraph.cases.case import CheckResult
from subgraph.cases.check import check
from subgraph.documents import to_json
from subgraph.graph.cut import cut
from subgraph.runtime.capture import Captured
from subgraph.runtime.protocol import ModelRun
from subgraph.runtime.reference import Reference
from subgraph.storage.tensors import Record, save
from tests.helpers import text_models
from tests.helpers.facts import has_line

Array = np.ndarray[Any, Any]
WANT = np.array([1.0, -2.0, 4.0], np.float32)
Judge = Callable[..., CheckResult]


class Fake:
    """A reference whose cut gives the value it is told, whatever it is fed."""

    def __init__(self, value: Array) -> None:
        self.value = value

    def load(self, key: str, model: Path) -> None:
        """Nothing is built."""

    def run(self, key: str, into: Path, outputs: Mapping[str, str], feeds: object) -> ModelRun:
        kind = {"float32": "float", "float16": "float16", "int64": "int64"}[self.value.dtype.name]
        saved = (save(n, self.value, f"tensor({kind})", into, stem) for n, stem in outputs.items())
        return ModelRun(tuple(saved), (), {}, (), 0.0)


@pytest.fixture
def judged(tmp_path: Path) -> Judge:
    """What the check says where the whole model gave `want`, `again` when run a second time, and
    the cut `got`."""

    def judge(want: Array, got: Array, again: Array | None = None) -> CheckResult:
        kind = {"float32": "float", "float16": "float16", "int64": "int64"}[want.dtype.name]
        piece = cut(
            text_models.load(tmp_path, f"g ({kind}[3] x) => ({kind}[3] y) {{ y = Identity(x) }}"),
            "y",
            "y",
        )
        folder = tmp_path / "0"
        folder.mkdir()
        records = {n: save(n, want, f"tensor({kind})", folder, n) for n in ("x", "y")}
        sample = Captured("", records, {}, {})

        def second(k: int, into: Path) -> dict[str, Record]:
            (into / "0").mkdir()
            return {
                "y": save("y", want if again is None else again, f"tensor({kind})", into / "0", "y")
            }

        reference = cast(Reference, Fake(got))
        model = tmp_path / "none.onnx"
        found = check(
            reference, piece, [sample], [folder], model, second, "the full model's values"
        )
        assert not list(folder.glob("check*")), "what the check wrote is gone"
        return found

    return judge


def test_equal_bits_are_identical(judged: Judge) -> None:
    found = judged(WANT, WANT.copy())
    document = to_json(found)
    assert (document["status"], document["tolerance"], document["outputs"]) == (
        "identical",
        0.0,
        [],
    )
    assert has_line(found.what, "identical")


def test_the_same_nan_and_infinity_are_equal(judged: Judge) -> None:
    odd = np.array([np.nan, 0.0, np.inf], np.float32)
    assert judged(odd, odd.copy()).status == "identical"


def test_minus_zero_is_not_zero(judged: Judge) -> None:
    assert judged(np.zeros(3, np.float32), -np.zeros(3, np.float32)).status == "different"


def test_last_bit_is_a_difference(judged: Judge) -> None:
    found = judged(WANT, np.nextafter(WANT, np.float32(9)))
    assert found.status == "different"
    (far,) = found.outputs or ()
    assert (far.name, far.scale) == ("y", 4.0) and far.relative == pytest.approx(2**-23, rel=0.1)


@pytest.mark.parametrize(
    ("got", "again", "status"),
    [
        (WANT.reshape(1, 3), None, "different"),
        (np.array([1, np.nan, 4], np.float32), None, "different"),
        (WANT + 1, WANT + 2, "unrepeatable"),
    ],
)
def test_other_values_are_different_unless_the_reference_never_repeats_itself(
    got: Array, again: Array | None, status: str, judged: Judge
) -> None:
    assert judged(WANT, got, again=again).status == status


@pytest.mark.parametrize(
    ("factor", "offset", "status"), [(1, 2**-9, "rounding"), (1.5, 0, "different")]
)
def test_half_precision_may_round_once(
    factor: float, offset: float, status: str, judged: Judge
) -> None:
    half = WANT.astype(np.float16)
    assert judged(half, half * np.float16(factor) + np.float16(offset)).status == status


@pytest.mark.parametrize(
    ("want", "got"),
    [
        (np.asarray([np.inf, 1], np.float16), np.asarray([-np.inf, 1], np.float16)),
        (np.asarray([np.nan, 1], np.float16), np.asarray([np.inf, 1], np.float16)),
        (np.asarray([1000, 7], np.int64), np.asarray([999, 7], np.int64)),
        (np.asarray([1 << 60]), np.asarray([(1 << 60) + 1])),
    ],
)
def test_index_or_the_sign_of_infinity_is_never_a_rounding(
    judged: Judge, want: Array, got: Array
) -> None:
    assert judged(want, got).status == "different"


def test_the_script_sees_signs_of_infinity_and_imaginary_parts() -> None:
    inf = np.inf
    assert repro.judge(np.asarray([inf, 1]), np.asarray([inf, 1]))[0]
    assert not repro.judge(np.asarray([inf, 1]), np.asarray([-inf, 1]))[0]
    assert not repro.judge(np.asarray([1 + 5j]), np.asarray([1 + 0j]))[0]
