"""Every operator test that a backend gets wrong, in the middle of a network -> is the operator
found there?

    python -m benchmarks.embedded [--only openvino,tract] [--jobs 2] [--limit N] [--test GLOB]
    [--fresh]

The wrong tests are those of `subcut sweep`; each is embedded (`fixtures.embedded`) in up to four
forms, the most lifelike first, and bisected by the command with its defaults, until the candidate
goes wrong in one. All goes to build/embedded/: results.jsonl, a line per test, from which a run
that was stopped goes on; a folder per test with the model, its inputs and the bisection's document;
embedded.json and embedded.md.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import shutil
import statistics
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from benchmarks import machine
from benchmarks.report import table
from fixtures.embedded import FORMS, Embedded, Form, Subject, Unfit, embed, subject, unfit
from subgraph.questions.sweep.operator_tests import OperatorTests, collect
from subgraph.storage.store import Store

FOLDER = Path(__file__).resolve().parent.parent / "build" / "embedded"
KEPT = "results.jsonl"
SUBCUT = Path(sys.executable).with_name("subcut")
SPECS = {
    "ort": "ort",
    "openvino": "openvino:precision=f32",
    "opencv": "opencv",
    "tract": "tract",
    "mnn": "mnn",
}
BAD = ("wrong", "crashed", "timeout")  # a sweep's words
PLAIN, EVALUATOR = "ort", "onnx-reference"  # what is right
LIMITS = ("--max-time", "60s", "--timeout", "60", "--memory-limit", "4G")
PATIENCE = 600  # seconds for one command
CLOSE = 1e-3  # relative: the evaluator gives what the test expects


class Word(StrEnum):
    """How one ended."""

    FOUND = "found"  # each certified region lies within the operator
    NEIGHBORS = "with neighbors"  # one holds nodes around it as well
    WRONG = "wrong"  # one lies elsewhere
    UNRESOLVED = "unresolved"
    AGREE = "agrees"  # in the network, nothing goes wrong
    FAILED = "failed"  # the command gave no answer
    LEFT_OUT = "left out"


ANSWERED = (Word.FOUND, Word.NEIGHBORS, Word.WRONG, Word.UNRESOLVED)


@dataclass(frozen=True)
class Tried:
    """One bisection.

    Attributes:
        signature: how the whole fails. culprits: the certified regions. explains: the first one's
            share of the error.
    """

    form: str
    word: Word
    why: str = ""
    signature: str = ""
    culprits: Sequence[Sequence[str]] = ()
    ops: Sequence[str] = ()
    explains: Any = None
    runs: int = 0
    seconds: float = 0.0

    @property
    def rank(self) -> int:
        """Lower is better: wrong numbers and crashes, then refusals, then nothing."""
        return (self.word not in ANSWERED) * 2 + (self.signature == "refused")


@dataclass(frozen=True)
class Result:
    """One test on one backend. `tried`: the forms, in order; `best`: the one that counts."""

    backend: str
    test: str
    operator: str
    swept: str
    word: Word
    why: str = ""
    reference: str = PLAIN
    best: Tried | None = None
    tried: Sequence[Tried] = field(default_factory=tuple)

    @staticmethod
    def of(data: Mapping[str, Any]) -> Result:
        """From a line of JSON."""
        tried = [Tried(**t | {"word": Word(t["word"])}) for t in data["tried"]]
        best = data["best"] and Tried(**data["best"] | {"word": Word(data["best"]["word"])})
        return Result(**{**data, "word": Word(data["word"]), "best": best, "tried": tried})


# ------------------------------------------------------------ the command


def subcut(*words: str | Path, cwd: Path) -> tuple[int, dict[str, Any], str]:
    """Exit code, document, and what it said."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SUBCUT_")}
    done = subprocess.run(
        [SUBCUT, *words, "--json"],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=None if words[0] == "sweep" else PATIENCE,
    )
    try:
        return done.returncode, json.loads(done.stdout), done.stderr
    except ValueError:
        return done.returncode, {}, done.stderr


def swept(backend: str, jobs: int) -> list[dict[str, Any]]:
    """The rows of the tests that a backend gets wrong or does not survive."""
    kept = FOLDER / f"sweep-{backend}.json"
    if not kept.exists():
        _, document, said = subcut("sweep", "-c", SPECS[backend], "--jobs", str(jobs), cwd=FOLDER)
        if "rows" not in document:
            raise SystemExit(f"subcut sweep -c {SPECS[backend]}: {said}")
        kept.write_text(json.dumps(document))
    rows = json.loads(kept.read_text())["rows"]
    return [row for row in rows if row["results"][0]["status"] in BAD]


