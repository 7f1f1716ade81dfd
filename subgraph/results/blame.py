"""The document of `subcut blame` (`subcut.blame/1`): plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from subgraph.documents import CommandLine, File, Name, Version, Word, absent
from subgraph.types import StringMap, frozen
from subgraph.verdict import Signature


class ReleaseState(StrEnum):
    """The outcome of a release on the region."""

    RIGHT = "right"
    WRONG = "wrong"
    UNKNOWN = "unknown"  # it cannot be tried, or its answer tells nothing


@frozen
class TriedRelease:
    """A release that was tried; `why`: what is wrong, or why it cannot be tried."""

    version: Version
    state: ReleaseState
    why: str = ""


@frozen
class Cure:
    """Something that heals the region, or the whole model.

    Attributes:
        kind: pass, switch, version or rewrite. what: the change, in words. how: as a user would
            make it.
        proven: the whole model agrees on all samples and on the draws.
        heals: whole or region.
        slowdown: its time over the original's; None where it was not measured.
        why: where it is not proven, what the whole model does with it.
        model: of a rewrite, the file of the whole model. equal: how the reference's outputs of the
            region stay.
    """

    kind: Word
    what: str
    how: str
    proven: bool
    heals: str
    slowdown: float | None = None
    why: str = ""
    model: File | None = absent()
    equal: str | None = absent()


@frozen
class Versions:
    """Releases by what they do with the region; `unknown`: why one cannot be told, by release."""

    wrong: Sequence[str]
    right: Sequence[str]
    unknown: StringMap
    first_wrong: str | None
    first_right: str | None
    releases: int
    tried: Sequence[TriedRelease]


@dataclass(frozen=True, kw_only=True)
class BlameDocument:
    """The cause of a fault, and its cures.

    Attributes:
        region: labels of its nodes. whole: it is the whole model, of which no smaller region was
            found.
        pieces: where the whole does not decide: within what its pieces agree.
        signature, why: how it is wrong: mismatch, refused, crash ….
        kernels: without any optimization it is as wrong; None where that is not known.
        passes: minimal sets of names of passes, each of which cures the region. switches: names of
            options that do.
        attributes: those without each of which the candidate is right about what is left:
            `ceil_mode=1 of 'pool'`.
        nodes: the region's with their attributes: `'pool': AveragePool, ceil_mode=1`.
        seen: the element that is furthest off, expected beside got. environment: machine, and
            releases.
        made_by: what made the candidate's model, if that was asked about; `passes` are its steps.
        is_model_wrong: the candidate's own model is wrong, and not what runs it.
        differences: between the two models in the region.
        versions: None where no releases were asked about.
        answer: Markdown to paste.
        runs: of the candidate for all this, beside the search's. installs: environments that were
            made.
    """

    schema: Word = "subcut.blame/1"
    exit_code: int
    model: File
    candidate: str
    runtime: Word
    version: Version
    outcome: Word
    region: Sequence[Name]
    ops: Sequence[Name]
    whole: bool
    signature: Signature | None
    why: str
    kernels: bool | None
    passes: Sequence[Sequence[Name]]
    switches: Sequence[str]
    versions: Versions | None
    cures: Sequence[Cure]
    answer: str
    notes: Sequence[str]
    case: File | None
    folder: str | None
    runs: int
    installs: int
    seconds: float
    command: CommandLine
    pieces: str | None = absent()
    attributes: Sequence[str] = ()
    nodes: Sequence[Name] = ()
    seen: str = ""
    environment: str = ""
    made_by: str = ""
    is_model_wrong: bool = False
    differences: Sequence[str] = ()
