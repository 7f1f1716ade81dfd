"""Paths, names and secrets leave neither texts, commands nor documents; names of nodes and tensors stay."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from subgraph.cases.redact import Redactor, environment, this_machine, variables
from subgraph.documents import to_json

PRIVATE = Redactor(
    homes=("/home/alice",),
    users=("alice",),
    hosts=("wonderland",),
    secrets=("tokenvalue1",),
    names=frozenset({"/usr/a"}),
)


@pytest.mark.parametrize(
    ("text", "cleared"),
    [
        ("/home/alice", "~"),
        ("/home/alice/x/y.npy", "y.npy"),
        ("~/x/y.npy", "y.npy"),
        ("x=/home/alice/x/y.npy,/tmp/z.bin", "x=y.npy,z.bin"),
        ("../../other/y.npy", "y.npy"),
        ("/pool/MaxPool and /usr/a", "/pool/MaxPool and /usr/a"),
        ("/usr/lib/x.so: No such file", "x.so: No such file"),
        (r"C:\Users\alice\m.onnx gone", "m.onnx gone"),
        ("ssh alice@wonderland.lan ./run.sh", "ssh USER@HOST.lan ./run.sh"),
        ("--token=abc -x", "--token=REMOVED -x"),
        ("--api-key abc", "--api-key REMOVED"),
        ("HF_TOKEN=abc run", "HF_TOKEN=REMOVED run"),
        ("-i tokens=x.npy --max-tokens 5 --tokenizer t", "-i tokens=x.npy --max-tokens 5 --tokenizer t"),
        ("https://bob:pw@host.org/x", "https://REMOVED@host.org/x"),
        ("https://host.org/a?token=abc&b=1", "https://host.org/a?token=REMOVED&b=1"),
        ("Authorization: Bearer abcdefghij", "Authorization: Bearer REMOVED"),
        ("said tokenvalue1", "said REMOVED"),
        ("ghp_0123456789abcdefghij", "REMOVED"),
        ("max_abs 1e-3 of malice 1/2", "max_abs 1e-3 of malice 1/2"),
    ],
)
def test_texts_are_cleared(text: str, cleared: str) -> None:
    assert PRIVATE.text(text) == cleared


@pytest.mark.parametrize(
    ("line", "cleared"),
    [
        ("subcut cut '/home/alice/my dir/m.onnx' -i 'x=/home/alice/a b.npy'", "subcut cut m.onnx -i 'x=a b.npy'"),
        ("run --token abc {model}", "run --token REMOVED {model}"),
        ("cut -s /pool/MaxPool", "cut -s /pool/MaxPool"),
        ("broken 'quote /home/alice/x", "broken 'quote x"),
    ],
)
def test_commands_are_cleared(line: str, cleared: str) -> None:
    assert PRIVATE.command(line) == cleared


@given(st.text(st.sampled_from("abc/.~ =:'-_\n\\@é"), max_size=60))
def test_clearing_twice_changes_nothing_more(text: str) -> None:
    once = PRIVATE.text(text)
    assert PRIVATE.text(PRIVATE.text(once)) == PRIVATE.text(once)
    assert "/home/alice/" not in PRIVATE.text(f"{text} /home/alice/{text}")


def test_names_in_a_document_stay() -> None:
    document = {"nodes": ["/usr/alice/x"], "why": "/usr/alice/x is off", "candidate": {"name": "/home/alice/b.py"}}
    found = PRIVATE.document(document)
    assert found == {"nodes": ["/usr/alice/x"], "why": "x is off", "candidate": {"name": "b.py"}}


def test_the_environment_is_an_allow_list(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"OMP_NUM_THREADS": "3", "KMP_AFFINITY": "granularity=fine,compact", "ORT_TOKEN": "abc", "KMP_X": "/home/a"}
    assert set(variables(told | {"PATH": "/bin", "AWS_SECRET": "x"})) == {"OMP_NUM_THREADS", "KMP_AFFINITY"}
    monkeypatch.setenv("GITHUB_TOKEN", "very-secret-1")
    assert "very-secret-1" not in json.dumps(to_json(environment())) and "very-secret-1" in this_machine().secrets