def bisected(place: Path, made: Embedded, form: Form, backend: str, reference: str) -> Tried:
    """The model and its inputs written, and what the bisection says of them."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    onnx.save(made.model, place / "model.onnx")
    words: list[str] = []
    for k, (name, value) in enumerate(made.feeds.items()):
        np.save(place / f"input{k}.npy", value)
        words += ["-i", f"{name}=input{k}.npy"]
    words += [
        "-c",
        SPECS[backend],
        *LIMITS,
        *(("--reference", reference) if reference != PLAIN else ()),
    ]
    (place / "command.txt").write_text(" ".join(["subcut bisect model.onnx", *words]) + "\n")
    try:
        code, document, said = subcut("bisect", "model.onnx", *words, cwd=place)
    except subprocess.TimeoutExpired:
        return Tried(form.name, Word.FAILED, f"no answer in {PATIENCE} s")
    finally:
        shutil.rmtree(place / "subcut_out" / ".store", ignore_errors=True)
    (place / "bisect.json").write_text(json.dumps(document, indent=1) + "\n")
    (place / "bisect.log").write_text(said)
    if "findings" not in document:
        return Tried(form.name, Word.FAILED, f"exit code {code}: {said.strip()[-300:]}")
    return classified(document, made, form)


def classified(document: Mapping[str, Any], made: Embedded, form: Form) -> Tried:
    """A bisection's document as one word."""
    certified = [f for f in document["findings"] if f["certified"]]
    word = Word.UNRESOLVED
    why = "; ".join(f["why"] for f in document["findings"] if f["why"])
    if document["agree"]:
        word = Word.AGREE
        why = document["whole"]["why"]
    elif any(not made.nodes.intersection(f["nodes"]) for f in certified):
        word = Word.WRONG
    elif certified:
        word = (
            Word.FOUND
            if all(made.nodes.issuperset(f["nodes"]) for f in certified)
            else Word.NEIGHBORS
        )
    return Tried(
        form.name,
        word,
        why,
        (document["whole"] or {}).get("signature") or "",
        [f["nodes"] for f in certified],
        [op for f in certified for op in f["ops"]],
        certified[0]["explains"] if certified else None,
        document["trials"],
        document["seconds"],
    )


# ------------------------------------------------------------ one test


def attempted(tests: OperatorTests, backend: str, row: Mapping[str, Any]) -> Result:
    """One test embedded and bisected, in the first form in which the candidate goes wrong."""
    about = {"backend": backend, "test": row["test"], "operator": row["operator"] or row["test"]}
    about["swept"] = row["results"][0]["status"]
    test = next(t for t in tests.tests if t.name == row["test"])
    place = FOLDER / backend / test.name
    shutil.rmtree(place, ignore_errors=True)
    try:
        if why := unfit(test):
            raise Unfit(why)
        found = subject(tests.unpack(test, place / "test"))
        reference = known(found, row["onnxruntime"])
        tried = list(_forms(found, place, backend, reference))
    except Unfit as e:
        return Result(**about, word=Word.LEFT_OUT, why=str(e))
    best = min(tried, key=lambda t: t.rank)
    return Result(
        **about, word=best.word, why=best.why, reference=reference, best=best, tried=tried
    )


def known(found: Subject, plain: str) -> str:
    """What can be the reference: plain onnxruntime; onnx's evaluator where that does not run the
    test.

    `plain`: what the sweep says of onnxruntime. Raises: Unfit: neither gives what the test expects.
    """
    if plain in ("agrees", "near"):
        return PLAIN
    if plain == "differs":
        raise Unfit("onnxruntime, the reference, gives other values than the test expects")
    with np.errstate(all="ignore"):
        try:
            given = evaluated(found.model, found.inputs)
        except Exception as e:  # whatever an operator of its raises
            raise Unfit("neither onnxruntime nor onnx's evaluator runs it") from e
    for value, right in zip(given, found.outputs.values(), strict=True):
        if np.shape(value) != right.shape or not np.allclose(
            np.asarray(value, np.float64),
            np.asarray(right, np.float64),
            CLOSE,
            1e-6,
            equal_nan=True,
        ):
            raise Unfit(
                "onnxruntime refuses it, and onnx's evaluator gives other values than the test"
                " expects"
            )
    return EVALUATOR


