"""Known wrong results of runtimes: files `RUNTIME/NAME.toml` to compare nodes of a model with.

An entry names an operator and the conditions of a node (`when`), the releases that were tried, and
the operator tests of the onnx package that fail in the wrong ones: it can be run again anywhere. It
is a hint, never a verdict.

    says = "with ceil_mode=1 the last window is left out"
    operator = "MaxPool"
    tests = ["test_maxpool_2d_ceil"]
    wrong = ["0.23.9"]
    right = []
    off = "FAIL, off by 40 % of the largest value"
    cure = "ceil_mode=0, and a Pad before it"
    thread = ""
    date = "2026-11-28"

    [when]
    ceil_mode = "1"

If no such test shows it, `[case]` has a model in onnx's text form, `model`, with inputs from `low`
to `high`. onnx's own evaluator judges it; nothing of an entry is code. A tensor without a producer
that is declared among the values of the text is a weight that is drawn like the inputs.
`[case.ranges]` has the range of a single tensor, `[case.values]` the fixed elements of an input.

`when` has attributes, with the operator's default if the node has none, and `set softcap` = "yes"
if one is not that default; `given strides` = "no" if the node does not state it; `type 0` and
`rank 0` of an input, `input 2` = "constant", "variable" or "none", `maker 0` = the operator of its
producer, or "input" of the model, `of 0 mode` = the `mode` of that producer, `outputs` = the number
of outputs that are read, `output 0` = "read", "unread" or "none", `opset below 13` = "yes".
`values` describes the values that show it: no node is known to have them, so such an entry is
listed, and no hint. `[unless]` has the same form: nodes that satisfy all of it were seen to be
right. A user's folder has the same form.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import field, fields, replace
from itertools import chain
from pathlib import Path

from subgraph.documents import from_json, parse_toml, read_text
from subgraph.errors import InputError, UnknownName
from subgraph.graph import opsets
from subgraph.iterables import flatten
from subgraph.log import log
from subgraph.storage.dtypes import TYPE_NUMBERS
from subgraph.text import clean, find_nearest
from subgraph.types import StringMap, frozen

HOME = Path(__file__).parent
MAX_TESTS = 2  # that a command names
# Keys that show the subject of a file; the rest of it is not read.
OPERATOR = re.compile(r'^operator *= *"(\w+)"', re.MULTILINE)
# Conditions that can be satisfied, as `KEY = VALUE`.
CONDITION = re.compile(
    r"(?P<of>of [0-9]{1,9} )*"
    r"(outputs = [0-9]+|values = .+|set (?P<set>\w+) = yes|given (?P<given>\w+) = (yes|no)"
    r"|opset below [0-9]{1,9} = yes|rank [0-9]{1,9} = [0-9]+"
    r"|input [0-9]{1,9} = (constant|variable|none)|output [0-9]{1,9} = (read|unread|none)|maker"
    r" [0-9]{1,9} = \w+"
    r"|type [0-9]{1,9} = (?P<type>\w+)|(?!(outputs|values) )(?P<attribute>\w+) = .+)",
    re.DOTALL,
)


@frozen
class KnownCase:
    """A model in onnx's text form, and the range of its inputs.

    Attributes:
        ranges: [low, high] of single inputs and weights.
        values: Elements of the inputs that are not drawn.
    """

    model: str
    low: float = -1.0
    high: float = 1.0
    seed: int = 0
    ranges: Mapping[str, Sequence[float]] = field(default_factory=dict)
    values: Mapping[str, Sequence[float]] = field(default_factory=dict)


@frozen
class Entry:
    """One thing that a runtime computes wrongly.

    Attributes:
        name: Name of the file, without its extension.
        runtime: Name of the backend or device, which is the name of the folder.
        says: The wrong behavior, a sentence that follows the operator.
        off: The size of the error, or the failure.
        tests: Tests of the onnx package that show it; empty for an entry with a case.
        wrong: Releases in which the tests failed.
        right: Releases in which the tests passed.
        when: Conditions of a node, as `inspection.lint.known` finds them.
        unless: Conditions under which a node is harmless.
        cure: A change with which the results were right.
        thread: Address of a public report.
    """

    operator: str
    says: str
    wrong: Sequence[str]
    date: str
    tests: Sequence[str] = ()
    right: Sequence[str] = ()
    off: str = ""
    cure: str = ""
    thread: str = ""
    when: StringMap = field(default_factory=dict)
    case: KnownCase | None = None
    name: str = ""
    runtime: str = ""
    unless: StringMap = field(default_factory=dict)

    @property
    def path(self) -> str:
        """`tract/lstm-direction-reverse`."""
        return f"{self.runtime}/{self.name}"

    @property
    def command(self) -> str:
        """The command that runs the tests; "" if the entry has only a case."""
        options = "".join(f" --only {test}" for test in self.tests[:MAX_TESTS])
        if options:
            return f"subcut sweep -c {self.runtime}{options}"
        return ""

    def format_releases(self, own: str) -> str:
        """Return `wrong in 0.23.9`, and what is known of the user's own release."""
        tried = f"wrong in {', '.join(self.wrong)}"
        tried += f", right in {', '.join(self.right)}" if self.right else ""
        own = self._as_tried(own)
        if not own or own in self.wrong:
            return tried
        outcome = "right" if own in self.right else "not tried"
        return f"{tried}; {own} was {outcome}"

    def _as_tried(self, own: str) -> str:
        """Return the release that was tried, if this is a package of it: 5.0.0.93 of OpenCV
        5.0.0."""
        return next((v for v in (*self.wrong, *self.right) if own.startswith(f"{v}.")), own)

    def was_tried(self, own: str) -> bool:
        """Return whether this release, or the release of this package, was run."""
        return self._as_tried(own) in (*self.wrong, *self.right)

    def is_over(self, own: str) -> bool:
        """Return whether this release is right: as tried, or as its nearest tried neighbors are."""
        if not own or self.was_tried(own):
            return self._as_tried(own) in self.right
        tried = sorted((*self.wrong, *self.right), key=parse_release)
        place = bisect(tried, parse_release(own), key=parse_release)
        return {*tried[max(0, place - 1) : place + 1]} <= {*self.right}


