"""Each list names what stays in float, in the form that its tool takes."""

from __future__ import annotations

import json

import pytest

from subgraph import plugins
from subgraph.questions.planning.lists import Kept

KEPT = Kept(["conv/a", "b:0"], ["t1", "t2"], ["logits"])
NAMES = plugins.list_own_names("plan-lists")


@pytest.mark.parametrize("name", NAMES)
def test_each_names_what_is_kept(name: str) -> None:
    module = plugins.load("plan-lists", name)
    text = module.render(KEPT)
    assert text.endswith("\n") and ("conv/a" in text or "t1" in text)
    empty = module.render(Kept([], [], []))
    assert "conv/a" not in empty and "t1" not in empty
    if module.FILE.endswith(".json"):
        assert json.loads(text) and isinstance(json.loads(empty), dict)
    assert ":" in plugins.read_help("plan-lists", name)


def test_lists_have_distinct_files() -> None:
    files = [plugins.load("plan-lists", name).FILE for name in NAMES]
    assert len(set(files)) == len(files)


def test_trtexec_list_names_layers() -> None:
    text = plugins.load("plan-lists", "tensorrt").render(KEPT)
    assert "--layerPrecisions=conv/a:fp32,b:0:fp32\n" in text and text.startswith(
        "--precisionConstraints=obey\n"
    )
