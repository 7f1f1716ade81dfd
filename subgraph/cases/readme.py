"""A bundle -> its README.txt, which a stranger reads first: what is wrong, what the files are, what
to type."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from subgraph.cases.case import CaseOutcome
from subgraph.cases.layout import CANDIDATE, CANDIDATE_FILES, REPRO
from subgraph.cases.redact import LEFT_OUT, REMOVED
from subgraph.documents import from_json
from subgraph.runtime.candidate import BY_HAND, COMMANDS, RECORDED
from subgraph.text import clean, count, shorten

README = "README.txt"
ENVIRONMENT = "environment.json"
NAME_WIDTH = 28  # of the column with file names
MAX_CASES = 12  # that are named
FILE_KINDS = {
    "model.onnx": "the piece as a model of its own",
    "model.tflite": "the same in TensorFlow Lite's own format",
    "model.prototxt": "the same in Caffe's own form, with model.caffemodel",
    "inputs/": "what is to be fed: .npy, and .bin without a header",
    "outputs/": "what is right for these inputs: the reference's values",
    "candidate/": "what came instead",
    "repro.py": "runs the model and compares; needs onnxruntime and numpy",
    "report.html": "the bisection, for people; run.json is it for programs",
    f"{CANDIDATE_FILES}/": "the candidate's own scripts; read them before you run them",
}

# What runs the model alone: to install, and its name; of ONNX, and of TensorFlow Lite.
_RUNS = (("onnxruntime", "onnxruntime"), ("ai-edge-litert", "LiteRT"))


@dataclass(frozen=True)
class ReadmeData:
    """The contents of a bundle, as its README describes them.

    Attributes:
        name: of the bundle. files: names of all files in it.
        cases: folder in the bundle ("" for the bundle itself) → manifest of the case there; the
            most telling one first.
        evidence: the manifest that names the candidate, if any.
        outcome: of the candidate, if it ran.
        unchanged: what went along as the sender wrote it, a line each.
    """

    name: str
    files: tuple[str, ...]
    cases: Mapping[str, Mapping[str, Any]]
    evidence: Mapping[str, Any] | None = None
    outcome: CaseOutcome | None = None
    unchanged: Sequence[str] = ()

    @property
    def first(self) -> str:
        """The folder of the most telling case."""
        return next(iter(self.cases))


def readme(data: ReadmeData) -> str:
    """The text, of at most 100 columns where names allow it."""
    title = clean(data.name)
    parts = [
        [title, "=" * len(title), "", *_iter_problem(data)],
        ["Files", *_iter_files(data)],
        *(
            [
                [
                    "As the sender had it, not redacted",
                    *(f"  {clean(line)}" for line in data.unchanged),
                ]
            ]
            if data.unchanged
            else []
        ),
        ["Run it without subcut", *_run_alone(data)],
        ["Run it with subcut (pip install .)", *_run_with_subcut(data)],
        ["With a runtime or device of your own", *_run_elsewhere(data)],
    ]
    return "\n\n".join("\n".join(lines) for lines in parts) + "\n"


def _iter_problem(data: ReadmeData) -> Iterator[str]:
    """Yield the problem, in two lines."""
    manifest = data.cases[data.first]
    nodes = [clean(str(n["name"])) for n in manifest["region"]["nodes"]]
    ops = [clean(str(n["op"])) for n in manifest["region"]["nodes"]]
    some = (
        f"{', '.join(nodes[:3])} ({', '.join(ops[:3])})"
        if len(nodes) < 4
        else f"{nodes[0]} … {nodes[-1]}"
    )
    model = clean(str(manifest["source"].get("file") or "a model"))
    yield f"{shorten(some)}: {count(len(nodes), 'node')} of {model}"
    candidate = clean(str(data.evidence["request"]["candidate"])) if data.evidence else ""
    verdict = _describe_verdict(data, manifest)
    if verdict:
        yield verdict
    if candidate:
        yield f"candidate: {shorten(candidate)}"
    elif not verdict:
        yield "with the inputs and the right outputs; nothing here says that it goes wrong anywhere"
    if data.evidence and REMOVED in str(data.evidence["request"]):
        yield (
            f"{REMOVED} stands where the command had words that may be private: give your own"
            " with -c"
        )


def _describe_verdict(data: ReadmeData, manifest: Mapping[str, Any]) -> str:
    """The verdict, in a line; "" where there is none."""
    outcome = data.outcome or (
        from_json(CaseOutcome, found) if (found := manifest.get("found")) else None
    )
    if outcome is None:
        return ""
    why = outcome.signature or "" if outcome.why == LEFT_OUT else outcome.why
    status = "FAIL" if outcome.status == "fail" else outcome.status
    return shorten(clean(f"{status}   {why}")).rstrip()


def _iter_files(data: ReadmeData) -> Iterator[str]:
    """List the files of the most telling case and of the bundle that a stranger opens; then the
    other cases."""
    own = _find_own_files(data)
    place = f"{data.first}/" if data.first else ""
    known = {f"{place}{name}": what for name, what in FILE_KINDS.items() if name in own}
    known |= {name: what for name, what in FILE_KINDS.items() if name in _find_tops(data.files)}
    for name, what in known.items():
        yield f"  {name:<{NAME_WIDTH}} {what}"
    others = [name for name in data.cases if name != data.first]
    if others:
        more = f" and {len(others) - MAX_CASES} more" if len(others) > MAX_CASES else ""
        yield f"  further cases: {', '.join(map(clean, others[:MAX_CASES]))}{more}"


def _find_own_files(data: ReadmeData) -> set[str]:
    """Return the files in the folder of the most telling case."""
    head = f"{data.first}/" if data.first else ""
    return _find_tops(f.removeprefix(head) for f in data.files if f.startswith(head))


def _find_tops(files: Iterable[str]) -> set[str]:
    """The first part of each path, with a slash where it is a folder."""
    return {"".join(file.partition("/")[:2]) for file in files}


def _run_alone(data: ReadmeData) -> Iterator[str]:
    script, outputs = (str(PurePosixPath(data.first, name)) for name in (REPRO, CANDIDATE))
    library = data.cases[data.first].get("reference", {}).get("custom_ops")
    more = f" --custom-ops {clean(str(library))}" if library else ""
    runtime, known = _RUNS["model.tflite" in _find_own_files(data)]
    yield f"  pip install {runtime} numpy"
    lines = [(f"python {script}{more}", f"the model on {known}, beside what is right")]
    if any(name.startswith(f"{outputs}/") for name in data.files):
        lines.append(
            (
                f"python {script} --outputs {outputs}",
                "nothing is run: what came, beside what is right",
            )
        )
    yield from _iter_columns(lines)


def _iter_columns(lines: Sequence[tuple[str, str]]) -> Iterator[str]:
    width = max(len(left) for left, right in lines if right)
    yield from (f"  {left:<{width}}   {right}".rstrip() for left, right in lines)


def _run_with_subcut(data: ReadmeData) -> Iterator[str]:
    name = f"{clean(data.name)}.zip"
    _, known = _RUNS["model.tflite" in _find_own_files(data)]
    backend = "ort" if known == "onnxruntime" else "litert"
    lines = [
        (f"subcut replay {name} -c {backend}", f"on {known}; unpacked first, where it is not yet")
    ]
    identity = data.evidence["request"]["identity"] if data.evidence else None
    if not identity or identity["backend"] in (BY_HAND, RECORDED):
        yield from _iter_columns(lines)
        return
    commands = [
        str(identity["options"][step]) for step in COMMANDS if identity["options"].get(step)
    ]
    trust = " --trust" if commands or str(identity["backend"]).endswith(".py") else ""
    yield from _iter_columns(
        [*lines, (f"subcut replay {name}{trust}", "on the candidate that it was found with")]
    )
    yield from (f"      {CANDIDATE_FILES}/ $ {clean(command)}" for command in commands)


def _run_elsewhere(data: ReadmeData) -> Iterator[str]:
    place = f"{data.first}/" if data.first else ""
    model = "model.tflite" if "model.tflite" in _find_own_files(data) else "model.onnx"
    yield f"  feed {place}inputs/ to {place}{model} there, and write each output into a folder DIR"
    yield (
        f"  as {place}outputs/ has it (.npy, or .bin without a header); then: python"
        f" {place}repro.py --outputs DIR"
    )
    yield "  or let subcut run it: subcut replay … -c 'cmd:./run.sh {model} {inputs} {outputs}'"
