"""The document of `subcut blame` (`subcut.blame/1`): plain data."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from subgraph.documents import CommandLine, File, Name, Version, Word, absent, json_key, part
from subgraph.types import StringMap, frozen, frozen_keywords
from subgraph.verdict import Signature


class ReleaseState(StrEnum):
    """The outcome of a release on the region."""

    RIGHT = "right"
    WRONG = "wrong"
    UNKNOWN = "unknown"  # it cannot be tried, or its answer decides nothing


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
        kind: pass, switch, version or rewrite.
        what: The change in words.
        how: The option or the code with which a user makes the change.
        proven: Whether the full model agrees with it, on all samples and on the draws.
        heals: "whole" or "region".
        slowdown: Its time over that of the original; None if it was not measured.
        why: The result of the full model, if the cure is not proven.
        model: The file of the full model with a rewrite.
        equal: The change of the reference's outputs of the region through a rewrite, in words.
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
class ReleaseOutcomes:
    """Releases by their outcome on the region.

    Attributes:
        unknown: The reason why the outcome is not known, by release.
    """

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
    name: Word = json_key("runtime")
    version: Version


@frozen_keywords
class BlamedRegion:
    """The region that is wrong.

    Attributes:
        labels: The labels of its nodes.
        nodes: Its nodes with their attributes: `'pool': AveragePool, ceil_mode=1`.
        whole: Whether it is the full model, because no smaller region was found.
        signature: The way in which it is wrong: mismatch, refused, crash ….
        why: The same in words.
        seen: The element with the largest difference: expected and actual value.
        pieces: The limit within which its pieces agree, if the full model does not decide.
        differences: The differences between the two models in the region.
    """

    labels: Sequence[Name] = json_key("region")
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
        kernels: Whether it is as wrong without any optimization; None if that is not known.
        passes: Minimal sets of passes. To turn off the passes of one set cures the region.
        switches: The names of options that cure the region.
        attributes: Attributes without any one of which the candidate is right:
            `ceil_mode=1 of 'pool'`.
        versions: The releases that were tried; None if no release was.
        made_by: The tool that wrote the candidate's model, of which `passes` are the steps; "" if
            no tool was named.
        is_model_wrong: Whether the candidate's own model is wrong, and not the runtime.
    """

    kernels: bool | None
    passes: Sequence[Sequence[Name]]
    switches: Sequence[str]
    attributes: Sequence[str] = ()
    versions: ReleaseOutcomes | None
    made_by: str = ""
    is_model_wrong: bool = False
    cures: Sequence[Cure]


@frozen
class BlameCost:
    """The cost in addition to that of the search: runs of the candidate, new environments, time."""

    runs: int
    installs: int
    seconds: float


@frozen_keywords
class BlameDocument:
    """The answer to the question why a region fails.

    Attributes:
        answer: Markdown to paste.
        environment: The machine, and the releases.
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
