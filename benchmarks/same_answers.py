"""Does a change keep every answer of the command line? Run many command lines before and after, and
compare.

    python -m benchmarks.same_answers run OUT [--subcut PATH] [--only GLOB] [--given OUT2]
    python -m benchmarks.same_answers compare A B [--only GLOB] [--lines N] [--no-files]

`run` prepares the folders of `fixtures.given`, runs the command lines of `same_answers.txt` in
fresh copies of them, two groups at a time, and keeps per command the exit code, standard output,
standard error, and each file that was written, changed or removed. Times, paths, memory and
versions are masked (`benchmarks.answers`). With `--given` the folders that an earlier run prepared
are used, so that a change of the fixtures changes no answer. PATH is the `subcut` of any
environment; without it, the one beside this Python.

`compare` shows for each command what differs, as a unified diff; JSON is compared as parsed values.
A command that was not run before, or is no longer, is named. Exit code 1 if anything differs.

Typical use: `run build/before --subcut BASE/.venv/bin/subcut` once, then after each step
`run build/after --given build/before` and `compare build/before build/after`. Both runs belong on
one machine: errors of floating point are compared digit by digit.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from benchmarks import answers
from fixtures import ROOT, given, graphs

LIST = Path(__file__).with_suffix(".txt")
LIMIT = 120  # seconds per command
JOBS = 2  # groups at a time
HARMLESS = ("PATH", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH")  # variables that commands see
ROWS = 20  # of the table of hard models, in a group


@dataclass(frozen=True)
class Group:
    """Commands that run one after another in a copy of one folder."""

    title: str
    folder: str
    commands: tuple[str, ...]


@dataclass
class Answer:
    """What one command did; `files`: path -> digest of what was written, "removed" if it is
    gone."""

    command: str
    code: int | str
    out: str
    err: str
    files: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True)
class Runner:
    """Where commands run: the command under test, the prepared folders, where answers go."""

    subcut: Path
    prepared: Path
    out: Path
    limit: float

    @property
    def python(self) -> Path:
        return self.subcut.with_name("python")


def groups() -> Iterator[Group]:
    """Those of the text file, then the table of hard models."""
    text = LIST.read_text(encoding="utf-8").replace("\n    ", " ")
    for part in text.split("\n[")[1:]:
        head, *lines = part.splitlines()
        folder, title = head.split("] ")
        yield Group(
            f"{folder}: {title}", folder, tuple(line for line in lines if line and line[0] != "#")
        )
    rows = [_row(k) for k in range(len(graphs.CASES))]
    for first in range(0, len(rows), ROWS):
        yield Group(f"table: rows from {first}", "table", tuple(rows[first : first + ROWS]))


def _row(k: int) -> str:
    """The cut of a row of the table of hard models."""
    case = graphs.CASES[k]
    ends = [*(f"--start={word}" for word in case.start), *(f"--end={word}" for word in case.end)]
    return shlex.join(
        ["in", given.table_name(k), "subcut", "cut", "model.onnx", *ends, *case.options]
    )


# Running


def run(
    out: Path, subcut: Path, *, only: str, prepared: Path | None, jobs: int, limit: float
) -> None:
    """Run the groups whose titles match, and write their answers below a folder, in the place of
    earlier ones."""
    chosen = [group for group in groups() if fnmatch(group.title, only)]
    out.mkdir(parents=True, exist_ok=True)
    if prepared is None:
        prepared = out / "given"
        for name in sorted(
            {group.folder for group in chosen if not (prepared / group.folder).exists()}
        ):
            given.write(name, prepared / name, subcut)
    runner = Runner(subcut.absolute(), prepared.absolute(), out, limit)
    began = time.monotonic()
    with ThreadPoolExecutor(jobs) as threads:
        for group, found in zip(
            chosen, threads.map(lambda g: run_group(runner, g), chosen), strict=True
        ):
            print(
                f"{sum(a.seconds for a in found):6.1f} s  {len(found):3} commands  {group.title}",
                flush=True,
            )
    print(f"{sum(len(g.commands) for g in chosen)} commands in {time.monotonic() - began:.0f} s")


def run_group(runner: Runner, group: Group) -> list[Answer]:
    """Run the commands of a group in a fresh copy of its folder; their answers, also written."""
    with tempfile.TemporaryDirectory(prefix="same-answers-") as place:
        here = Path(place, "here")
        home = Path(place, "home")
        shutil.copytree(runner.prepared / group.folder, here, symlinks=True)
        home.mkdir()
        places = {
            str(here): "<here>",
            str(home): "<home>",
            str(runner.prepared): "<given>",
            str(runner.subcut.parent.parent): "<environment>",
            str(runner.subcut.parents[2]): "<project>",
            str(ROOT): "<project>",
            sys.base_prefix: "<python>",
        }
        found = [_answer(runner, command, here, home, places) for command in group.commands]
    path = runner.out / f"{_file_name(group.title)}.json"
    document = {"title": group.title, "answers": [asdict(answer) for answer in found]}
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False), encoding="utf-8")
    return found


def _answer(
    runner: Runner, command: str, here: Path, home: Path, places: Mapping[str, str]
) -> Answer:
    """Run one command to its end, or to the limit of time."""
    words = shlex.split(command)
    folder = here
    if words[0] == "in":
        folder, words = here / words[1], words[2:]
    program = {"subcut": runner.subcut, "python": runner.python}[words[0]]
    before = answers.files(here)
    began = time.monotonic()
    code, out, err = _ended(
        [str(program), *words[1:]], folder, _environment(runner, home), runner.limit
    )
    answer = Answer(
        command, code, answers.answer_text(out, places), answers.answer_text(err, places)
    )
    answer.seconds = round(time.monotonic() - began, 2)
    after = answers.files(here)
    answer.files = {name: "removed" for name in before if name not in after}
    for name in (name for name, state in after.items() if before.get(name) != state):
        answer.files[name] = _kept(runner, name, (here / name).read_bytes(), places)
    return answer


def _kept(runner: Runner, name: str, data: bytes, places: Mapping[str, str]) -> str:
    """The digest of a file; its text goes to contents/."""
    digest, text = answers.content(name, data, places)
    if text is not None:
        path = runner.out / "contents" / digest
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return digest


def _ended(
    words: Sequence[str], folder: Path, env: Mapping[str, str], limit: float
) -> tuple[int | str, str, str]:
    """Exit code, or "limit", and both streams; what a command has started ends with it."""
    process = subprocess.Popen(
        words,
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=limit)
        code: int | str = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        code = "limit"
    return code, out.decode("utf-8", "replace"), err.decode("utf-8", "replace")


def _environment(runner: Runner, home: Path) -> dict[str, str]:
    """Few variables; nothing is fetched from the network."""
    kept = {name: value for name, value in os.environ.items() if name in HARMLESS}
    return kept | {
        "PATH": f"{runner.subcut.parent}{os.pathsep}{kept.get('PATH', '')}",
        "HOME": str(home),
        "XDG_CACHE_HOME": str(home / "cache"),
        "XDG_CONFIG_HOME": str(home / "config"),
        "PIP_NO_INDEX": "1",
        "UV_OFFLINE": "1",
        "PYTHONIOENCODING": "utf-8",
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
    }


def _file_name(title: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in title)


# Comparing


def compare(a: Path, b: Path, *, only: str, lines: int, with_files: bool) -> int:
    """Print how the answers of two runs differ; how many commands do."""
    before = read(a)
    after = read(b)
    counts = {"same": 0, "different": 0, "only in one": 0}
    for key in dict.fromkeys([*before, *after]):
        if not fnmatch(key[0], only):
            continue
        if key not in before or key not in after:
            counts["only in one"] += 1
            print(f"\n=== {key[0]}\n$ {key[1]}\n  only in {a if key in before else b}")
            continue
        told = list(differences(before[key], after[key], a, b, lines, with_files))
        counts["different" if told else "same"] += 1
        if told:
            print(f"\n=== {key[0]}\n$ {key[1]}", *told, sep="\n")
    print("\n" + ", ".join(f"{count} {word}" for word, count in counts.items()))
    return counts["different"] + counts["only in one"]


def read(folder: Path) -> dict[tuple[str, str, int], Answer]:
    """Title, command and how often it has come in its group before -> its answer."""
    found: dict[tuple[str, str, int], Answer] = {}
    for path in sorted(folder.glob("*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        for answer in (Answer(**fields) for fields in document["answers"]):
            repeated = sum(key[:2] == (document["title"], answer.command) for key in found)
            found[document["title"], answer.command, repeated] = answer
    return found


def differences(
    old: Answer, new: Answer, a: Path, b: Path, lines: int, with_files: bool
) -> Iterator[str]:
    """What differs between two answers, a text each."""
    if old.code != new.code:
        yield f"  exit code {old.code} -> {new.code}"
    for stream, left, right in (("stdout", old.out, new.out), ("stderr", old.err, new.err)):
        yield from _diff(stream, left, right, lines)
    for name in sorted({*old.files, *new.files} if with_files else ()):
        left = old.files.get(name, "not written")
        right = new.files.get(name, "not written")
        if left != right:
            yield f"  file {name}: {left} -> {right}"
            yield from _diff(name, _text(a, left), _text(b, right), lines)


def _text(folder: Path, digest: str) -> str:
    path = folder / "contents" / digest
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _diff(what: str, left: str, right: str, lines: int) -> Iterator[str]:
    """A unified diff, the first lines of it."""
    if left == right:
        return
    found = list(
        difflib.unified_diff(left.splitlines(), right.splitlines(), what, what, lineterm="", n=1)
    )
    yield from (f"    {line[:300]}" for line in found[:lines])
    if len(found) > lines:
        yield f"    … {len(found) - lines} more lines"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, or compare."""
    options = _options(arguments)
    if options.job == "compare":
        found = compare(
            options.a, options.b, only=options.only, lines=options.lines, with_files=options.files
        )
        return 1 if found else 0
    prepared = options.given and (
        options.given / "given" if (options.given / "given").is_dir() else options.given
    )
    run(
        options.out,
        options.subcut,
        only=options.only,
        prepared=prepared,
        jobs=options.jobs,
        limit=options.limit,
    )
    return 0


