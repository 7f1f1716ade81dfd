"""What the inputs and outputs of a model are for: by their names and types, or as the user says.

Covers `questions.decoding.decoder`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from fixtures import decoders
from subgraph.errors import InputError, UnknownName, UsageError
from subgraph.graph.graph import Graph, load
from subgraph.questions.decoding.decoder import (
    LoopFile,
    Slicing,
    find_first_shape,
    read_loop_file,
    resolve_decoder,
    strip_time,
)
from subgraph.questions.decoding.inputs import read_inputs as read_inputs
from subgraph.runtime.inputs import Feeding
from tests.helpers import text_models
from tests.helpers.facts import has_line
from tests.helpers.refusals import raises


def graph_of(folder: Path, model: onnx.ModelProto) -> Graph:
    return text_models.read(folder, model)


def test_exported_decoder_needs_no_words(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, decoders.decoder())
    found = resolve_decoder(graph, LoopFile(), [])
    assert (found.tokens, found.logits, found.attention_mask) == (
        "input_ids",
        "logits",
        "attention_mask",
    )
    assert (
        found.position_ids == "position_ids"
        and found.constants == []
        and found.results == ["logits"]
    )
    assert found.states == {
        f"past_key_values.{k}.{kind}": f"present.{k}.{kind}"
        for k in (0, 1)
        for kind in ("key", "value")
    }
    assert find_first_shape(found, "past_key_values.0.key", 3) == [3, 2, 0, 8]
    assert found.takes_whole_prompt


def test_captioner_has_a_constant_and_one_token_a_step(tmp_path: Path) -> None:
    found = resolve_decoder(graph_of(tmp_path, decoders.captioner()), LoopFile(), ["image"])
    assert (found.tokens, found.constants, found.states) == (
        "token",
        ["image"],
        {"h0": "hn", "c0": "cn"},
    )
    assert find_first_shape(found, "h0", 2) == [2, 32] and not found.takes_whole_prompt


def test_role_of_each_input_is_required(tmp_path: Path) -> None:
    with raises(UsageError, "loop.unclear-inputs", "image"):
        resolve_decoder(graph_of(tmp_path, decoders.captioner()), LoopFile(), [])


def test_generated_values_fit_the_input(tmp_path: Path) -> None:
    """A number is not text, and floats are not tokens."""
    text = (
        "g (float[1,n] x, int64 sr, float[1,2] h0) => (float[1,n] y, float[1,2] hn) { y = Neg(x) hn"
        " = Neg(h0) }"
    )
    graph = text_models.load(tmp_path, text)
    with raises(UsageError, "loop.unclear-inputs", "x") as e:
        resolve_decoder(graph, LoopFile(constants={"sr": 1}), [])
    assert (
        e.value.hint is not None
        and "tokens" not in e.value.hint
        and "[slices] x = 512" in e.value.hint
    )
    with raises(UsageError, "loop.unclear-inputs", "sr") as e:
        resolve_decoder(graph, LoopFile(slices={"x": Slicing(2, 2)}), [])
    assert has_line(e.value.hint, "loop.toml", "[constants] sr = 1", "-i sr=FILE")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("past_key_values.11.value", "present.11.value"),
        ("past.3.key", "present.3.key"),
        ("h0", "hn"),
        ("c0", "cn"),
        ("state", "stateN"),
        ("conv_cache_in", "conv_cache_out"),
        ("prev_h", "next_h"),
        ("input_c", "output_c"),
        ("past_key_self_0", "present_key_self_0"),
        ("cache.0", "new_cache.0"),
    ],
)
def test_names_of_a_state_before_and_after_a_step(before: str, after: str) -> None:
    assert strip_time(before) == strip_time(after)


@pytest.mark.parametrize(
    ("one", "other"), [("past.1.key", "present.2.key"), ("h0", "cn"), ("key_in", "value_out")]
)
def test_names_of_two_states(one: str, other: str) -> None:
    assert strip_time(one) != strip_time(other)


def test_the_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "loop.toml"
    path.write_text(
        'tokens = "ids"\nsteps = 5\neos = 2\n[states]\nh0 = "hn"\n[slices]\nx = 512\ny = { size ='
        " 6, step = 4 }\n"
    )
    assert read_loop_file(path) == LoopFile(
        tokens="ids",
        steps=5,
        eos=(2,),
        states={"h0": "hn"},
        slices={"x": Slicing(512, 512), "y": Slicing(6, 4)},
    )
    path.write_text("")
    assert read_loop_file(path) == LoopFile()


def test_names_that_the_model_has_not(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, decoders.captioner())
    with raises(UnknownName, "loop.unknown-name", "hm"):
        resolve_decoder(graph, LoopFile(states={"h0": "hm"}), ["image"])
    with raises(UnknownName, "loop.unknown-name", "tokem"):
        resolve_decoder(graph, LoopFile(tokens="tokem"), ["image"])


def test_step_is_fed_the_states_of_the_last(tmp_path: Path) -> None:
    decoders.write(tmp_path)
    mask = np.array([[0, 1, 1], [1, 1, 1]])
    np.save(tmp_path / "p.npy", np.array([[9, 4, 5], [6, 7, 8]]))
    np.save(tmp_path / "m.npy", mask)
    graph = load(tmp_path / "decoder.onnx")
    file = LoopFile(steps=4)
    words = (str(tmp_path / "p.npy"), f"attention_mask={tmp_path / 'm.npy'}")
    found = resolve_decoder(graph, file, ["attention_mask"])
    given = read_inputs(found, file, Feeding(words))
    assert (given.batch, given.steps) == (2, 4)
    tokens: list[Any] = [given.find_prompt(0), np.array([[1], [2]])]
    assert given.find_prompt(1) is None
    first = given.arrays(0, tokens)
    second = given.arrays(1, tokens)
    assert first["position_ids"].tolist() == [[0, 0, 1], [0, 1, 2]]
    assert second["position_ids"].tolist() == [[2], [3]]
    assert second["attention_mask"].tolist() == [[0, 1, 1, 1], [1, 1, 1, 1]]
    assert second["input_ids"].tolist() == [[1], [2]]


def test_without_a_prompt_there_is_nothing_to_do(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, decoders.decoder())
    with raises(InputError, "loop.input-missing", "input_ids"):
        read_inputs(resolve_decoder(graph, LoopFile(), []), LoopFile(), Feeding())


def test_slices_overlap_as_the_file_says(tmp_path: Path) -> None:
    text = (
        "g (float[1,4] x, float[1,2] state) => (float[1,4] y, float[1,2] stateN) { y = Neg(x)"
        " stateN = Neg(state) }"
    )
    graph = text_models.load(tmp_path, text)
    file = LoopFile(slices={"x": Slicing(4, 3)})
    np.save(tmp_path / "x.npy", np.arange(11, dtype=np.float32)[None])
    given = read_inputs(resolve_decoder(graph, file, []), file, Feeding((str(tmp_path / "x.npy"),)))
    assert given.steps == 3
    assert [given.arrays(k, [])["x"].tolist() for k in (0, 2)] == [[[0, 1, 2, 3]], [[6, 7, 8, 9]]]


@pytest.mark.parametrize(
    ("extra", "mask"), [("", [0, 0, 1, 1]), ("int64[n] cache_position, ", [1, 1, 0, 0])]
)
def test_mask_of_fixed_width(extra: str, mask: list[int], tmp_path: Path) -> None:
    """A window ends with what came last; a cache that is written at a position begins with what
    came first."""
    text = (
        f"g (int64[1,n] input_ids, {extra}int64[1,4] attention_mask, float[1,2] past)"
        " => (float[1,n] logits, float[1,2] present)"
        " { logits = Cast<to=1>(input_ids) present = Neg(past) m = Identity(attention_mask) }"
    )
    graph = text_models.load(tmp_path, text)
    np.save(tmp_path / "p.npy", np.array([[5, 6]]))
    given = read_inputs(
        resolve_decoder(graph, LoopFile(), []), LoopFile(), Feeding((str(tmp_path / "p.npy"),))
    )
    assert given.arrays(0, [np.array([[5, 6]])])["attention_mask"].tolist() == [mask]
