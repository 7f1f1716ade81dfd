"""Documents of `compare` and of recordings -> one view of them, from which every form of report is
made.

A row of the table is a tensor, a column is a way in which it was compared: in place and alone, or
one per recording.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from subgraph import system
from subgraph.text import count, source_line

Document = dict[str, Any]
SCHEMAS = ("subcut.compare/1", "subcut.recorded/1", "subcut.interval/1")
RECORDED = SCHEMAS[1:]
STATUS = {0: "agree", 1: "fail", 5: "unresolved"}
METRICS = ("max_abs", "max_rel", "cosine", "mismatch")
MAX_SOURCES = 3  # of a finding
NO_JUDGEMENT: Document = {
    "status": "",
    "signature": None,
    "label": "",
    "sample": "",
    "why": "",
    "errors": {},
}


@dataclass(frozen=True)
class Compared:
    """A tensor in one column; `status` is empty where it was not seen. `sample`: the worst, of
    several."""

    status: str
    signature: str | None = None
    label: str = ""
    sample: str = ""
    why: str = ""
    errors: Document = field(default_factory=dict)
    recorded_as: str = ""
    matched_by: str = ""
    beside: str = ""

    @property
    def error(self) -> float | str | None:
        """The relative error; None where there is none."""
        value = "nan" if self.signature == "nan" else self.errors.get("max_rel")
        return None if value is None or (isinstance(value, float) and math.isnan(value)) else value


@dataclass(frozen=True)
class TensorLine:
    """A tensor. `cells`: one per column. `source`: of its node, where the model tells.

    `computed_by`: which of the runtime's providers computes it.
    """

    index: int
    node: str
    op: str
    tensor: str
    cells: Sequence[Compared]
    source: str = ""
    computed_by: str = ""

    @property
    def agrees(self) -> bool:
        """True if it was compared and nothing failed."""
        return {one.status for one in self.cells} - {""} == {"agree"}

    @property
    def names(self) -> list[tuple[str, str]]:
        """How it was recorded, and how that was matched; of several recordings each way once."""
        return list(
            dict.fromkeys(
                (one.recorded_as, one.matched_by) for one in self.cells if one.recorded_as
            )
        )


@dataclass(frozen=True)
class View:
    """What a report shows.

    Attributes:
        facts: name and text, on what was compared and how. notes: what makes it doubtful.
        left_out: why, how many, and some of their names. findings: as they are in the document.
        next: commands, and what each is for.
    """

    kind: str
    headline: str
    status: str
    facts: Sequence[tuple[str, str]]
    notes: Sequence[str]
    columns: Sequence[str]
    lines: Sequence[TensorLine]
    left_out: Sequence[tuple[str, int, Sequence[str]]]
    findings: Sequence[Document]
    next: Sequence[tuple[str, str]]


def origins(finding: Document, quoted: Callable[[str], str] = str) -> list[str]:
    """The modules and lines of the user's code that a finding's nodes come from, in one line; empty
    if unknown."""
    lines = (source_line(one) for one in finding.get("sources", ()) if one)
    known = list(dict.fromkeys(filter(None, lines)))
    more = f"; and {len(known) - MAX_SOURCES} more" if len(known) > MAX_SOURCES else ""
    return [f"from {'; '.join(map(quoted, known[:MAX_SOURCES]))}{more}"] if known else []


def view(document: Document) -> View:
    """The view of a document of one of `SCHEMAS`."""
    recorded = document["schema"] in RECORDED
    lines = [_recorded(row, document) if recorded else _line(row) for row in document["rows"]]
    columns = [run["name"] for run in document["recordings"]] if recorded else ["in place", "alone"]
    if recorded and len(columns) == 1:
        columns.append("alone")
    return View(
        kind="recorded" if recorded else "compare",
        headline=document["says"],
        status=STATUS.get(document["exit_code"], "unresolved"),
        facts=list(_facts(document, lines, recorded)),
        notes=_notes(document, recorded),
        columns=columns,
        lines=lines,
        left_out=_left_out(document) if recorded else [],
        findings=document.get("findings", ()),
        next=_next(document, recorded),
    )


@dataclass(frozen=True)
class JudgedTensor:
    """What a table tells of a tensor in place."""

    index: int
    node: str
    tensor: str
    error: float | str | None
    status: str


def judged_tensors(document: Document) -> list[JudgedTensor]:
    """The tensors of a bisection's profile, or in place of a comparison or of each recording that
    has them."""
    if document["schema"] not in SCHEMAS:
        rows = document["profile"] or ()
        return [
            JudgedTensor(r["index"], r["node"], r["tensor"], r["error"], r["status"]) for r in rows
        ]
    columns = len(document.get("recordings", ())) or 1  # behind them stands what is alone
    return [
        JudgedTensor(line.index, line.node, line.tensor, cell.error, cell.status)
        for line in view(document).lines
        for cell in line.cells[:columns]
    ]


def _judged(judgement: Document | None, **more: Any) -> Compared:
    known = NO_JUDGEMENT | (judgement or {})
    return Compared(**{key: known[key] for key in NO_JUDGEMENT}, **more)


def _line(row: Document) -> TensorLine:
    return _tensor(row, [_judged(row["in_place"]), _judged(row["alone"])])


def _recorded(row: Document, document: Document) -> TensorLine:
    cells = [_held(one) for one in row["runs"]]
    if len(document["recordings"]) == 1:
        cells.append(_judged(row["runs"][0] and row["runs"][0]["alone"]))
    return _tensor(row, cells)


def _tensor(row: Document, cells: Sequence[Compared]) -> TensorLine:
    source = row.get("source")
    by = row.get("computed_by") or ""
    place = source_line(source) if source else ""
    return TensorLine(row["index"], row["node"], row["op"], row["tensor"], cells, place, by)


def _held(one: Document | None) -> Compared:
    if one is None:
        return Compared("")
    how = ", ".join(filter(None, (f"by {one['matched_by']}", one["note"])))
    if one["in_place"] is None:
        return Compared(
            "unresolved", why=one["why"], recorded_as=one["recorded_as"], matched_by=how
        )
    like = {"agree": "as", "fail": "unlike"}.get((one.get("beside") or {}).get("status", ""), "")
    beside = f"{like} {one['before']}" if like and one["in_place"]["status"] == "fail" else ""
    return _judged(one["in_place"], recorded_as=one["recorded_as"], matched_by=how, beside=beside)


def reason(whole: Document) -> str:
    """Why the whole model is judged so, with the output that decided, and the sample if there are
    several."""
    outcome = whole["status"], whole["why"]
    about = next((j for j in whole["outputs"] if (j["status"], j["why"]) == outcome), None)
    if about is None:
        return str(whole["why"])
    sample = f", sample {about['sample']}" if about["sample"] else ""
    return f"{about['name']}: {about['why']}{sample}"


def _facts(document: Document, lines: Sequence[TensorLine], recorded: bool) -> Any:
    if recorded:
        for k, run in enumerate(document["recordings"]):
            seen = sum(bool(line.cells[k].status) for line in lines)
            matched = (
                f"{run['format']}, {run['precision']}: {seen} of {count(len(lines), 'tensor')}"
                f" matched, {run['wrong']} wrong"
            )
            outcome = f"missing: {run['missing']}" if run["missing"] else matched
            yield run["name"], outcome
            yield from _run_facts(run, "" if len(document["recordings"]) == 1 else run["name"])
    else:
        about = document["candidate"]
        whole = document["whole"]
        yield (
            "candidate",
            " ".join(filter(None, (about["name"], about["version"], about["precision"]))),
        )
        yield "whole model", ": ".join(filter(None, (whole["status"], reason(whole))))
    yield "model", f"{document['model']['file']}, {count(document['model']['nodes'], 'node')}"
    yield "criterion", document["criterion"]
    if samples := [label for label in document["samples"] if label]:
        yield (
            "samples",
            ", ".join(samples[:20])
            + (f" and {len(samples) - 20} more" if len(samples) > 20 else ""),
        )


def _run_facts(run: Document, name: str) -> Iterator[tuple[str, str]]:
    """The first bad tensor of a recording, and the advice of msaccucmp; `name`: of one of
    several."""
    of = f" of {name}" if name else ""
    if run["first_bad"] and not run["missing"]:
        good = run["last_good"]
        last = "" if good is None else f"; last good: {', '.join(good) or 'the model input'}"
        source = source_line(run.get("source") or {})
        yield (
            f"first bad tensor{of}",
            f"{run['first_bad']}{last}{f'; from {source}' if source else ''}",
        )
    if advice := run.get("advice"):
        yield f"advisor{of}", f"{advice['kind']}: {advice['verdict']}   {advice['says']}"


def _notes(document: Document, recorded: bool) -> list[str]:
    if not recorded:
        bad = document["first_bad"]
        return [
            *(
                f"{bad['tensor']} looks like: {words}"
                for words in (bad or {}).get("looks_like", ())
            ),
            *document["notes"],
        ]
    several = len(document["recordings"]) > 1
    noted = [(run["name"], note) for run in document["recordings"] for note in run["notes"]]
    noted += [(run["name"], run["mistake"]) for run in document["recordings"] if run["mistake"]]
    return [f"{name}: {note}" if several else note for name, note in noted]


def _left_out(document: Document) -> list[tuple[str, int, list[str]]]:
    """By reason, how many entries of all recordings are not compared, and the first of their
    names."""
    counts = Counter[str]()
    names = dict[str, list[str]]()
    for left in (left for run in document["recordings"] for left in run.get("left_out", ())):
        counts[left["why"]] += left["count"]
        names.setdefault(left["why"], []).extend(left["names"])
    return [(why, n, list(dict.fromkeys(names[why]))) for why, n in counts.most_common()]


def _next(document: Document, recorded: bool) -> list[tuple[str, str]]:
    model = system.quote(document["model"].get("path") or document["model"]["file"])
    if STATUS.get(document["exit_code"]) != "fail":
        return []
    if not recorded:
        commands = document.get("next") or [
            f"subcut bisect {model} -c {system.quote(document['candidate']['name'])}"
        ]
        return [(command, "finds the smallest piece that goes wrong") for command in commands]
    if not document.get("findings"):
        folders = (system.quote(run["folder"]) for run in document["recordings"] if run["folder"])
        words = " ".join(f"--recorded {folder}" for folder in dict.fromkeys(folders))
        return [
            (
                f"subcut bisect {model} {words}",
                "narrows it down to an interval, with a case for the device",
            )
        ]
    first = document["findings"][0]
    case = system.quote(first["case"] or "CASE")
    span = system.quote(f"{first['nodes'][0]}..{first['nodes'][-1]}")
    commands = document.get("next") or (
        f"subcut export {case} -o to_device",
        f"subcut manual start {model} -i FILE --within {span}",
    )
    what = (
        "writes the interval's inputs in the device's form",
        "goes on with the search, run by you",
    )
    return list(zip(commands, what, strict=False))
