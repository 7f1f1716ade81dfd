"""What leaves is known by its place to be harmless: names, numbers, words of ours. The rest only
with consent."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from importlib import import_module
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from subgraph import plugins, results
from subgraph.cases.redact import (
    ALL,
    LEFT_OUT,
    REMOVED,
    Redactor,
    environment,
    leaving_keys,
    this_machine,
    variables,
)
from subgraph.documents import KEY, to_json
from subgraph.runtime import devices
from subgraph.runtime.backends import capabilities
from subgraph.runtime.candidate import stated_options

PRIVATE = Redactor(
    homes=("/home/alice",),
    users=("alice",),
    hosts=("wonderland",),
    secrets=("tokenvalue1",),
    names=frozenset({"/usr/a", "/pool/MaxPool", "Conv", "m.onnx", "inputs/x.npy"}),
    scripts=frozenset({"tools/go.py"}),
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


def test_the_sentence_of_our_own_criterion_leaves() -> None:
    wrong = {"status": "fail", "signature": "mismatch", "label": "fail", "why": JUDGED}
    right = {
        "status": "agree",
        "signature": None,
        "label": "agrees",
        "why": "all 4096 elements are equal",
    }
    crash = {
        "status": "fail",
        "signature": "crash",
        "label": "no route",
        "why": "no route to 10.1.2.3",
    }
    missing = {
        "status": "fail",
        "signature": "missing",
        "why": "the candidate gave no such output; it gave: acme_npu7",
    }
    assert PRIVATE.document([wrong, right]) == [wrong, right]
    assert PRIVATE.document(crash) == {**crash, "label": LEFT_OUT, "why": LEFT_OUT}
    assert PRIVATE.document(missing) == {**missing, "why": LEFT_OUT}
    theirs = replace(PRIVATE, own_criterion=False)
    assert [theirs.document(d)["why"] for d in (wrong, right)] == [LEFT_OUT, LEFT_OUT]
    assert theirs.document({"criterion": "/home/bob/mine.py"}) == {"criterion": LEFT_OUT}


@pytest.mark.parametrize(
    ("line", "cleared"),
    [
        (
            "subcut cut m.onnx -s /pool/MaxPool -i x=/home/alice/a.npy",
            "subcut cut m.onnx -s /pool/MaxPool -i REMOVED",
        ),
        ("subcut /home/alice/m.onnx --start hunter2", "subcut REMOVED --start REMOVED"),
        (
            "subcut bisect m.onnx --seed=3 --map=/home/a",
            "subcut bisect m.onnx --seed=3 --map=REMOVED",
        ),
        ("subcut hunter2 -phunter2 --x=hunter2", "subcut REMOVED REMOVED --x=REMOVED"),
        (
            "subcut bisect -c 'cmd:./go.sh hunter2 {model}'",
            "subcut bisect -c 'cmd:go.sh REMOVED {model}'",
        ),
        (
            "subcut bisect --candidate=/home/alice/b.py:k=v",
            "subcut bisect --candidate=b.py:REMOVED=REMOVED",
        ),
        (
            "python /home/bob/tools/run.py --fast {model} -n 4",
            "python REMOVED REMOVED {model} REMOVED 4",
        ),
        ("/home/bob/run --token abc --in={inputs} {model}", "run REMOVED REMOVED REMOVED {model}"),
        ("python ./tools/go.py {model} {inputs}", "python ./tools/go.py {model} {inputs}"),
        (
            "curl -u bob:hunter2 https://h.x/?sig=abc -phunter2",
            "curl REMOVED REMOVED REMOVED REMOVED",
        ),
        ("HF_TOKEN=abc ./run.sh", "REMOVED REMOVED"),
        ("/opt/alice-tool 1234 12345 1.5", "REMOVED 1234 REMOVED 1.5"),
        ("broken 'quote /home/alice/x", REMOVED),
        ("", ""),
    ],
)
def test_known_words_of_a_command_leave(line: str, cleared: str) -> None:
    assert PRIVATE.command(line) == cleared


@pytest.mark.parametrize(
    ("word", "stays"),
    [
        ("postgres://admin:S3cret@db.corp.example/runs?sslmode=require", False),
        ("https://bob:pw@npu7.corp/run?job=5&key=ZZ", False),
        ("--url=https://bob:pw@h.example/?t=1", False),
        ("URL=https://h.example/?t=1", False),
        ("adb:secret@host=1", False),
        ("user:password=1", False),
        ("mqtt:topic/acme/secret=1,x=2", False),
        ("bob@h.example:run=1", False),
        ("litert:convert=postgres://u:pw@db/x?a=b", False),
        ("cmd:./go.sh postgres://u:pw@db/x?a=b", False),
        ("83749201", False),
        ("--pin=83749201", False),
        ("-83749201", False),
        ("12345x2", False),
        ("/usr/a", False),
        *((word, False) for text in LEAKS for word in text.split()),
        ("8374", True),
        ("0.5", True),
        ("{inputs}", True),
    ],
)
def test_places_and_short_numbers_of_printed_text_leave(word: str, stays: bool) -> None:
    """As a word of a command, behind an option, and as a value of an option."""
    shown = word if stays else REMOVED
    line = shlex.join(["python", "--with", word])
    assert PRIVATE.command(line) == f"python REMOVED {shown}"
    assert PRIVATE.spec(f"cmd:{line}") == f"cmd:python REMOVED {shown}"
    assert PRIVATE.option("url", word) == shown


def test_short_numbers_and_documented_words_of_options_leave() -> None:
    options = {
        "pin": 83749201,
        "password": 12,
        "threads": 2,
        "fast": True,
        "opt": "basic",
        "hosts": ["10.1.2.3"],
    }
    kept = PRIVATE.document({"identity": {"options": options}})["identity"]["options"]
    assert kept == {REMOVED: REMOVED, "threads": 2, "opt": "basic"}
    command = {
        "identity": {"options": {"run": "./go hunter2 {model}"}, "files": {"./go": "0" * 64}}
    }
    assert PRIVATE.document(command) == {
        "identity": {"options": {"run": "go REMOVED {model}"}, "files": {}}
    }


@pytest.mark.parametrize(
    ("spec", "cleared"),
    [
        ("ort:opt=basic,threads=2", "ort:opt=basic,threads=2"),
        ("ort==1.22.1:opt=basic", "ort==1.22.1:opt=basic"),
        (
            "ort:secret@host=1,S3cret,url=https://b:pw@h/?t=1",
            "ort:REMOVED=REMOVED,REMOVED,REMOVED=REMOVED",
        ),
        ("ort:threads=83749201", "ort:threads=REMOVED"),
        (
            "/home/alice/mine.py:api_key=t,threads=2,url=h://x",
            "mine.py:REMOVED=REMOVED,threads=2,REMOVED=REMOVED",
        ),
        ("tools/go.py", "tools/go.py"),
        ("cmd:ssh alice@10.1.2.3 ./go.sh {model}", "cmd:ssh REMOVED REMOVED {model}"),
        ("torch:/home/alice/module.py:build", "torch:REMOVED"),
        ("npu", "npu"),
        ("npu-of-alice", REMOVED),
    ],
)
def test_known_settings_of_a_candidate_leave(spec: str, cleared: str) -> None:
    assert PRIVATE.spec(spec) == cleared
    assert not any(word in cleared for word in ("alice", "S3cret", "pw@"))


@pytest.mark.parametrize("name", [*plugins.own_names("backends"), *devices.DEVICES])
def test_every_option_of_a_backend_or_device_leaves_with_each_value_that_it_states(
    name: str,
) -> None:
    for option, values in stated_options(name).items():
        if values is None:
            continue
        key = option.replace("session.*", "session.set_denormal_as_zero").replace(
            "[A-Z]*", "PERFORMANCE_HINT"
        )
        for value in values or ("1",):
            redacted = PRIVATE.document({"candidate": {"backend": name, "options": {key: value}}})
            assert redacted["candidate"]["options"] == {key: value}
            if not capabilities(name).commands and not capabilities(name).script:
                assert PRIVATE.spec(f"{name}:{key}={value}") == f"{name}:{key}={value}"


@pytest.mark.parametrize("name", plugins.own_names("backends"))
def test_known_options_are_those_that_the_backend_checks(name: str) -> None:
    assert capabilities(name).options == getattr(plugins.load("backends", name), "OPTIONS", {})


@pytest.mark.parametrize(
    "spec",
    [
        *(
            "ort:disabled_optimizers=Pad_Fusion+QDQS8ToU8Transformer "
            "ort:providers=CUDAExecutionProvider+CPUExecutionProvider "
            "ort:ep=QNN,library=onnxruntime_qnn,backend_type=htp "
            "ort:package=onnxruntime-openvino,providers=OpenVINOExecutionProvider "
            "qnn-htp:backend_type=htp openvino:device=GPU.1,EXECUTION_MODE_HINT=ACCURACY "
            "web==1.24.3:ep=webgpu,layout=NCHW web:version=1.24.3 mnn:precision=low "
            "ncnn:vulkan=1 litert:kernels=builtin cuda==1.30.0:use_tf32=0"
        ).split(),
        "cmd[inputs=float16:NHWC,outputs=big:float32]:run.sh {model}",
    ],
)
def test_documented_candidate_leaves_as_it_is(spec: str) -> None:
    assert PRIVATE.spec(spec) == spec


@pytest.mark.parametrize(
    "value",
    [
        "/usr/lib/libx.so",
        "C:\\x.dll",
        *(
            "build.corp.example 10.1.2.3 box:8080 me@box 83749201 "
            "hf_abcdefghijklmnopqrstu 9f86d081884c7d65 alice-phone wonderland"
        ).split(),
        "two words",
        "https://h/?t=1",
    ],
)
@pytest.mark.parametrize(
    "option", ["ort:session.x", "openvino:device", "web:browser", "cuda:providers"]
)
def test_options_value_that_looks_private_stays_here(option: str, value: str) -> None:
    assert PRIVATE.spec(f"{option}={value}").endswith(f"={REMOVED}")


@pytest.mark.parametrize("option", ["ort:custom_ops", "ort:weights", "mnn:python"])
def test_option_that_names_a_file_stays_here(option: str) -> None:
    assert PRIVATE.spec(f"{option}=plain") == f"{option}={REMOVED}"


def test_option_of_the_users_own_backend_leaves_with_a_listed_word_alone() -> None:
    assert PRIVATE.spec("mine.py:precision=fp16,device=pixel,url=x") == (
        f"mine.py:precision=fp16,device={REMOVED},{REMOVED}={REMOVED}"
    )


def test_kept_command_leaves_without_what_is_private() -> None:
    redactor = replace(PRIVATE, keep=frozenset(["command"]), kept=set())
    assert (
        redactor.command("./run.sh --fast --key tokenvalue1 /home/alice/x")
        == "./run.sh --fast --key REMOVED ~/x"
    )
    assert redactor.spec("mine.py:op=Conv,api_key=x") == "mine.py:op=Conv,api_key=REMOVED"
    assert redactor.kept == {"command"}


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
        "candidate": {"name": "b.py", "options": {REMOVED: REMOVED, "threads": 2}},
        "samples": [{"label": "cat.jpg", "fed": [{"name": "x", "from": LEFT_OUT}]}],
        "versions": {"onnx": "1.17.0", "odd": LEFT_OUT},
        "model": "m.onnx",
        "weights_sha256": "0" * 64,
        "dtype": "float32",
        REMOVED: 1,
    }


def test_the_environment_is_an_allow_list(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {
        "OMP_NUM_THREADS": "3",
        "KMP_AFFINITY": "granularity=fine,compact",
        "ORT_TOKEN": "abc",
        "KMP_X": "y",
    }
    assert set(variables(told | {"PATH": "/bin", "AWS_SECRET": "x"})) == {
        "OMP_NUM_THREADS",
        "KMP_AFFINITY",
    }
    ort = {
        "ORT_TENSORRT_FP16_ENABLE": "1",
        "ORT_TENSORRT_CACHE_PATH": "acme",
        "ORT_ACME_HOST": "npu7",
        "ORT_X": "1",
    }
    assert variables(ort) == {"ORT_TENSORRT_FP16_ENABLE": "1"}
    monkeypatch.setenv("GITHUB_TOKEN", "very-secret-1")
    assert (
        "very-secret-1" not in json.dumps(to_json(environment()))
        and "very-secret-1" in this_machine().secrets
    )


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
    keys = frozenset().union(*leaving_keys().values())
    texts = chain.from_iterable(map(_iter_texts, results.MODULES))
    assert {field for key, field in texts if key in keys} == UNDECLARED


def test_each_module_of_documents_is_searched_for_texts_that_leave() -> None:
    modules = {path.stem for path in Path(results.__file__).parent.glob("[!_]*.py")}
    outside = {"brief", "commands", "github"}  # no result of these is in a bundle
    assert modules - outside == {*results.MODULES}
