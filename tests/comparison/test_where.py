"""Which outputs are compared, and which of their elements."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from subgraph.comparison.where import (
    OutputChoice,
    Where,
    limit_to_mask,
    parse_where,
    select_elements,
)
from subgraph.errors import UsageError
from subgraph.storage.tensors import Record, write_value
from tests.helpers import text_models
from tests.helpers.facts import has_line
from tests.helpers.planted_candidates import planted
from tests.helpers.refusals import raises
from tests.helpers.run_command import Done, subcut

# One node makes two outputs, so that its case holds both.
TWO = (
    "g (float[6] x) => (float[3] confidence, float[3] boxes, float[6] aux) {"
    " [split] confidence, boxes = Split <axis = 0> (x) [neg] aux = Neg(x) }"
)
WRONG = (
    planted(
        answer="""
    for name, at in (word.split("@") for word in options["off"].split("+")):
        if name in found:
            found[name] = found[name].copy()
            found[name][int(at)] += 1
    """
    )
    + """
def version():
    return "1"
"""
)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("confidence>0.5", Where("confidence", ">", 0.5)),
        (" a/b:0 <= -1e-3 ", Where("a/b:0", "<=", -1e-3)),
        ("a>b!=2", Where("a>b", "!=", 2.0)),
    ],
)
def test_condition(text: str, found: Where) -> None:
    assert parse_where(text) == found and parse_where(str(found)) == found


@pytest.mark.parametrize(
    "text", ["confidence", ">0.5", "confidence>", "confidence>x", "a > __import__('os')", ""]
)
def test_malformed_condition_is_refused(text: str) -> None:
    with raises(UsageError, "option.malformed"):
        parse_where(text)


def records(folder: Path, **values: object) -> dict[str, Record]:
    folder.mkdir()
    return {
        name: write_value(name, np.asarray(value, np.float32), folder, name)
        for name, value in values.items()
    }


def test_axes_of_a_condition_are_the_first_ones_of_an_output(tmp_path: Path) -> None:
    known = records(
        tmp_path / "a",
        c=[[0.9, 0.1, 0.2]],
        b=[[[1, 2], [3, 4], [5, 6]]],
        t=[[1], [2]],
        w=[[[0.9, 0.1]]],
    )
    given = records(tmp_path / "b", c=[[0.9, 0.1, 0.7]])
    high = [Where("c", ">", 0.5)]
    found = select_elements(high, "b", known, {})
    assert found is not None and found.tolist() == [[[True, True], [False, False], [False, False]]]
    found = select_elements(high, "b", known, given)  # the candidate alone finds the third
    assert found is not None and found[0, :, 0].tolist() == [True, False, True]
    found = select_elements([*high, Where("c", "<", 0.8)], "c", known, given)  # each on one side
    assert found is not None and found.tolist() == [[False, False, True]]
    found = select_elements([Where("w", ">", 0.5)], "w", known, {})
    assert found is not None and found.tolist() == [[[True, False]]]
    assert select_elements([], "b", known, given) is None
    with raises(UsageError, "where.wrong-shape", "1×3", "2×1"):
        select_elements(high, "t", known, given)
    with raises(UsageError, "where.wrong-shape", "1×1×2", "1×3"):
        select_elements([Where("w", ">", 0.5)], "c", known, given)


def test_outside_there_is_nothing_to_compare() -> None:
    a = np.array([1.0, 2.0])
    b = np.array([3.0, 4.0])
    mask = np.array([True, False])
    left, right = limit_to_mask(a, b, mask)
    assert left[0] == 1 and right[0] == 3 and np.isnan([left[1], right[1]]).all()
    left, right = limit_to_mask(a.astype(np.int64), b.astype(np.int64), mask)
    assert left.tolist() == [1, 2] and right.tolist() == [3, 2]
    assert limit_to_mask(a, b[:1], mask)[1].shape == (1,)


@pytest.fixture
def two(tmp_path: Path) -> Path:
    text_models.load(tmp_path, TWO)
    (tmp_path / "wrong.py").write_text(WRONG)
    np.save(tmp_path / "x.npy", np.array([0.9, 0.1, 0.1, 1, 2, 3], np.float32))
    return tmp_path


def ask(two: Path, command: str, off: str, *words: str) -> Done:
    return subcut(
        command, "model.onnx", "-i", "x.npy", "-c", f"wrong.py:off={off}", *words, "--json", cwd=two
    )


@pytest.mark.slow
def test_output_is_left_out_and_another_one_masked(two: Path) -> None:
    words = ("--ignore", "aux", "--where", "confidence>0.5")
    right = ask(two, "compare", "aux@0+boxes@1", *words)
    document = right.document
    assert (right.code, document["ignored"], document["where"]) == (
        0,
        ["aux"],
        ["confidence>0.5"],
    ), right
    assert {row["tensor"] for row in document["rows"]} == {"confidence", "boxes"}
    assert has_line(document["notes"], "left out", "aux")
    found = ask(two, "compare", "confidence@2", *words)  # what the candidate alone finds counts
    assert found.code == 1 and found.document["first_bad"]["tensor"] == "confidence"


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("--ignore", "auxx"), ("--ignore auxx", "no such")),
        (("--where", "x>1"), ("--where x>1", "no such")),
        (("--where", "confidence"), ("--where confidence", "condition")),
        (("--where", "confidence>0"), ("--where confidence>0", "confidence is 3", "aux 6")),
        (
            ("--ignore", "aux", "--ignore", "boxes", "--ignore", "confidence"),
            ("--ignore", "no output"),
        ),
    ],
)
def test_what_does_not_fit(words: tuple[str, ...], what: tuple[str, ...], two: Path) -> None:
    done = ask(two, "compare", "aux@0", *words)
    assert done.code == 2 and has_line(done.document["error"]["what"], *what)


@pytest.mark.slow
def test_replay_and_bundle_repeat_it(two: Path) -> None:
    done = ask(
        two, "bisect", "confidence@0+boxes@0+aux@0", "--ignore", "aux", "--where", "confidence>0.5"
    )
    (finding,) = done.document["findings"]
    assert (done.code, finding["nodes"], done.document["where"]) == (
        1,
        ["split"],
        ["confidence>0.5"],
    ), done
    assert subcut("bundle", finding["case"], "-o", "b.zip", cwd=two).code == 0
    for case in (finding["case"], "b.zip"):
        for off, code in (("boxes@1", 0), ("boxes@0", 1)):
            assert subcut("replay", case, "-c", f"wrong.py:off={off}", cwd=two).code == code, (
                case,
                off,
            )


def test_sentences() -> None:
    assert not OutputChoice().sentences
    both = OutputChoice(("a", "b"), (Where("c", ">", 0.5), Where("d", "<", 1)))
    left_out, masked = both.sentences
    assert has_line(left_out, "left out", "a, b")
    assert has_line(masked, "c>0.5", "d<1")


def test_condition_is_written_as_it_was_read() -> None:
    """Six digits were kept: a case was replayed by another condition than it was found by."""
    for text in ("p>0.123456789", "p>=1", "p<-2.5e-07", "p!=1e+16"):
        assert str(parse_where(text)) == text and parse_where(
            str(parse_where(text))
        ) == parse_where(text)


def test_values_that_are_not_numbers_are_compared(tmp_path: Path) -> None:
    """Below the condition in the reference and NaN in the candidate, it was left out."""
    known, given = (
        write_value("p", np.array([0.1, v], np.float32), tmp_path, f"p{k}")
        for k, v in enumerate((0.2, np.nan))
    )
    found = select_elements([parse_where("p>0.5")], "p", {"p": known}, {"p": given})
    assert found is not None and found.tolist() == [False, True]
