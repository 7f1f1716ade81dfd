"""A sweep as text: the outcomes by operator, as `subcut sweep` prints them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

from subgraph.iterables import flatten, group_values
from subgraph.reports._words import cleaned, format_runtime
from subgraph.results.sweep import SweepDocument, Totals
from subgraph.text import align_columns, count, shorten, wrap

WORDS = ("wrong", "crashed", "timeout", "unresolved", "refused", "right")
TOTALS = ("right", "refused", "wrong", "crashed", "timeout", "unresolved")
ALWAYS = TOTALS[:4]  # totals that are shown even if they are 0
BAD = WORDS[:3]
# Signatures that are not shown, because the outcome and the reason imply them.
PLAIN_SIGNATURES = (None, "mismatch", "throws", "memory", "crash", "timeout")
MAX_LISTED = 30  # bad tests per candidate
MAX_REASONS = 5  # reasons of refusals per candidate
# The names and numbers in a message, in which messages for the same reason differ.
VARYING = re.compile(r"[A-Za-z_./]*\d[\w./]*|'[^']*'|\([^()]*\)|\"[^\"]*\"")
LINE_WIDTH = 110  # characters of a line of names


def render_sweep(document: SweepDocument) -> str:
    """Return the totals, the bad tests, the operators, the differences, refusals and notes."""
    document = cleaned(document)
    named = [format_runtime(c) for c in document.candidates]
    parts = [
        _iter_totals(document),
        align_columns(
            [("candidate", name, " ".join(about), precision) for name, *about, precision in named]
        ),
        _iter_bad(document),
        _iter_operators(document),
        _iter_differing(document),
        _iter_refusals(document),
        _iter_notes(document),
    ]
    return "\n\n".join(filter(None, ["\n".join(part) for part in parts])) + "\n"


def _make_suffix(document: SweepDocument, name: str, word: str) -> str:
    """Return ` on NAME`, or "" for a single candidate."""
    if len(document.candidates) > 1:
        return f" {word} {name}"
    return ""


def _iter_bad(document: SweepDocument) -> Iterator[str]:
    """Yield the wrong tests, then those that crashed, then those that hung, by operator."""
    cells = []
    more = []
    for k, candidate in enumerate(document.candidates):
        bad = [(row, row.results[k]) for row in document.rows if row.results[k].status in BAD]
        bad.sort(key=lambda pair: (BAD.index(pair[1].status), pair[0].operator, pair[0].test))
        on = _make_suffix(document, candidate.name, "on")
        for row, result in bad[:MAX_LISTED]:
            why = result.why
            if result.signature not in PLAIN_SIGNATURES:
                why = f"{result.signature}: {why}"
            where = row.operator or row.kind
            cells.append((result.status + on, where, row.test, shorten(why, 160)))
        if len(bad) > MAX_LISTED:
            more.append(f"… and {len(bad) - MAX_LISTED:,} more{on}: --json lists all")
    yield from align_columns(cells) if cells else ()
    yield from more


def _iter_operators(document: SweepDocument) -> Iterator[str]:
    """Yield a line per operator with several outcomes, and lists of the others' names."""
    entries = [
        (e.operator, e.tests, list(map(_count_by_word, e.totals))) for e in document.operators
    ]
    if document.tests.networks:
        entries.append(
            (
                "light networks",
                document.tests.networks,
                list(map(_count_by_word, document.networks)),
            )
        )
    uniform = {
        word: [e for e in entries if all(t[word] == e[1] for t in e[2])]
        for word in ("right", "refused")
    }
    mixed = [e for e in entries if not any(e in same for same in uniform.values())]
    numbers = range(len(document.candidates))
    words = [[w for w in WORDS if any(totals[k][w] for _, _, totals in mixed)] for k in numbers]
    if mixed:
        head = ["operator", "tests", *flatten(words)]
        cells = [head]
        for name, tests, totals in mixed:
            counts = []
            for k, columns in enumerate(words):
                counts += [str(totals[k][w] or "-") for w in columns]
            cells.append([name, str(tests), *counts])
        lines = align_columns(cells, range(1, len(head)))
        if len(document.candidates) > 1:
            yield _align_names(lines[0], words, [c.name for c in document.candidates])
        yield from lines
    for word, same in uniform.items():
        if same:
            total = count(sum(e[1] for e in same), "test")
            yield from _wrap(f"{word} in every test ({total})", sorted(e[0] for e in same))


def _count_by_word(totals: Totals) -> dict[str, int]:
    return {str(outcome): number for outcome, number in totals.items()}


def _align_names(head: str, words: list[list[str]], names: list[str]) -> str:
    """Return a line with the candidates' names, each above the first of its columns."""
    line = ""
    end = 0
    for first in ("operator", "tests"):
        end = head.index(first, end) + len(first)
    for columns, name in zip(words, names, strict=True):
        if columns:
            line = f"{line.ljust(head.index(columns[0], end))}{name}  "
            for word in columns:
                end = head.index(word, end) + len(word)
    return line.rstrip()