def evaluated(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> list[Any]:
    """By onnx's evaluator."""
    from onnx.reference import ReferenceEvaluator

    return list(ReferenceEvaluator(model).run(None, dict(feeds)))


def run(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> list[Any]:
    """By plain onnxruntime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return list(session.run(None, dict(feeds)))


def _forms(found: Subject, place: Path, backend: str, reference: str) -> Iterator[Tried]:
    """The forms in turn, until one goes wrong.

    Raises:
        Unfit: no form can be made.
    """
    seen: list[bytes] = []
    why: list[str] = []
    for form in FORMS:
        made = embed(found, form)
        model = made.model.SerializeToString(deterministic=True)
        if model in seen:  # there is nothing to be fed
            continue
        seen.append(model)
        with np.errstate(all="ignore"):
            try:
                right = (run if reference == PLAIN else evaluated)(made.model, made.feeds)
            except Exception as e:  # whatever a runtime raises  # noqa: BLE001
                why.append(f"the reference does not run it embedded: {str(e)[:200]}")
                continue
        if not all(np.isfinite(value).all() for value in right):
            why.append("the reference gives NaN or infinities once it is embedded")
            continue
        tried = bisected(place / form.name, made, form, backend, reference)
        yield tried
        if not tried.rank:
            return
    if len(why) == len(seen):
        raise Unfit(why[0])


# ------------------------------------------------------------ all of them


def measure(backends: Sequence[str], jobs: int, limit: int | None, pattern: str) -> list[Result]:
    """All results of these backends; those that are missing are made, `jobs` at once."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    kept = FOLDER / KEPT
    lock = threading.Lock()
    found = {(r.backend, r.test): r for r in map(Result.of, map(json.loads, _lines(kept)))}
    rows = [(b, row) for b in backends for row in swept(b, jobs)[:limit]]
    rows = [(b, row) for b, row in rows if fnmatch.fnmatchcase(row["test"], pattern)]

    def one(tests: OperatorTests, task: tuple[str, Mapping[str, Any]]) -> None:
        result = attempted(tests, *task)
        with lock, kept.open("a") as file:
            found[result.backend, result.test] = result
            file.write(json.dumps(asdict(result)) + "\n")
            told = f"{result.word} {result.why}".strip()[:150]
            print(
                f"  {len(found)}  {result.backend}  {result.test}: {told}",
                file=sys.stderr,
                flush=True,
            )

    with Store(FOLDER / "store") as store:
        tests = collect(store, onnxruntime.__version__)
        left = [(b, row) for b, row in rows if (b, row["test"]) not in found]
        with ThreadPoolExecutor(max_workers=jobs) as executor:
            list(executor.map(partial(one, tests), left))
    return [found[b, row["test"]] for b, row in rows]


def _lines(path: Path) -> list[str]:
    """Whole lines; the last may have been cut off."""
    text = path.read_text() if path.exists() else ""
    return text[: text.rfind("\n") + 1].splitlines()


def markdown(results: Sequence[Result]) -> str:
    """A row per backend, and below why some were left out, agree, or are not found."""
    lines = []
    reasons = []
    for backend in dict.fromkeys(r.backend for r in results):
        mine = [r for r in results if r.backend == backend]
        count = Counter(r.word for r in mine)
        told = [r.best for r in mine if r.best and r.word in (Word.FOUND, Word.NEIGHBORS)]
        tried = sum(count[word] for word in ANSWERED)
        lines.append(
            [
                backend,
                *map(
                    str,
                    (len(mine), count[Word.LEFT_OUT], count[Word.AGREE], count[Word.FAILED], tried),
                ),
                str(count[Word.FOUND]),
                *map(str, (count[Word.NEIGHBORS], count[Word.UNRESOLVED], count[Word.WRONG])),
                f"{statistics.median(t.runs for t in told):.0f}" if told else "",
                f"{statistics.median(t.seconds for t in told):.1f}" if told else "",
            ]
        )
        how = Counter(t.signature for t in told)
        reasons += [
            f"- {backend}, found by: " + ", ".join(f"{n} × {text}" for text, n in how.most_common())
        ]
        why = Counter(r.why for r in mine if r.word is Word.LEFT_OUT)
        reasons += [f"- {backend}, left out: {n} × {text}" for text, n in why.most_common()]
        reasons += [
            f"- {backend}, {r.word}: {r.test} {r.why}"
            for r in mine
            if r.word in (Word.AGREE, Word.FAILED, Word.UNRESOLVED, Word.WRONG)
        ]
    head = [
        "backend",
        "wrong tests",
        "left out",
        "agree embedded",
        "failed",
        "tried",
        "found",
        "with neighbors",
    ]
    head += ["unresolved", "wrong", "median runs", "median s"]
    return table(head, lines) + "\n\n" + "\n".join(reasons)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.embedded", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--only", default=",".join(SPECS), help="backends, by comma")
    parser.add_argument("--jobs", type=int, default=1, help="bisections at once")
    parser.add_argument("--limit", type=int, help="at most so many tests of each backend")
    parser.add_argument("--test", default="*", help="only tests of these names")
    parser.add_argument(
        "--fresh",
        action="store_true",
        help="bisect anew; else what is there stands, of whatever subcut",
    )
    asked = parser.parse_args(arguments)
    if asked.fresh:
        (FOLDER / KEPT).unlink(missing_ok=True)
    results = measure(asked.only.split(","), asked.jobs, asked.limit, asked.test)
    command = " ".join(["python", "-m", "benchmarks.embedded", *arguments])
    versions = {name: machine.version(name) for name in ("subcut", "onnx", "onnxruntime")}
    document = {"command": command, "versions": versions, "results": [asdict(r) for r in results]}
    (FOLDER / "embedded.json").write_text(json.dumps(document, indent=1) + "\n")
    text = markdown(results)
    (FOLDER / "embedded.md").write_text(text + "\n")
    print(text)
    return int(any(r.word in (Word.WRONG, Word.FAILED) for r in results))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
