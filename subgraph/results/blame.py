"""The document of `subcut blame` (`subcut.blame/1`): plain data."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from subgraph.documents import CommandLine, File, Name, Version, Word, absent, keyed, part
from subgraph.types import StringMap, frozen, frozen_keywords
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


@frozen_keywords
class BlamedRuntime:
    """The candidate, and the runtime that it is."""

    candidate: str
    name: Word = keyed("runtime")
    version: Version


@frozen_keywords
class BlamedRegion:
    """The region that is wrong.

    Attributes:
        labels: of its nodes. whole: it is the whole model, of which no smaller region was found.
        nodes: the region's with their attributes: `'pool': AveragePool, ceil_mode=1`.
        signature, why: how it is wrong: mismatch, refused, crash ….
        seen: the element that is furthest off, expected beside got.
        pieces: where the whole does not decide: within what its pieces agree.
        differences: between the two models in the region.
    """

    labels: Sequence[Name] = keyed("region")
    ops: Sequence[Name]
    nodes: Sequence[Name] = ()
    whole: bool
    signature: Signature | None
    why: str
    seen: str = ""
    pieces: str | None = absent()
    differences: Sequence[str] = ()


@frozen_keywords
class BlamedCause:
    """The cause of a fault, and its cures.

    Attributes:
        kernels: without any optimization it is as wrong; None where that is not known.
        passes: minimal sets of names of passes, each of which cures the region. switches: names of
            options that do.
        attributes: those without each of which the candidate is right about what is left:
            `ceil_mode=1 of 'pool'`.
        versions: None where no releases were asked about.
        made_by: what made the candidate's model, if that was asked about; `passes` are its steps.
        is_model_wrong: the candidate's own model is wrong, and not what runs it.
    """

    kernels: bool | None
    passes: Sequence[Sequence[Name]]
    switches: Sequence[str]
    attributes: Sequence[str] = ()
    versions: Versions | None
    made_by: str = ""
    is_model_wrong: bool = False
    cures: Sequence[Cure]


@frozen
class BlameCost:
    """The cost beside the search's: runs of the candidate, and environments that were made."""

    runs: int
    installs: int
    seconds: float


@frozen_keywords
class BlameDocument:
    """The answer to the question why a region fails.

    Attributes:
        answer: Markdown to paste.
        environment: machine, and releases.
    """

    schema: Word = "subcut.blame/1"
    exit_code: int
    model: File
    outcome: Word
    runtime: BlamedRuntime = part()
    region: BlamedRegion = part()
    cause: BlamedCause = part()
    cost: BlameCost = part()
    answer: str
    notes: Sequence[str]
    case: File | None
    folder: str | None
    command: CommandLine
    environment: str = ""
