"""The document of `subcut blame` (`subcut.blame/1`): plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from subgraph.blame.cures import Cure
from subgraph.blame.versions import Tried
from subgraph.verdict import Signature

SCHEMA = "subcut.blame/1"


@dataclass(frozen=True)
class Versions:
    """Releases by what they do with the region; `unknown`: why one cannot be told, by release."""

    wrong: Sequence[str]
    right: Sequence[str]
    unknown: Mapping[str, str]
    first_wrong: str | None
    first_right: str | None
    releases: int
    tried: Sequence[Tried]


@dataclass(frozen=True, kw_only=True)
class BlameDocument:
    """What is to blame, and what cures it.

    Attributes:
        region: labels of its nodes. whole: it is the whole model, of which no smaller region was found.
        signature, why: how it is wrong: mismatch, refused, crash ….
        kernels: without any optimisation it is as wrong; None where that is not known.
        passes: minimal sets of names of passes, each of which cures the region. switches: names of options that do.
        versions: None where no releases were asked about.
        answer: Markdown to paste. script: Python that shows it, for the case's folder.
        runs: of the candidate for all this, beside the search's. installs: environments that were made.
    """

    schema: str = SCHEMA
    exit_code: int
    model: str
    candidate: str
    runtime: str
    version: str
    outcome: str
    region: Sequence[str]
    ops: Sequence[str]
    whole: bool
    signature: Signature | None
    why: str
    kernels: bool | None
    passes: Sequence[Sequence[str]]
    switches: Sequence[str]
    versions: Versions | None
    cures: Sequence[Cure]
    answer: str
    script: str
    notes: Sequence[str]
    case: str | None
    folder: str | None
    runs: int
    installs: int
    seconds: float
    command: str
