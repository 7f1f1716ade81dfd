"""The headline and the next commands of every JSON document.

Covers `commands.table`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.run_command import subcut


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo")
    subcut("demo", ".", cwd=folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "following"),
    [
        ("backends", None),
        ("cut model.onnx --start stem/pad --end stem/pool", "replay"),
        ("demo ../another", "bisect"),
        ("inspect model.onnx", "lint"),
        ("known", None),
        ("lint --rules", None),
        ("lint model.onnx", None),
        ("lint model.onnx --only ceil-mod", "lint"),
        ("remove model.onnx head/softmax -o shorter.onnx", "inspect"),
        ("compare model.onnx -c wrong.py --at head/softmax -o out", "bisect"),
        ("bisect model.onnx -c wrong.py --max-trials 2 -o stopped", "bisect"),
    ],
)
def test_document_has_a_headline_and_next_commands(
    demo: Path, words: str, following: str | None
) -> None:
    document = subcut(*words.split(), "--json", cwd=demo).document
    assert document.get("says") or document["error"]["what"]
    commands = [command["argv"][1] for command in document["next"]]
    assert commands[:1] == [following] * bool(following)


def test_command_that_continues_omits_the_limits_alone(demo: Path) -> None:
    candidate = "wrong.py:note=see --max-trials 9 it's"
    limits = ["--max-trials=2", "--max-time", "90", "--fresh"]
    done = subcut("bisect", "model.onnx", "-c", candidate, *limits, "--json", cwd=demo)
    assert done.document["next"][0]["argv"] == ["subcut", "bisect", "model.onnx", "-c", candidate]


@pytest.mark.slow
def test_next_commands_keep_the_options_that_both_commands_have(demo: Path) -> None:
    words = "compare model.onnx -c wrong.py --at head/softmax -q --jobs 1 --json"
    (command,) = subcut(*words.split(), cwd=demo).document["next"]
    assert command["argv"] == "subcut bisect model.onnx -c wrong.py --jobs 1".split()
