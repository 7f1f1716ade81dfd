"""Resize in a coordinate or rounding mode that targets compute otherwise."""

from __future__ import annotations

from collections.abc import Iterator

from subgraph.inspection.lint import LintContext, LintIssue, note, warning
from subgraph.inspection.lint._places import LintNode
from subgraph.inspection.lint._resize import CLOSE, COORDINATES, ROUNDED, Axis, axes

COMMON = "half_pixel"  # of interpolation; of plain nearest it is asymmetric, rounded down
FIRST = 11  # opset; `upsample` tells of older ones
# What of TensorFlow Lite comes out as that mode.
BILINEAR = {
    "align_corners": " (TFLite's ResizeBilinear with align_corners)",
    "asymmetric": " (TFLite's ResizeBilinear with neither align_corners nor half_pixel_centers)",
}
NEIGHBOUR = {
    "align_corners": " (TFLite's ResizeNearestNeighbor with align_corners)",
    "tf_half_pixel_for_nn": " (TFLite's ResizeNearestNeighbor with half_pixel_centers)",
}
HALF_PIXEL = "export with half_pixel (PyTorch: align_corners=False; TensorFlow: half_pixel_centers=True), or compare"
PLAIN = "use a whole scale with asymmetric and floor, which all targets compute alike, or compare this node there"


def check(asked: LintContext) -> Iterator[LintIssue]:
    """Each Resize whose mode makes a difference for its sizes: where all modes read the same cells, nothing."""
    for place in asked.nodes("Resize"):
        if (place.version or FIRST) < FIRST:
            continue
        mode = place.attribute("mode", "nearest")
        coordinates = place.attribute("coordinate_transformation_mode", "half_pixel")
        if mode is None or coordinates is None:
            continue
        known = axes(place)
        if known == []:
            continue  # nothing changes its size
        yield from _nearest(place, coordinates, known) if mode == "nearest" else _between(place, coordinates, known)
        yield from _extras(place, mode, known)


def _between(place: LintNode, mode: str, known: list[Axis] | None) -> Iterator[LintIssue]:
    """Linear and cubic: positions against those of half_pixel."""
    if mode not in COORDINATES:
        yield _special(place, mode)
    elif mode == "pytorch_half_pixel" and known is None:
        return  # differs for outputs of one cell only
    elif mode != COMMON and (known is None or any(_apart(axis, mode) for axis in known)):
        kind = place.attribute("mode")
        reason = f"{kind} with {mode}{BILINEAR.get(mode, '')}: targets that compute half_pixel give shifted values"
        yield warning(place, reason, HALF_PIXEL)


def _apart(axis: Axis, mode: str) -> bool:
    return any(abs(a - b) > CLOSE for a, b in zip(axis.reads(mode), axis.reads(COMMON), strict=True))


def _nearest(place: LintNode, mode: str, known: list[Axis] | None) -> Iterator[LintIssue]:
    """Cells that are picked against those of asymmetric with floor."""
    rounding = place.attribute("nearest_mode", "round_prefer_floor")
    if mode not in COORDINATES:
        yield _special(place, mode)
        return
    if rounding not in ROUNDED or (mode, rounding) == ("asymmetric", "floor"):
        return
    said = f"nearest with {mode}{NEIGHBOUR.get(mode, '')} and {rounding}"
    if known is None:
        reason = f"{said}, sizes open: for some of them targets that round otherwise pick neighbouring cells"
        yield note(place, reason, PLAIN)
        return
    pairs = [p for a in known for p in zip(a.picks(mode, rounding), a.picks("asymmetric", "floor"), strict=True)]
    other = sum(ours != plain for ours, plain in pairs)
    if other:
        reason = f"{said}: targets with plain nearest (asymmetric, floor) pick another cell at {other} of {len(pairs)}"
        yield warning(place, f"{reason} positions", PLAIN)


def _special(place: LintNode, mode: str) -> LintIssue:
    reason = f"coordinate mode {mode}, which few targets have: others resize the whole input"
    return warning(place, reason, "crop with Slice first, then Resize with half_pixel")


def _extras(place: LintNode, mode: str, known: list[Axis] | None) -> Iterator[LintIssue]:
    """Settings beside the coordinates."""
    if place.attribute("antialias", 0) == 1 and (known is None or any(axis.scale < 1 for axis in known)):
        reason = "antialias=1: most targets ignore it, and sample without a filter"
        yield warning(place, reason, "filter with an AveragePool or a convolution first, and set antialias=0")
    if place.attribute("keep_aspect_ratio_policy", "stretch") not in (None, "stretch"):
        reason = "keep_aspect_ratio_policy: targets that ignore it give another size"
        yield warning(place, reason, "give the sizes that it comes to")
    if mode == "cubic":
        a = place.attribute("cubic_coeff_a", -0.75)
        reason = f"cubic with cubic_coeff_a={a:g}: PyTorch and OpenCV take -0.75, TensorFlow and PIL -0.5"
        yield note(place, reason, "compare this node on the target, or use linear")
    if mode != "nearest" and place.attribute("exclude_outside", 0) == 1:
        reason = "exclude_outside=1, which few targets have: they differ along the edge"
        yield note(place, reason, "set it to 0, or compare this node on the target")