def _wrap(head: str, names: Iterable[str]) -> list[str]:
    return wrap(f"{head}: {', '.join(names)}", LINE_WIDTH, 2)


def _iter_differing(document: SweepDocument) -> Iterator[str]:
    """Yield the tests in which candidates differ: the outcome of each, and the number of tests by
    operator."""
    names = [c.name for c in document.candidates]
    differing = set(document.differ)
    groups = group_values(
        (tuple(str(r.status) for r in row.results), row.operator or row.test)
        for row in document.rows
        if row.test in differing
    )
    for words, operators in sorted(
        groups.items(), key=lambda g: [min(map(WORDS.index, g[0])), -len(g[1])]
    ):
        outcomes = ", ".join(f"{word} on {name}" for word, name in zip(words, names, strict=True))
        yield from _wrap(f"{count(operators, 'test')} {outcomes}", _count_names(operators))


def _count_names(names: Iterable[str]) -> list[str]:
    """Return the sorted names, each with its number: `Conv 3`, `Relu`."""
    return [f"{name} {n}" if n > 1 else name for name, n in sorted(Counter(names).items())]


def _iter_refusals(document: SweepDocument) -> Iterator[str]:
    """Yield the most frequent reasons for refusing.

    Reasons that differ only in names and numbers count as one.
    """
    for k, candidate in enumerate(document.candidates):
        refused = (row.results[k] for row in document.rows if row.results[k].status == "refused")
        reasons = group_values((VARYING.sub("…", cell.why), cell.why) for cell in refused)
        frequent = sorted(reasons.values(), key=len, reverse=True)[:MAX_REASONS]
        cells = [(str(len(same)), shorten(same[0], LINE_WIDTH)) for same in frequent]
        if cells:
            by = _make_suffix(document, candidate.name, "by")
            title = "reasons" if len(reasons) == len(cells) else "most frequent reasons"
            yield f"refused{by}, the {title}:"
            yield from (f"  {line}" for line in align_columns(cells, [0]))


def _iter_notes(document: SweepDocument) -> Iterator[str]:
    for k, candidate in enumerate(document.candidates):
        results = ((row.results[k], row.test) for row in document.rows)
        changed = group_values(((r.before, r.status), test) for r, test in results if r.before)
        for (before, status), names in changed.items():
            later = "right" if status == "unresolved" else status
            how = f"{before} after other models, {later} in a fresh process"
            yield from _wrap(f"{candidate.name}: {count(names, 'test')} {how}", names)
    plain = document.onnxruntime
    failing = plain.refuses + plain.crashes
    differing = plain.differs
    parts = [f"does not run {count(failing, 'test')}"] if failing else []
    if differing:
        parts.append(f"computes other values than expected in {count(differing, 'test')}")
    if parts:
        is_noise = document.criterion.partition(":")[0] == "noise"
        instead = ": there each test's own tolerance judges" if is_noise else ""
        yield f"plain onnxruntime {plain.version} {' and '.join(parts)}{instead}"
    cells = [
        (f"  {e.operator or 'network'}", e.test, shorten(e.why)) for e in differing[:MAX_LISTED]
    ]
    yield from align_columns(cells) if cells else ()
    if len(differing) > MAX_LISTED:
        yield f"  … and {len(differing) - MAX_LISTED:,} more: --json lists all"
    groups = group_values(
        (left_out.why, left_out.operator or left_out.test) for left_out in document.left_out
    )
    for why, operators in groups.items():
        yield from _wrap(f"left out, {count(operators, 'test')}: {why}", _count_names(operators))


def _iter_totals(document: SweepDocument) -> Iterator[str]:
    """Yield `204 tests of 61 operators: 160 right, 33 refused, 11 wrong` per candidate."""
    tests = document.tests
    operators = f" of {count(tests.operators, 'operator')}" if tests.operators else ""
    joint = " and" if operators else " of"
    networks = f"{joint} {count(tests.networks, 'network')}" if tests.networks else ""
    noun = "test" if tests.count == 1 else "tests"
    number = f"{tests.count:,} {noun}{operators}{networks}"
    for k, candidate in enumerate(document.candidates):
        totals = _count_by_word(candidate.totals)
        late = sum(
            r.results[k].status == "refused" and r.results[k].phase == "run" for r in document.rows
        )
        parts = [f"{totals[word]:,} {word}" for word in TOTALS if totals[word] or word in ALWAYS]
        name = f"{candidate.name}: " if len(document.candidates) > 1 else ""
        running = f"; {late:,} refused only while running" if late else ""
        yield f"{name}{number}: {', '.join(parts)}{running}"
        if any(totals[word] for word in BAD):
            yield f"cases {candidate.folder!s}/"
