"""A list is run with its tool, and widened until what the tool makes is good enough. Covers
`questions.planning.float16_main`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from subgraph.questions.planning import quantize_main
from tests.helpers import planned_network
from tests.helpers.facts import has_line
from tests.helpers.planned_network import EXACT, SAMPLES
from tests.helpers.run_command import subcut

CONVERTER = """
import numpy as np
from onnx import numpy_helper

def convert_float_to_float16(model, keep_io_types, node_block_list):
    assert keep_io_types
    for weight in model.graph.initializer:
        if not any(weight.name in node.input for node in model.graph.node if node.name in node_block_list):
            value = numpy_helper.to_array(weight)
            weight.CopyFrom(numpy_helper.from_array(np.round(value * 4) / 4, weight.name))
    return model
"""  # noqa: E501


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A network and samples, seeded."""
    planned_network.save(tmp_path)
    return tmp_path


def plan(here: Path, *words: str) -> dict[str, Any]:
    document: dict[str, Any] = subcut(
        *"plan m.onnx -i samples -c".split(), EXACT, "--score", "sqnr", *words, "--json", cwd=here
    ).document
    return document


def decibels(here: Path, other: Path) -> float:
    """What another model is worth, by onnxruntime itself."""
    options = ort.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")
    sessions = [ort.InferenceSession(str(file), options) for file in (here / "m.onnx", other)]
    feeds = [{"x": np.load(here / "samples" / f"s{k}.npy")} for k in range(SAMPLES)]
    right, given = (
        np.concatenate([s.run(None, feed)[0] for feed in feeds]).astype(float) for s in sessions
    )
    return float(10 * np.log10((right**2).sum() / ((right - given) ** 2).sum()))


@pytest.mark.slow
def test_list_for_onnxruntime_holds_in_onnxruntime(here: Path) -> None:
    """Of the kept nodes alone it does not: their inputs are quantized after their producers."""
    document = plan(here, "--to", "int8", "--at-least", "40")
    (tried,) = document["tried_lists"]
    kept = [place["name"] for place in document["kept"]]
    listed = here / document["lists"]["onnxruntime"]
    names = json.loads(listed.read_text())["nodes_to_exclude"]
    assert (tried["tool"], tried["accepted"], tried["added"]) == (
        "onnxruntime",
        True,
        len(names) - len(kept),
    )
    assert set(names) > set(kept)
    files = [{"x": str(here / "samples" / f"s{k}.npy")} for k in range(SAMPLES)]
    (here / "files.json").write_text(json.dumps(files))
    (here / "narrow.json").write_text(json.dumps({"nodes_to_exclude": kept}))
    found = {}
    for file in (here / "narrow.json", listed):
        made = here / f"{file.stem}-made.onnx"
        quantize_main.main(
            str(here / "m.onnx"), str(made), "int8", str(here / "files.json"), str(file)
        )
        found[file.stem] = decibels(here, made)
    assert found["narrow"] < 40 <= found["onnxruntime"] == pytest.approx(tried["score"], abs=0.01)


@pytest.mark.slow
def test_list_that_no_width_cures_is_refused_and_the_plan_s_own(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tool is optional: this one rounds the weights of all nodes that are not named, to
    quarters."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "tools"))
    monkeypatch.syspath_prepend(tmp_path / "tools")
    package = tmp_path / "tools" / "onnxconverter_common"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "float16.py").write_text(CONVERTER)
    (tried,) = plan(here, "--to", "fp16", "--at-least", "60")["tried_lists"]
    assert (tried["tool"], tried["accepted"], tried["added"]) == ("onnxconverter-common", False, 0)
    text = subcut(
        *"plan m.onnx -i samples --to fp16 --score sqnr --at-least 60".split(), cwd=here
    ).out
    assert has_line(text, "onnxconverter-common", "list") and has_line(text, "not tried", "amct")


def test_tool_that_fails_is_told_with_its_words(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "tools"))
    monkeypatch.syspath_prepend(tmp_path / "tools")
    package = tmp_path / "tools" / "onnxconverter_common"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "float16.py").write_text("raise RuntimeError('no such protobuf')\n")
    (tried,) = plan(here, "--to", "fp16", "--at-least", "60")["tried_lists"]
    assert not tried["accepted"] and has_line(tried["why"], "protobuf")