def _options(arguments: Sequence[str] | None) -> Any:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    jobs = parser.add_subparsers(dest="job", required=True)
    runs = jobs.add_parser("run", help="run the commands and keep their answers")
    runs.add_argument(
        "out", type=Path, metavar="OUT", help="a new folder; in an old one, groups are run again"
    )
    runs.add_argument(
        "--subcut", type=Path, default=Path(sys.executable).with_name("subcut"), metavar="PATH"
    )
    runs.add_argument(
        "--given", type=Path, metavar="OUT2", help="an earlier run, whose prepared folders are used"
    )
    runs.add_argument(
        "--jobs", type=int, default=JOBS, metavar="N", help="groups at a time (default 2)"
    )
    runs.add_argument(
        "--limit", type=float, default=LIMIT, metavar="SECONDS", help="per command (default 120)"
    )
    compares = jobs.add_parser("compare", help="show what differs between two runs")
    compares.add_argument("a", type=Path, metavar="A")
    compares.add_argument("b", type=Path, metavar="B")
    compares.add_argument(
        "--lines", type=int, default=30, metavar="N", help="of a diff that are shown (default 30)"
    )
    compares.add_argument(
        "--no-files", dest="files", action="store_false", help="compare exit codes and streams only"
    )
    for job in (runs, compares):
        job.add_argument(
            "--only", default="*", metavar="GLOB", help="only groups whose title matches"
        )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