def list_entries(
    folders: Iterable[Path] = (), runtime: str = "*", operators: Container[str] | None = None
) -> list[Entry]:
    """Return the entries of a runtime, or of all: subcut's own, then those of a user's folders.

    A broken entry is omitted with a warning. An entry of the user replaces ours of the same path.
    With `operators`, files of other operators are not parsed, which takes most of the time.
    """
    entries = {}
    homes = (sorted(home.glob(f"{runtime}/*.toml")) for home in (HOME, *folders))
    for file in flatten(homes):
        try:
            text = _read_text(file)
            named = OPERATOR.search(text)
            if operators is None or named is None or named[1] in operators:
                entry = _parse_entry(file, text)
                entries[entry.path] = entry
            else:
                entries.pop(f"{file.parent.name}/{file.stem}", None)
        except InputError as e:
            log.warning("%s is left out: %s", clean(str(file)), e.what)
    return list(entries.values())


def read(file: Path) -> Entry:
    """Return the entry in a file.

    Raises:
        InputError: The file cannot be read, or is not an entry.
    """
    return _parse_entry(file, _read_text(file))


def _read_text(file: Path) -> str:
    try:
        return read_text(file)
    except (OSError, ValueError) as e:
        raise InputError(f"it cannot be read: {e}", code="known.unreadable") from e


def _parse_entry(file: Path, text: str) -> Entry:
    try:
        table = parse_toml(text)
    except ValueError as e:
        raise InputError(f"it cannot be read: {e}", code="known.unreadable") from e
    keys = {f.name for f in fields(Entry)} - {"name", "runtime"}
    if unknown := sorted(table.keys() - keys):
        raise InputError(
            f"'{unknown[0]}' is not part of an entry",
            f"known: {', '.join(sorted(keys))}",
            code="known.unknown-key",
        )
    entry = from_json(Entry, table, "the entry")
    if not (entry.tests or entry.case) or not entry.wrong:
        raise InputError(
            "it names no test and has no case, or no release is wrong: nothing shows it",
            code="known.no-evidence",
        )
    if HOME not in file.parents:  # a test checks our own entries; onnx's schemas take 0.4 s to load
        versions = opsets.list_schema_versions(entry.operator, "")
        attributes = set(flatten(version.attributes for version in versions))
        for key, value in chain(entry.when.items(), entry.unless.items()):
            match = CONDITION.fullmatch(f"{key} = {value}")
            if match is None or match["type"] not in (None, *TYPE_NUMBERS):
                raise InputError(
                    f"no node can have '{key}' = '{value}'",
                    "docs/known.md has the forms",
                    code="known.wrong-condition",
                )
            name = match["set"] or match["given"] or match["attribute"]
            if versions and name and not match["of"] and name not in attributes:
                raise InputError(
                    f"{entry.operator} has no attribute '{name}'",
                    f"it has {', '.join(sorted(attributes))}",
                    code="known.wrong-condition",
                )
    return replace(entry, name=file.stem, runtime=file.parent.name)


def parse_release(version: str) -> list[int]:
    """Return the numbers in a release's name, in their order: releases are compared by them."""
    return [int(n) for n in re.findall(r"\d+", version)]


def find_runtime(backend: str, device: str) -> str:
    """Return the folder of a candidate's entries: the name of its device, of its backend, or of
    that one's Python file."""
    return device or Path(backend).stem


def find(name: str, among: Sequence[Entry]) -> Entry:
    """Return the entry of a name, `NAME` or `RUNTIME/NAME`.

    Args:
        name: The entry's name or path.
        among: The entries to search.

    Raises:
        UnknownName: There is no such entry, or several runtimes have one; carries the nearest.
    """
    entries = [e for e in among if name in (e.name, e.path)]
    if len(entries) == 1:
        return entries[0]
    if entries:
        raise UnknownName(
            f"several runtimes have '{name}'",
            nearest=[e.path for e in entries],
            code="known.ambiguous",
        )
    raise UnknownName(
        f"no entry '{name}'",
        nearest=find_nearest(name, [e.name for e in among]),
        code="known.no-entry",
    )
