"""The document of a sweep: each test on each candidate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Literal, TypeAlias

from subgraph.documents import CommandLine, File, Name, Number, Version, Word, json_key
from subgraph.results.common import RuntimeDocument
from subgraph.types import frozen, frozen_keywords
from subgraph.verdict import Signature


class SweepOutcome(StrEnum):
    """The outcome of a test, the most interesting first."""

    WRONG = "wrong"
    CRASHED = "crashed"  # the process ended
    TIMEOUT = "timeout"
    UNRESOLVED = "unresolved"
    REFUSED = "refused"  # an error while building or running; the process lives
    RIGHT = "right"


Totals: TypeAlias = Mapping[SweepOutcome, int]  # tests by outcome, all outcomes


@frozen
class TestsEntry:
    """The tests that ran: onnx's version, and numbers of tests, operators, networks and omitted
    tests."""

    onnx: Version
    count: int
    operators: int
    networks: int
    left_out: int


@frozen
class CandidateEntry(RuntimeDocument):
    """One candidate; `seconds` to build and run all tests, `folder` of its cases."""

    totals: Totals
    seconds: float
    folder: str | None


@frozen
class OperatorEntry:
    """One operator, with totals per candidate."""

    operator: Name
    domain: Name
    tests: int
    totals: Sequence[Totals]


@frozen
class NamedTest:
    """A test, and the reason why it is not run, or the difference between the expected outputs and
    those of plain onnxruntime."""

    test: Name
    operator: Name
    why: str


@frozen
class OnnxruntimeEntry:
    """Plain onnxruntime on all tests: numbers of tests, and those that differ."""

    version: Version
    agrees: int
    refuses: int
    crashes: int
    differs: Sequence[NamedTest]


@frozen_keywords
class ResultEntry:
    """One test on one candidate.

    Attributes:
        judged_by: The criterion, or the test's own tolerance.
        phase: The phase, build or run, in which a test without outputs ended.
        before: The outcome in a process that had run other models, if a fresh process ended
            otherwise. The status is that of the fresh process, and unresolved if that was right.
        output: The worst output.
        errors: Its errors by metric.
        case: The folder of a test that is wrong, crashes or hangs.
    """

    status: SweepOutcome
    signature: Signature | None
    why: str
    judged_by: str | None
    phase: Word | None = json_key("while")
    before: str | None
    output: Name | None
    errors: Mapping[str, Number]
    build_seconds: float
    run_seconds: float
    case: File | None


@frozen
class RowEntry:
    """One test, a "node" or a "network", with a result per candidate.

    `onnxruntime`: how plain onnxruntime ended on it: agrees, near, differs, refuses or crashes.
    """

    test: Name
    operator: Name
    domain: Name
    kind: Word
    onnxruntime: Word
    results: Sequence[ResultEntry]


@frozen_keywords
class SweepDocument:
    """A full sweep.

    Attributes:
        networks: The totals of the networks, per candidate.
        differ: The tests with another outcome on one candidate than on the others.
    """

    schema: Literal["subcut.sweep/1"] = "subcut.sweep/1"
    exit_code: int
    command: CommandLine
    criterion: str
    only: Sequence[str]
    tests: TestsEntry
    candidates: Sequence[CandidateEntry]
    operators: Sequence[OperatorEntry]
    networks: Sequence[Totals]
    differ: Sequence[str]
    onnxruntime: OnnxruntimeEntry
    left_out: Sequence[NamedTest]
    rows: Sequence[RowEntry]
