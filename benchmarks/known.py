"""Run the tests of the entries in `subgraph/inspection/known/` on releases, and write the files and
pages.

    python -m benchmarks.known [--all] [tract==0.22.0 …]     without arguments: only the pages

A release goes into the entry's `wrong` or `right`; one that refuses all of an entry's tests into
neither. Only entries that do not name it yet are run, or `--all`: take the releases out of an entry
whose case or tests are changed.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.known_case import examples
from subgraph.commands.lint import find_release
from subgraph.inspection import known
from subgraph.inspection.known import HOME, Entry, parse_release
from subgraph.questions.sweep.sweep import BAD, open_sweep
from subgraph.results.sweep import SweepOutcome
from subgraph.runtime.candidate import Candidate, parse

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "known.md"
FOLDER = ROOT / "docs" / "known"
ALL = "--all"
MARK = "<!-- `python -m benchmarks.known` writes this table, and the page of each runtime -->"


def tried(candidate: Candidate, entries: Sequence[Entry]) -> list[Entry]:
    """The entries with what their tests say of this release."""
    tests = sorted({test for entry in entries for test in entry.tests})
    with (
        tempfile.TemporaryDirectory() as folder,
        open_sweep([candidate], Path(folder), only=tests or None) as sweep,
    ):
        version = sweep.candidates[0].about.version.partition(" ")[0]
        outcomes = {row.test.name: row.results[0].outcome for row in sweep.rows()}
        for entry, example in examples(entries, sweep.scratch):
            outcomes[entry.path] = sweep.result(sweep.candidates[0], example).outcome
    date = datetime.now(UTC).date().isoformat()
    ends = [
        Counter(outcomes[name] for name in (*entry.tests, entry.path) if name in outcomes)
        for entry in entries
    ]
    return [_with(entry, version, end, date) for entry, end in zip(entries, ends, strict=True)]


def _with(entry: Entry, version: str, ends: Counter[SweepOutcome], date: str) -> Entry:
    is_wrong = any(outcome in BAD for outcome in ends)
    is_right = bool(ends) and set(ends) == {SweepOutcome.RIGHT}
    if not (is_wrong or is_right):
        return entry
    wrong, right = ({*releases} - {version} for releases in (entry.wrong, entry.right))
    (wrong if is_wrong else right).add(version)
    if not wrong:
        print(
            f"{entry.path}: its one wrong release, {version}, is right; read it, and correct it or"
            " take it away"
        )
        return entry
    return replace(
        entry,
        wrong=sorted(wrong, key=parse_release),
        right=sorted(right, key=parse_release),
        date=date,
    )


def render(entry: Entry) -> str:
    """The entry's file."""
    lines = [
        f"{f.name} = {_toml(getattr(entry, f.name))}"
        for f in fields(entry)
        if f.name not in ("name", "runtime", "when", "unless", "case") and getattr(entry, f.name)
    ]
    if (case := entry.case) is not None:
        numbers = [f"{word} = {getattr(case, word)}" for word in ("low", "high", "seed")]
        lines += ["", "[case]", *numbers, f"model = '''\n{case.model}'''"]
        for word, given in (("ranges", case.ranges), ("values", case.values)):
            lines += ["", f"[case.{word}]"] if given else []
            lines += [f"{_toml(name)} = [{', '.join(map(str, of))}]" for name, of in given.items()]
    for word, table in (("when", entry.when), ("unless", entry.unless)):
        lines += ["", f"[{word}]"] if table else []
        lines += [f"{_toml(key)} = {_toml(value)}" for key, value in table.items()]
    return "\n".join(lines) + "\n"


def _toml(value: str | Sequence[str]) -> str:
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if len(value) == 1:
        return f"[{_toml(value[0])}]"
    return "[\n" + "".join(f"    {_toml(v)},\n" for v in value) + "]"


def table(entries: Sequence[Entry]) -> str:
    lines = [
        "| entry | nodes | what | wrong in | right in | tried | thread |",
        "|---|---|---|---|---|---|---|",
    ]
    for e in entries:
        when = ", ".join(f"{key}={value}" for key, value in e.when.items())
        unless = ", ".join(f"{key}={value}" for key, value in e.unless.items())
        nodes = f"{e.operator}{f', {when}' if when else ''}{f'; not {unless}' if unless else ''}"
        cells = [
            f"`{e.path}`",
            nodes,
            f"{e.says}: {e.off}",
            ", ".join(e.wrong),
            ", ".join(e.right),
            e.date,
            _link(e.thread),
        ]
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines)


def _link(thread: str) -> str:
    """`openvino #35829`, which leads there."""
    repository, _, number = thread.removeprefix("https://github.com/").rpartition("/issues/")
    return f"[{repository.rpartition('/')[2]} #{number}]({thread})" if thread else ""


def write_pages() -> None:
    """Write a page per runtime in docs/known/, and the table of these pages in docs/known.md."""
    every = known.list_entries()
    head = PAGE.read_text(encoding="utf-8").partition(MARK)[0]
    runtimes = list(dict.fromkeys(entry.runtime for entry in every))
    FOLDER.mkdir(exist_ok=True)
    rows = ["| runtime | entries | with a public thread |", "|---|--:|--:|"]
    for runtime in runtimes:
        entries = [entry for entry in every if entry.runtime == runtime]
        threads = sum(bool(entry.thread) for entry in entries)
        rows.append(f"| [{runtime}](known/{runtime}.md) | {len(entries)} | {threads} |")
        title = f"# Known wrong: {runtime}"
        origin = "Each row was seen in a run: [known](../known.md)."
        text = f"{title}\n\n{origin}\n\n{table(entries)}\n"
        (FOLDER / f"{runtime}.md").write_text(text, encoding="utf-8")
    links = [f"known/{runtime}" for runtime in runtimes]
    tree = "\n".join(["```{toctree}", ":hidden:", "", *links, "```"])
    table_of_pages = "\n".join(rows)
    PAGE.write_text(f"{head}{MARK}\n\n{table_of_pages}\n\n{tree}\n", encoding="utf-8")


def main(words: Sequence[str]) -> int:
    for spec in (word for word in words if word != ALL):
        candidate = replace(parse(spec), timeout=30.0)
        release = find_release(candidate)
        every = known.list_entries(runtime=known.find_runtime(candidate.backend, candidate.device))
        entries = [e for e in every if ALL in words or not e.was_tried(release)]
        for entry in tried(candidate, entries) if entries else ():
            (HOME / f"{entry.path}.toml").write_text(render(entry), encoding="utf-8")
        print(f"{spec}: {len(entries)} of {len(every)} entries tried")
    write_pages()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
