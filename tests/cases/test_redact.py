"""What leaves is known to be harmless: our own words, numbers, names in the model. The rest only with consent."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from subgraph.cases.redact import LEFT_OUT, REMOVED, Redactor, environment, joined, own_words, this_machine, variables
from subgraph.documents import to_json

PRIVATE = Redactor(
    homes=("/home/alice",),
    users=("alice",),
    hosts=("wonderland",),
    secrets=("tokenvalue1",),
    names=frozenset({"/usr/a", "/pool/MaxPool", "Conv", "m.onnx", "inputs/x.npy"}),
)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "max_abs 4.7e+00 beyond 10 × noise 5.2e-07",
        "/pool/MaxPool: all 4096 elements equal",
        "/usr/a (Conv) agrees alone",
        "1x3x224x224 where 1x4 was expected",
        "the inputs are random values, seed 0; real ones show more",
        "right with opt=disable: the candidate's optimiser is to blame",
        "nan",
    ],
)
def test_our_own_words_leave(text: str) -> None:
    assert PRIVATE.text(text) == text


LEAKS = [
    "/home/alice", "~/x/y.npy", "../../other/y.npy", r"C:\Users\bob\m.onnx gone", "ssh bob@pc.lan", "host vm",
    "--token=abc", "HF_TOKEN=abc", "https://bob:hunter2@h.x/p?sig=abcdef1", "Authorization: Basic Ym9iOmh1bnRlcjI=",
    "Authorization: Bearer abcdefghij", "postgres://u:pw@db/x", "10.1.2.3", "bob@corp.example", "c2VjcmV0VG9rZW4",
    "ghp_0123456789abcdefghij", "said tokenvalue1", "as alice", "on wonderland", "hunter2", "SECRETTOKENVALUE12345",
    "0123456789",
]  # fmt: skip


@pytest.mark.parametrize("text", LEAKS)
def test_a_text_with_any_other_word_stays(text: str) -> None:
    assert PRIVATE.text(text) == PRIVATE.text(f"the candidate failed: {text}") == LEFT_OUT


@pytest.mark.parametrize(
    "text", ["/home/alice/x of alice on wonderland", "said tokenvalue1", "ghp_0123456789abcdefghij"]
)
def test_with_consent_what_is_known_to_be_private_stays_even_so(text: str) -> None:
    told = replace(PRIVATE, free_text=True).text(f"odd words: {text}")
    assert told.startswith("odd words: ")
    assert not any(word in told for word in ("alice", "wonderland", "tokenvalue1", "ghp_"))


@pytest.mark.parametrize(
    ("line", "cleared"),
    [
        ("cut m.onnx -s /pool/MaxPool -i x=/home/alice/a.npy", "cut m.onnx -s /pool/MaxPool -i x=REMOVED"),
        ("python /home/bob/tools/run.py --fast {model} -n 4", "python run.py --fast {model} -n 4"),
        ("run --token abc --in={inputs} {model}", "run --token REMOVED --in={inputs} {model}"),
        ("run --token=test --x=/home/bob/a", "run --token=REMOVED --x=REMOVED"),
        ("curl -u bob:hunter2 https://h.x/?sig=abc -phunter2", "REMOVED -u REMOVED REMOVED -phunter"),
        (
            "subcut bisect m.onnx -c 'cmd:./go.sh hunter2 {model}'",
            "subcut bisect m.onnx -c 'cmd:go.sh REMOVED {model}'",
        ),
        ("broken 'quote /home/alice/x", REMOVED),
    ],
)
def test_of_a_command_the_known_words_leave(line: str, cleared: str) -> None:
    if "-phunter" in cleared:
        assert "hunter2" not in PRIVATE.command(line) and "bob" not in PRIVATE.command(line)
    else:
        assert PRIVATE.command(line) == cleared


@pytest.mark.parametrize(
    ("word", "cleared"),
    [
        ("postgres://admin:S3cret@db.corp.example/runs?sslmode=require", REMOVED),
        ("https://bob:pw@npu7.corp/run?job=5&key=ZZ", REMOVED),
        ("--url=https://bob:pw@h.example/?t=1", "--url=REMOVED"),
        ("URL=https://h.example/?t=1", "URL=REMOVED"),
        ("adb:secret@host=1", REMOVED),
        ("user:password=1", REMOVED),
        ("mqtt:topic/acme/secret=1,x=2", REMOVED),
        ("bob@h.example:run=1", REMOVED),
        ("ort:opt=basic,threads=2", "ort:opt=basic,threads=2"),
        ("ort:secret@host=1,S3cret,url=https://bob:pw@h.example/?t=1", "ort:REMOVED=REMOVED,REMOVED,url=REMOVED"),
        ("litert:convert=postgres://u:pw@db/x?a=b", "litert:convert=REMOVED"),
        ("/home/bob/fault.py:op=Conv,key=https://h/?a=b", "fault.py:op=Conv,key=REMOVED"),
        ("cmd:./go.sh postgres://u:pw@db/x?a=b", "cmd:go.sh REMOVED"),
        ("83749201", REMOVED),
        ("--pin=83749201", "--pin=REMOVED"),
        ("-83749201", REMOVED),
        ("12345x2", REMOVED),
        ("ort:threads=83749201", "ort:threads=REMOVED"),
        ("8374", "8374"),
        ("0.6000000238418579", "0.6000000238418579"),
        ("1x3x224x224", "1x3x224x224"),
        ("/usr/83749201", "/usr/83749201"),  # of the model
        ("--in={inputs}", "--in={inputs}"),
    ],
)
def test_of_words_with_colons_and_digits_only_ours_leave(word: str, cleared: str) -> None:
    """As a word, behind an option, in a candidate's command, and as a value of its options."""
    redactor = replace(PRIVATE, names=PRIVATE.names | {"/usr/83749201"})
    shown = cleared if cleared == joined([cleared]) else shlex.quote(cleared)
    assert redactor.command(shlex.join(["python", "--with", word])) == f"python --with {shown}"
    assert redactor.spec(f"cmd:python {shlex.quote(word)}") == f"cmd:python {shown}"
    assert redactor.option("url", word) == cleared


