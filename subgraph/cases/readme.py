"""A bundle -> its README.txt, which a stranger reads first: what is wrong, what the files are, what
to type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from subgraph.cases.case import CaseOutcome, EvidenceRequest, Manifest
from subgraph.cases.layout import CANDIDATE, CANDIDATE_FILES, REPRO
from subgraph.cases.redact import LEFT_OUT, REMOVED
from subgraph.runtime.candidate import BY_HAND, COMMANDS, RECORDED
from subgraph.text import clean, count, list_some, shorten
from subgraph.types import Strings, frozen

README = "README.txt"
ENVIRONMENT = "environment.json"
MAX_NAME_WIDTH = 28  # of the column with file names
MAX_CASES = 12  # that are named
FILE_KINDS = {
    "model.onnx": "the piece as a standalone model",
    "model.tflite": "the same in the format of TensorFlow Lite",
    "model.prototxt": "the same in Caffe's form, with model.caffemodel",
    "inputs/": "the input values: .npy, and .bin without a header",
    "outputs/": "the right outputs for these inputs: the reference's values",
    "candidate/": "the outputs of the candidate",
    "small/": "a case with the smallest input that fails in the same way",
    "cure.onnx": "the full model, rewritten so that the candidate is right",
    "repro.py": "runs the model and compares; needs onnxruntime and numpy",
    "report.html": "the bisection, for people; run.json is it for programs",
    f"{CANDIDATE_FILES}/": "the candidate's own scripts; read them before you run them",
}


@frozen
class ReadmeData:
    """The contents of a bundle, as its README describes them.

    Attributes:
        name: The name of the bundle.
        files: The names of all files in it.
        cases: The manifest of each case, by its folder in the bundle ("" for the bundle itself);
            the most important one first.
        evidence: The request that names the candidate, if any.
        outcome: The outcome of the candidate, if it ran.
        unchanged: The texts that are as the sender wrote them, a line each.
    """

    name: str
    files: Strings
    cases: Mapping[str, Manifest]
    evidence: EvidenceRequest | None = None
    outcome: CaseOutcome | None = None
    unchanged: Sequence[str] = ()

    @property
    def first(self) -> str:
        """The folder of the most important case."""
        return next(iter(self.cases))


def write_readme(data: ReadmeData, *, lacks_words: bool) -> str:
    """Return the text, of at most 100 columns if names allow it.

    Args:
        data: The contents of the bundle.
        lacks_words: Whether words of the candidate's command were removed.
    """
    place = f"{data.first}/" if data.first else ""
    files = list(_iter_files(data, place))
    has_tflite = f"{place}model.tflite" in data.files
    model = "model.tflite" if has_tflite else "model.onnx"
    runtime = "ai-edge-litert" if has_tflite else "onnxruntime"
    script = place + REPRO
    library = data.cases[data.first].reference.get("custom_ops")
    alone = [f"pip install {runtime} numpy", f"python {script}"]
    if library:
        alone[1] += f" --custom-ops {clean(str(library))}"
    if any(name.startswith(f"{place}{CANDIDATE}/") for name in data.files):
        alone.append(
            f"python {script} --outputs {place}{CANDIDATE}    (compares, and runs nothing)"
        )
    elsewhere = [
        f"feed {place}inputs/ to {place}{model} there, and write each output into a folder DIR",
        f"as {place}outputs/ has it (.npy, or .bin without a header); then: python {script}"
        " --outputs DIR",
        "or let subcut run it: subcut replay … -c 'cmd:./run.sh {model} {inputs} {outputs}'",
    ]
    title = clean(data.name)
    sections = {
        "Files": files,
        "About the sender's candidate": list(map(clean, data.unchanged)),
        "Run it without subcut": alone,
        "Run it with subcut (pip install .)": _list_replays(data, has_tflite=has_tflite),
        "With another runtime or device": elsewhere,
    }
    parts = [[title, "=" * len(title), "", *_iter_problem(data, lacks_words=lacks_words)]]
    parts += [[head, *(f"  {line}" for line in lines)] for head, lines in sections.items() if lines]
    return "\n\n".join(map("\n".join, parts)) + "\n"


def _iter_problem(data: ReadmeData, *, lacks_words: bool) -> Iterator[str]:
    """Yield the problem, in two lines."""
    manifest = data.cases[data.first]
    region = manifest.region
    assert region
    nodes = [clean(node.name) for node in region.nodes]
    ops = [clean(node.op) for node in region.nodes]
    if len(nodes) < 4:
        some = f"{', '.join(nodes[:3])} ({', '.join(ops[:3])})"
    else:
        some = f"{nodes[0]} … {nodes[-1]}"
    model = clean(manifest.source.file or "a model")
    yield f"{shorten(some)}: {count(nodes, 'node')} of {model}"
    verdict = ""
    if outcome := data.outcome or manifest.found:
        why = outcome.signature or "" if outcome.why == LEFT_OUT else outcome.why
        status = "FAIL" if outcome.status == "fail" else outcome.status
        verdict = shorten(clean(f"{status}   {why}")).rstrip()
    fault = manifest.found.place if manifest.found else ""
    yield from filter(None, (verdict, clean(fault or "")))
    if data.evidence and data.evidence.candidate:
        yield f"candidate: {shorten(clean(data.evidence.candidate))}"
    elif not verdict:
        yield "with the inputs and the right outputs; no run in it is wrong"
    if lacks_words:
        yield (
            f"{REMOVED} replaces words of the command that may be private: give your own with -c"
        )


def _iter_files(data: ReadmeData, place: str) -> Iterator[str]:
    """Yield a line per file of the most important case and of the bundle, then the other cases."""
    for name, what in FILE_KINDS.items():
        for path in dict.fromkeys((place + name, name)):
            if any(
                file == path or (name[-1] == "/" and file.startswith(path)) for file in data.files
            ):
                yield f"{path:<{MAX_NAME_WIDTH}} {what}"
    others = [name for name in data.cases if name != data.first]
    if others:
        yield f"further cases: {list_some(list(map(clean, others)), MAX_CASES)}"


def _list_replays(data: ReadmeData, *, has_tflite: bool) -> list[str]:
    """Return the commands of subcut that run the case."""
    name = f"{clean(data.name)}.zip"
    backend = "litert" if has_tflite else "ort"
    lines = [f"subcut replay {name} -c {backend}"]
    identity = data.evidence.identity if data.evidence else None
    if not identity or identity.backend in (BY_HAND, RECORDED):
        return lines
    commands = [str(command) for step in COMMANDS if (command := identity.options.get(step))]
    runs_code = commands or identity.backend.endswith(".py")
    trust = " --trust" if runs_code else ""
    lines.append(f"subcut replay {name}{trust}    (on the candidate that it was found with)")
    return [*lines, *(f"    {CANDIDATE_FILES}/ $ {clean(command)}" for command in commands)]
