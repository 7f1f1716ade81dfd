"""What leaves is known by its place to be harmless: names, numbers, words of ours. The rest only
with consent."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from importlib import import_module
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from subgraph import results
from subgraph.cases.redact import ALL, LEFT_OUT, REMOVED, Redactor, list_leaving_keys, make_redactor
from subgraph.documents import KEY

PRIVATE = Redactor(
    homes=("/home/alice",),
    users=("alice",),
    hosts=("wonderland",),
    secrets=("tokenvalue1",),
    names=frozenset({"/usr/a", "/pool/MaxPool", "Conv", "m.onnx", "inputs/x.npy"}),
)
JUDGED = "/pool/MaxPool: max error 0.69: 35 % of the largest value (2.0); limit 0.2 %"
LEAKS = [
    "/home/alice",
    "~/x/y.npy",
    "../../other/y.npy",
    r"C:\Users\bob\m.onnx gone",
    "ssh bob@pc.lan",
    "host vm",
    "--token=abc",
    "HF_TOKEN=abc",
    "https://bob:hunter2@h.x/p?sig=abcdef1",
    "Authorization: Basic Ym9iOmh1bnRlcjI=",
    "Authorization: Bearer abcdefghij",
    *(
        "postgres://u:pw@db/x 10.1.2.3 bob@corp.example c2VjcmV0VG9rZW4 ghp_0123456789abcdefghij"
    ).split(),
    "said tokenvalue1",
    "as alice",
    "on wonderland",
    "hunter2",
    "SECRETTOKENVALUE12345",
    "0123456789",
]


@pytest.mark.parametrize("text", LEAKS)
@pytest.mark.parametrize(
    "field", ["why", "notes", "stderr", "says", "changed", "from", "asked", "a_field_of_tomorrow"]
)
def test_free_text_stays_here(text: str, field: str) -> None:
    """Whatever its words are, and also of a field that nobody has listed."""
    document = PRIVATE.document({field: text, "inner": [{field: [text, "all agree"]}]})
    assert document == {field: LEFT_OUT, "inner": [{field: []}]}
    assert field in PRIVATE.left


@pytest.mark.parametrize(
    "text", ["/home/alice/x of alice on wonderland", "said tokenvalue1", "ghp_0123456789abcdefghij"]
)
@pytest.mark.parametrize("keep", ["why", ALL])
def test_with_consent_what_is_known_to_be_private_stays_even_so(text: str, keep: str) -> None:
    redactor = replace(PRIVATE, keep=frozenset([keep]), kept=set())
    told = redactor.document({"why": f"odd words: {text}"})["why"]
    assert told.startswith("odd words: ")
    assert not any(word in told for word in ("alice", "wonderland", "tokenvalue1", "ghp_"))
    assert redactor.kept == {"why"}
    assert (redactor.text("x", "notes") == LEFT_OUT) == (keep == "why")


def test_the_sentence_of_a_criterion_leaves_without_what_is_private() -> None:
    wrong = {"status": "fail", "signature": "mismatch", "label": "fail", "why": JUDGED}
    equal = "all 4096 elements are equal"
    right = {"status": "agree", "signature": None, "label": "agrees", "why": equal}
    crash = wrong | {"signature": "crash", "label": "no route", "why": "no route to 10.1.2.3"}
    absent = "the candidate returned no such output; it returned acme_npu7"
    missing = {"status": "fail", "signature": "missing", "why": absent}
    assert PRIVATE.document([wrong, right]) == [wrong, right]
    assert PRIVATE.document(crash) == {**crash, "label": LEFT_OUT, "why": LEFT_OUT}
    assert PRIVATE.document(missing) == {**missing, "why": LEFT_OUT}
    assert PRIVATE.document({**right, "why": "as alice says"})["why"] == "as USER says"
    assert PRIVATE.document({"criterion": "/home/bob/mine.py"}) == {"criterion": "mine.py"}


@pytest.mark.parametrize(
    ("line", "cleared"),
    [
        ("subcut cut m.onnx -i x=/home/alice/a.npy", "subcut cut m.onnx -i x=a.npy"),
        ("subcut bisect -c 'cmd:./go.sh {model}'", "subcut bisect -c 'cmd:./go.sh {model}'"),
        ("/opt/tools/run.sh {model} -n 4", "run.sh {model} -n 4"),
        ("python /home/bob/run.py {model}", "python run.py {model}"),
        ("python --in=/home/bob/run.py", "python --in=run.py"),
        ("broken 'quote", REMOVED),
        ("run --token abc --in={inputs}", "run --token REMOVED --in={inputs}"),
        (
            "run --password 'Tr0ub4dor&3' --pat z A_KEY=q",
            "run --password REMOVED --pat REMOVED A_KEY=REMOVED",
        ),
        ("sshpass -p hunter2 x", "sshpass -p REMOVED x"),
        ("curl -H 'Authorization: Bearer abc'", "curl -H REMOVED"),
        ("adb --host 10.1.2.3:5555", "adb --host HOST:5555"),
        ("x --lib=/srv/acme/x.so --max-tokens 7", "x --lib=x.so --max-tokens 7"),
        ("run --my-api-key=abc,x", "run --my-api-key=REMOVED"),
        ("env HF_TOKEN=abc ./run.sh", "env HF_TOKEN=REMOVED ./run.sh"),
        ("curl https://h.x/?sig=abc -o x", "curl 'REMOVED' -o REMOVED"),
        ("ssh alice@pc.lan ls", "ssh REMOVED ls"),
        ("ssh wonderland tokenvalue1", "ssh HOST REMOVED"),
        ("scp ghp_0123456789abcdefghij as alice", "scp REMOVED as USER"),
        ("", ""),
    ],
)
def test_command_leaves_without_what_is_private(line: str, cleared: str) -> None:
    assert PRIVATE.command(line) == cleared


@pytest.mark.parametrize(
    ("spec", "cleared"),
    [
        ("ort:opt=basic", "ort:opt=basic"),
        ("tools/mine.py:key=v", "tools/mine.py:key=v"),
        ("/home/alice/b.py:op=Conv,api_key=x", "b.py:op=Conv,api_key=REMOVED"),
        ("cmd:/opt/tools/run.sh {model} {outputs}", "cmd:run.sh {model} {outputs}"),
        ("wonderland-npu", "HOST-npu"),
    ],
)
def test_candidate_leaves_without_what_is_private(spec: str, cleared: str) -> None:
    assert PRIVATE.redact_spec(spec) == cleared


@given(st.text(st.sampled_from("abc/.~ =:'-_\n\\@é"), max_size=60))
def test_clearing_twice_changes_nothing_more(text: str) -> None:
    for clear in (lambda t: PRIVATE.text(t, "why"), PRIVATE.command):
        assert clear(clear(text)) == clear(text)


def test_known_fields_of_a_document_leave() -> None:
    document = {
        "nodes": ["/usr/alice/x"],
        "why": "RuntimeError: no route to 10.1.2.3",
        "process": {"exit_code": 3, "signal": "SIGSEGV", "stderr": ["Basic Ym9i", "all agree"]},
        "candidate": {"name": "/home/alice/b.py", "options": {"password": "x", "threads": 2}},
        "samples": [{"label": "cat.jpg", "fed": [{"name": "x", "from": "/home/alice/cat.jpg"}]}],
        "versions": {"onnx": "1.17.0", "odd": "of /home/alice"},
        "model": "/home/alice/m.onnx",
        "weights_sha256": "0" * 64,
        "dtype": "float32",
        "/home/bob": 1,
    }
    assert PRIVATE.document(document) == {
        "nodes": ["/usr/alice/x"],
        "why": LEFT_OUT,
        "process": {"exit_code": 3, "signal": "SIGSEGV", "stderr": []},
        "candidate": {"name": "b.py", "options": {"password": REMOVED, "threads": 2}},
        "samples": [{"label": "cat.jpg", "fed": [{"name": "x", "from": LEFT_OUT}]}],
        "versions": {"onnx": "1.17.0", "odd": LEFT_OUT},
        "model": "m.onnx",
        "weights_sha256": "0" * 64,
        "dtype": "float32",
        REMOVED: 1,
    }


def test_secret_of_the_environment_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_TOKEN", "very-secret-1")
    assert "very-secret-1" in make_redactor().secrets


# Texts of a key that leaves elsewhere: SPECs, and parts that no document has as they are.
UNDECLARED = {
    *(
        "CandidateEntry.name Departure.run Judgement.name Judgement.sample Network.ops "
        "RuntimeDocument.name Source.file"
    ).split()
}


def _iter_texts(module: str) -> Iterator[tuple[str, str]]:
    held = vars(import_module(f"subgraph.results.{module}")).values()
    for kind in (one for one in held if isinstance(one, type) and is_dataclass(one)):
        texts = (f for f in fields(kind) if re.search(r"(?<!Mapping\[)\bstr\b", str(f.type)))
        yield from ((f.metadata.get(KEY, f.name), f"{kind.__name__}.{f.name}") for f in texts)


def test_text_whose_key_leaves_is_declared_so_in_each_document() -> None:
    """A field does not leave because another document has one of its name."""
    keys = frozenset().union(*list_leaving_keys().values())
    texts = chain.from_iterable(map(_iter_texts, results.MODULES))
    assert {field for key, field in texts if key in keys} == UNDECLARED


def test_each_module_of_documents_is_searched_for_texts_that_leave() -> None:
    modules = {path.stem for path in Path(results.__file__).parent.glob("[!_]*.py")}
    outside = {"answer", "brief", "commands", "cut"}  # no bundle has a result of these
    assert modules - outside == {*results.MODULES}