def test_of_options_that_are_no_texts_secrets_and_long_numbers_stay() -> None:
    options = {"pin": 83749201, "password": 12, "threads": 2, "fast": True, "rate": 0.5, "hosts": ["10.1.2.3"]}
    kept = PRIVATE.document({"identity": {"options": options}})["identity"]["options"]
    assert kept == {"pin": REMOVED, "password": REMOVED, "threads": 2, "fast": True, "rate": 0.5, "hosts": REMOVED}


@pytest.mark.parametrize(
    ("spec", "cleared"),
    [
        ("ort:opt=basic,threads=2", "ort:opt=basic,threads=2"),
        ("/home/alice/mine.py:api_key=test,threads=2,url=https://h.x", "mine.py:api_key=REMOVED,threads=2,url=REMOVED"),
        ("cmd:ssh alice@10.1.2.3 ./go.sh {model}", "cmd:ssh REMOVED go.sh {model}"),
        ("torch:/home/alice/module.py:build", "torch:module.py:build"),
        ("npu", "npu"),
        ("npu-of-alice", REMOVED),
    ],
)
def test_of_a_candidate_the_known_settings_leave(spec: str, cleared: str) -> None:
    assert PRIVATE.spec(spec) == cleared


@given(st.text(st.sampled_from("abc/.~ =:'-_\n\\@é"), max_size=60))
def test_clearing_twice_changes_nothing_more(text: str) -> None:
    for clear in (PRIVATE.text, PRIVATE.command):
        assert clear(clear(text)) == clear(text)


def test_of_a_document_the_known_fields_leave() -> None:
    document = {
        "nodes": ["/usr/alice/x"],
        "why": "RuntimeError: no route to 10.1.2.3",
        "process": {"exit_code": 3, "signal": "SIGSEGV", "stderr": ["Basic Ym9i", "all agree"]},
        "candidate": {"name": "/home/alice/b.py", "options": {"password": "x", "threads": 2}},
        "weights_sha256": "0" * 64,
        "dtype": "float32",
        "/home/bob": 1,
    }
    assert PRIVATE.document(document) == {
        "nodes": ["/usr/alice/x"],
        "why": LEFT_OUT,
        "process": {"exit_code": 3, "signal": "SIGSEGV", "stderr": [LEFT_OUT]},
        "candidate": {"name": "b.py", "options": {"password": REMOVED, "threads": 2}},
        "weights_sha256": "0" * 64,
        "dtype": "float32",
        REMOVED: 1,
    }


def test_our_own_words_are_those_of_texts_not_of_documentation() -> None:
    assert {"beyond", "optimiser", "agrees", "float32"} < own_words()
    assert not {"vm", "hunter2", "alice", "Authorization:", "RuntimeError"} & own_words()


def test_the_environment_is_an_allow_list(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"OMP_NUM_THREADS": "3", "KMP_AFFINITY": "granularity=fine,compact", "ORT_TOKEN": "abc", "KMP_X": "/home/a"}
    assert set(variables(told | {"PATH": "/bin", "AWS_SECRET": "x"})) == {"OMP_NUM_THREADS", "KMP_AFFINITY"}
    ort = {"ORT_TENSORRT_FP16_ENABLE": "1", "ORT_TENSORRT_CACHE_PATH": "acme", "ORT_ACME_HOST": "npu7", "ORT_X": "1"}
    assert variables(ort) == {"ORT_TENSORRT_FP16_ENABLE": "1"}
    monkeypatch.setenv("GITHUB_TOKEN", "very-secret-1")
    assert "very-secret-1" not in json.dumps(to_json(environment())) and "very-secret-1" in this_machine().secrets
