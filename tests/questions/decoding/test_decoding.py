"""A decoder, step by step: the step and the node that go wrong, for faults that are planted in a
step.

Covers `questions.decoding.run_steps`, `questions.decoding.step_search`,
`questions.decoding.inputs`, `questions.decoding.result_folder`, `results.loop` and
`commands.bisect`."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from fixtures import decoders
from subgraph.documents import make_schema, to_json
from subgraph.questions.decoding.result_folder import render_text
from subgraph.results.loop import LoopDocument, LoopFinding, LoopOutcome, LoopSetup, StepSeen
from tests.helpers import text_models
from tests.helpers.facts import has_line
from tests.helpers.run_command import Done, subcut

CACHE = "counter=past_key_values.0.key"


@pytest.fixture
def here(tmp_path: Path) -> Path:
    decoders.write(tmp_path)
    return tmp_path


def looped(folder: Path, model: str, candidate: str, *words: str) -> tuple[Done, dict[str, Any]]:
    """`subcut bisect --loop loop.toml --json`."""
    done = subcut(
        "bisect",
        model,
        "--loop",
        "loop.toml",
        "-c",
        candidate,
        "--repeat",
        "1",
        "--json",
        *words,
        cwd=folder,
    )
    document = json.loads(done.out)
    jsonschema.Draft202012Validator(make_schema(LoopDocument)).validate(document)
    return done, document


def test_errors_that_add_up_are_told() -> None:
    document = LoopDocument(
        exit_code=1,
        report="loop.json",
        found=LoopFinding(
            outcome=LoopOutcome.ACCUMULATES,
            first_wrong=4,
            since=1,
            why="they add up",
            seen=[StepSeen(4, math.inf, "fail")],
        ),
        setup=LoopSetup(
            model="m.onnx",
            candidate="npu",
            reference="ort 1",
            steps=9,
            prompt=2,
            states={"h0": "hn"},
        ),
    )
    jsonschema.Draft202012Validator(make_schema(LoopDocument)).validate(to_json(document))
    shown = render_text(document)
    assert has_line(shown, "4 of 9") and has_line(shown, "add up")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "node", "at"),
    [
        pytest.param("decoder", "layer1.silu", 20, marks=pytest.mark.rare),
        pytest.param("decoder", "layer0.k.rope", 9, marks=pytest.mark.rare),
        ("decoder_int4", "layer0.v", 33),
    ],
)
def test_fault_at_one_token_comes_down_to_its_node(
    model: str, node: str, at: int, here: Path
) -> None:
    done, document = looped(
        here, f"{model}.onnx", f"wrong.py:node={node},at={at},{CACHE}", "-i", "prompt.npy"
    )
    assert (done.code, document["outcome"], document["first_wrong"]) == (1, "step", at - 4)
    (finding,) = document["bisection"]["findings"]
    assert finding["nodes"] == [node] and finding["certified"]
    assert document["walks"] <= 12
    kept = json.loads((here / document["report"]).read_text(encoding="utf-8"))
    assert kept["first_wrong"] == document["first_wrong"]
    again, same = looped(
        here, f"{model}.onnx", f"wrong.py:node={node},at={at},{CACHE}", "-i", "prompt.npy"
    )
    assert (again.code, same["walks"], same["first_wrong"]) == (1, 0, at - 4), "walks are stored"


@pytest.mark.slow
def test_merged_decoder_keeps_what_its_first_step_made_of_the_encoder(here: Path) -> None:
    """`use_cache_branch` is false in the first step only; from then on an empty state means that
    the last one stays."""
    (here / "loop.toml").write_text("steps = 7\n")
    given = ("-i", "input_ids=prompt.npy", "-i", "encoder_hidden_states=encoded.npy")
    done, document = looped(here, "merged.onnx", "ort", *given)
    assert (done.code, document["outcome"], document["steps"]) == (0, "agree", 7)
    cache = "counter=past_key_values.0.decoder.key"
    done, document = looped(
        here, "merged.onnx", f"wrong.py:node=cached.over.softmax,at=9,{cache}", *given
    )
    assert (done.code, document["outcome"], document["first_wrong"]) == (1, "step", 5)
    (finding,) = document["bisection"]["findings"]
    assert finding["inside"]["findings"][0]["nodes"] == ["either/then_branch/cached.over.softmax"]


@pytest.mark.slow
def test_right_candidate_agrees_in_every_step(here: Path) -> None:
    done, document = looped(here, "decoder.onnx", "ort", "-i", "prompt.npy")
    assert (done.code, document["outcome"], document["steps"]) == (0, "agree", 32)
    assert [s["status"] for s in document["seen"]] == ["agree"] * 32


@pytest.mark.slow
def test_step_that_is_off_by_more_than_rounding_is_looked_into(here: Path) -> None:
    """Nobody approximates a MatMul; it was right in all 32 steps, as 5e-4 of the scale is what fast
    kernels may do."""
    done, document = looped(
        here, "decoder.onnx", "wrong.py:node=layer0.v,by=1.0005,at=0,then=on", "-i", "prompt.npy"
    )
    assert (done.code, document["outcome"], document["first_wrong"]) == (1, "step", 0)
    assert document["bisection"]["findings"][0]["nodes"] == ["layer0.v"]
    done, document = looped(
        here,
        *"decoder.onnx wrong.py:node=layer0.softmax,by=1.0005,at=0,then=on -i prompt.npy".split(),
    )
    assert (done.code, document["outcome"]) == (0, "agree")
    assert has_line(document["why"], "approximate", "1 Softmax")


@pytest.mark.slow
def test_the_time_may_end_a_walk(here: Path) -> None:
    (here / "loop.toml").write_text("steps = 500")
    words = "bisect decoder.onnx --loop loop.toml -c ort -i prompt.npy --max-time 0.5s".split()
    done = subcut(*words, cwd=here)
    assert done.code == 5 and has_line(done.err, "time")


FLAKY = '''
"""onnxruntime; in the first process that gets so far, the tenth step is wrong."""
import onnxruntime
from pathlib import Path

def load(model, options):
    session = onnxruntime.InferenceSession(str(model))
    names = [o.name for o in session.get_outputs()]

    def run(feeds):
        made = dict(zip(names, session.run(names, dict(feeds))))
        past = feeds.get("past_key_values.0.key")
        mark = Path(__file__).with_name("was_here")
        if past is not None and past.shape[2] == 14 and not mark.exists():
            mark.touch()
            made["logits"] = made["logits"] * 2
        return made

    return run
'''


@pytest.mark.slow
def test_walk_that_is_right_when_it_is_made_again_is_flaky(here: Path) -> None:
    (here / "flaky.py").write_text(FLAKY)
    done, document = looped(here, "decoder.onnx", "flaky.py", "-i", "prompt.npy")
    assert (done.code, document["outcome"], document["first_wrong"]) == (1, "flaky", 10)


CHAOS = (
    "g (float[1,8] x, float[1,8] state) => (float[1,8] y, float[1,8] stateN) { one ="
    " Constant<value_float=1.0>() r = Constant<value_float=3.9>() a = Sub(one, state) b ="
    " Mul(state, a) stateN = Mul(b, r) y = Add(stateN, x) }"
)
SAME = """
import numpy as np

def load(model, options):
    def run(feeds):
        s, r = feeds["state"], np.float32(3.9)
        return {"y": r * s - r * s * s + feeds["x"], "stateN": r * s - r * s * s}
    return run
"""


@pytest.mark.slow
def test_loop_that_makes_rounding_grow_is_no_fault_of_the_candidate(tmp_path: Path) -> None:
    text_models.load(tmp_path, CHAOS)
    np.save(tmp_path / "x.npy", np.zeros((1, 8 * 60), np.float32))
    np.save(
        tmp_path / "s.npy", np.random.default_rng(0).uniform(0.2, 0.8, (1, 8)).astype(np.float32)
    )
    (tmp_path / "same.py").write_text(SAME)
    (tmp_path / "loop.toml").write_text("[slices]\nx = 8\n")
    done, document = looped(tmp_path, "model.onnx", "same.py", "-i", "x=x.npy", "-i", "state=s.npy")
    assert (done.code, document["outcome"]) == (5, "unresolved")
    assert has_line(document["why"], "rounding", "reference")
