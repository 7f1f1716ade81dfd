"""Upsample, and Resize before opset 11: no coordinate mode, so that targets choose one."""

from __future__ import annotations

from collections.abc import Iterator

from subgraph.inspection.lint import LintContext, LintIssue, note, warning
from subgraph.inspection.lint._places import LintNode

MODES = 11  # opset from which on a Resize says its coordinate mode
FIX = "export with opset 11 or later, as a Resize that names its coordinate_transformation_mode"


def check(asked: LintContext) -> Iterator[LintIssue]:
    """Each of them; a note where it repeats cells a whole number of times, which all targets do alike."""
    for place in asked.nodes("Upsample", "Resize"):
        if place.op == "Resize" and (place.version or MODES) >= MODES:
            continue
        mode, whole = place.attribute("mode", "nearest"), _whole(place)
        kind = "Upsample is deprecated since opset 10" if place.op == "Upsample" else "Resize of opset 10"
        if mode == "nearest" and whole:
            yield note(place, f"{kind}: newer converters may lack it", FIX)
        else:
            reason = f"{kind} and names no coordinate mode: it means asymmetric, many targets compute half_pixel"
            yield warning(place, f"{reason} (mode {mode})", FIX)


def _whole(place: LintNode) -> bool:
    """Are all scales known, and whole numbers?"""
    given = place.attribute("scales")
    scales = given if given is not None else place.constant(1)
    return scales is not None and len(scales) > 0 and all(float(s) >= 1 and float(s).is_integer() for s in scales)
