"""A bundle -> its README.txt: what a stranger reads first. What is wrong, what the files are, what to type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from subgraph.cases.layout import BUNDLE_LIST, CANDIDATE_FILES
from subgraph.cases.redact import REMOVED
from subgraph.runtime.candidate import BY_HAND, COMMANDS, RECORDED
from subgraph.storage.tensors import shape_text
from subgraph.text import clean, count, shorten

README, ENVIRONMENT = "README.txt", "environment.json"
WIDTH = 28  # of the column with file names
CASES = 12  # that are named one by one
PIECES = {
    "culprit": "the smallest piece that goes wrong",
    "culprit-agrees": "its nearest neighbour that is right",
    "flaky": "a piece that goes wrong only at times",
    "in-doubt": "a piece about which nothing is certain",
    "interval": "between the last right and the first wrong tensor that was recorded",
}
WHAT = {
    "model.onnx": "the piece as a model of its own",
    "inputs/": "what is to be fed: .npy, and .bin without a header",
    "outputs/": "what is right for these inputs: the reference's values",
    "candidate/": "what came instead",
    "TODO.txt": "what was to be run on a device",
    "from_device/": "what was brought back from the device",
    "dump_data/": "the reference's values of all tensors in the piece",
    "manifest.json": "tensors with type, shape and file; nodes; versions",
    "repro.py": "runs the model and compares; needs onnxruntime and numpy",
    "run.json": "the bisection, for programs",
    "sweep.json": "the sweep, for programs",
    "report.html": "the bisection, for people",
    "report.md": "the same, for a bug tracker",
    f"{CANDIDATE_FILES}/": "the candidate's own scripts; read them before you run them",
    ENVIRONMENT: "the machine that packed this",
    BUNDLE_LIST: "sizes and SHA-256 of all files",
}


@dataclass(frozen=True)
class ReadmeData:
    """What a letter is about.

    Attributes:
        name: of the bundle. files: names of all that is in it.
        cases: folder in the bundle ("" for the bundle itself) → manifest of the case there; the one meant first.
        around: what the case was found with, if any. run: the bisection's document. found: what came, if it was asked.
    """

    name: str
    files: tuple[str, ...]
    cases: Mapping[str, Mapping[str, Any]]
    around: Mapping[str, Any] | None = None
    run: Mapping[str, Any] | None = None
    found: Mapping[str, Any] | None = None


def letter(told: ReadmeData) -> str:
    """The text, of at most 100 columns where names allow it."""
    first = next(iter(told.cases))
    parts = [
        [clean(told.name), "=" * len(clean(told.name)), "", *_wrong(told)],
        ["Files", *_files(told, first)],
        ["Run it without subcut", *_without(told, first)],
        ["Run it with subcut (pip install .)", *_with(told)],
        ["With a runtime or device of your own", *_own(first)],
    ]
    return "\n\n".join("\n".join(lines) for lines in parts) + "\n"


def _wrong(told: ReadmeData) -> Iterator[str]:
    """What is wrong, in two lines."""
    manifest = next(iter(told.cases.values()))
    nodes = [clean(str(n["name"])) for n in manifest["region"]["nodes"]]
    ops = [clean(str(n["op"])) for n in manifest["region"]["nodes"]]
    some = f"{', '.join(nodes[:3])} ({', '.join(ops[:3])})" if len(nodes) < 4 else f"{nodes[0]} … {nodes[-1]}"
    model = clean(str(manifest["source"]["file"]))
    yield f"{shorten(some)}: {count(len(nodes), 'node')} of {model}"
    candidate = clean(str(told.around["request"]["candidate"])) if told.around else ""
    said = _said(told, manifest)
    if said:
        yield said
    if candidate:
        yield f"candidate: {shorten(candidate)}"
    elif not said:
        yield "with the inputs and the right outputs; nothing here says that it goes wrong anywhere"
    if told.around and REMOVED in str(told.around["request"]):
        yield f"{REMOVED} stands where the command had a secret: give your own with -c"


def _said(told: ReadmeData, manifest: Mapping[str, Any]) -> str:
    """The verdict, in a line."""
    found = told.found or manifest.get("found")
    if found:
        return shorten(clean(f"{_word(found['status'])}   {found['why']}"))
    findings = (told.run or {}).get("findings") or ()
    verdicts = [f["verdict"] for f in findings if f.get("verdict") and f.get("case")]
    if not verdicts:
        return ""
    outputs = ", ".join(str(o["name"]) for o in verdicts[0].get("outputs", ())[:1])
    return shorten(clean(f"{_word(verdicts[0]['status'])}   {outputs}: {verdicts[0]['why']}"))


def _word(status: Any) -> str:
    return "FAIL" if status == "fail" else str(status)


def _files(told: ReadmeData, first: str) -> Iterator[str]:
    tops: dict[str, None] = {}
    for file in (*told.files, README, ENVIRONMENT, BUNDLE_LIST):
        head, inner, _ = file.partition("/")
        tops[head + inner] = None
    cases = [name for name in told.cases if name]
    for name in cases[:CASES]:
        yield f"  {name + '/':<{WIDTH}} {_piece(name)}"
    if len(cases) > CASES:
        yield f"  … and {len(cases) - CASES} more"
    if first:
        yield "  in each of them"
    inside = f"{first}/" if first else ""
    own = {
        f[len(inside) :].partition("/")[0] + "/" * ("/" in f[len(inside) :]) for f in told.files if f.startswith(inside)
    }
    for name, what in WHAT.items():
        if first and name in own and name != "manifest.json":
            yield f"    {name:<{WIDTH - 2}} {what}"
    for name, what in WHAT.items():
        if name in tops and not (first and name == "manifest.json"):
            yield f"  {name:<{WIDTH}} {what}"


def _piece(name: str) -> str:
    word, _, number = name.rpartition("-")
    return PIECES.get(name) or (PIECES.get(word, "a case") if number.isdigit() else "a case")


def _without(told: ReadmeData, first: str) -> Iterator[str]:
    script, given = (str(PurePosixPath(first, name)) for name in ("repro.py", "candidate"))
    library = told.cases[first].get("reference", {}).get("custom_ops")
    more = f" --custom-ops {clean(str(library))}" if library else ""
    lines = [
        ("pip install onnxruntime numpy", ""),
        (f"python {script}{more}", "the model on onnxruntime, as the reference ran it"),
        (f"python {script}{more} --opt all", "with its optimisations"),
    ]
    if any(name.startswith(f"{given}/") for name in told.files):
        lines.append((f"python {script} --outputs {given}", "nothing is run: what came beside what is right"))
    yield from _columns(lines)


def _columns(lines: Sequence[tuple[str, str]]) -> Iterator[str]:
    width = max(len(left) for left, right in lines if right)
    yield from (f"  {left:<{width}}   {right}".rstrip() for left, right in lines)


def _with(told: ReadmeData) -> Iterator[str]:
    name = f"{clean(told.name)}.zip"
    lines = [(f"subcut replay {name} -c ort", "on onnxruntime; unpacked first, where it is not yet")]
    if not told.around or told.around["request"]["identity"]["backend"] in (BY_HAND, RECORDED):
        yield from _columns(lines)
        return
    identity = told.around["request"]["identity"]
    commands = [str(identity["options"][step]) for step in COMMANDS if identity["options"].get(step)]
    own = bool(commands) or str(identity["backend"]).endswith(".py")
    yield from _columns(
        [*lines, (f"subcut replay {name}{' --trust' * own}", "on the candidate that it was found with")]
    )
    yield from (f"      {CANDIDATE_FILES}/ $ {clean(command)}" for command in commands)


def _own(first: str) -> Iterator[str]:
    place = f"{first}/" if first else ""
    yield f"  feed {place}inputs/ to {place}model.onnx there, and write each output into a folder DIR"
    yield f"  as {place}outputs/ has it (.npy, or .bin without a header); then: python {place}repro.py --outputs DIR"
    yield "  or let subcut run it: subcut replay … -c 'cmd:./run.sh {model} {inputs} {outputs}'"


def shapes(manifest: Mapping[str, Any]) -> list[str]:
    """Each tensor of a case's edge, in a line."""
    lines = []
    for word, role in (("in", "inputs"), ("out", "outputs")):
        for tensor in manifest[role]:
            sizes = " ".join(shape_text(tuple(s)) for s in tensor["shape"] or ()) or "varies"
            lines.append(f"{word:<4} {clean(tensor['name'])}  {tensor['dtype']}  {sizes}")
    return lines
