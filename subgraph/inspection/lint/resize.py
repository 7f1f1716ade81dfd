"""Resize in a coordinate or rounding mode that targets compute otherwise."""

from __future__ import annotations

from collections.abc import Iterator

from subgraph.inspection.lint import LintContext, LintIssue, note, warning
from subgraph.inspection.lint._places import LintNode
from subgraph.inspection.lint._resize import CLOSE, COORDINATES, ROUNDED, Axis, axes

# what targets compute for linear and cubic; for nearest it is asymmetric with floor
COMMON = "half_pixel"
FIRST_OPSET = 11  # rule `upsample` reports older ones
# Coordinate mode → operators of TensorFlow Lite that are exported with it.
BILINEAR = {
    "align_corners": " (TFLite's ResizeBilinear with align_corners)",
    "asymmetric": " (TFLite's ResizeBilinear with neither align_corners nor half_pixel_centers)",
}
NEIGHBOR = {
    "align_corners": " (TFLite's ResizeNearestNeighbor with align_corners)",
    "tf_half_pixel_for_nn": " (TFLite's ResizeNearestNeighbor with half_pixel_centers)",
}
HALF_PIXEL = (
    "export with half_pixel (PyTorch: align_corners=False; TensorFlow: half_pixel_centers=True), or"
    " compare"
)
PLAIN = (
    "use a whole scale with asymmetric and floor, which all targets compute alike, or compare this"
    " node there"
)


def check(context: LintContext) -> Iterator[LintIssue]:
    """Each Resize whose mode makes a difference at its sizes; none where all modes read the same cells."""  # noqa: E501
    for node in context.nodes("Resize"):
        if (node.version or FIRST_OPSET) < FIRST_OPSET:
            continue
        mode = node.attribute("mode", "nearest")
        coordinates = node.attribute("coordinate_transformation_mode", "half_pixel")
        if mode is None or coordinates is None:
            continue
        changing = axes(node)
        if changing == []:
            continue
        check_mode = _nearest if mode == "nearest" else _interpolated
        yield from check_mode(node, coordinates, changing)
        if mode == "cubic":
            yield _cubic(node)


def _interpolated(node: LintNode, mode: str, changing: list[Axis] | None) -> Iterator[LintIssue]:
    """Linear and cubic: positions compared with those of half_pixel."""
    if mode not in COORDINATES:
        yield _special(node, mode)
    elif mode == "pytorch_half_pixel" and changing is None:
        return  # it differs for outputs of one cell only
    elif mode != COMMON and (changing is None or any(_differs(axis, mode) for axis in changing)):
        kind = node.attribute("mode")
        reason = (
            f"{kind} with {mode}{BILINEAR.get(mode, '')}: targets that compute half_pixel give"
            " shifted values"
        )
        yield warning(node, reason, HALF_PIXEL)


def _differs(axis: Axis, mode: str) -> bool:
    return any(
        abs(a - b) > CLOSE for a, b in zip(axis.reads(mode), axis.reads(COMMON), strict=True)
    )


def _nearest(node: LintNode, mode: str, changing: list[Axis] | None) -> Iterator[LintIssue]:
    """Cells compared with those of asymmetric with floor."""
    rounding = node.attribute("nearest_mode", "round_prefer_floor")
    if mode not in COORDINATES:
        yield _special(node, mode)
        return
    if rounding not in ROUNDED or (mode, rounding) == ("asymmetric", "floor"):
        return
    title = f"nearest with {mode}{NEIGHBOR.get(mode, '')} and {rounding}"
    if changing is None:
        reason = (
            f"{title}, sizes open: for some of them targets that round otherwise pick neighboring"
            " cells"
        )
        yield note(node, reason, PLAIN)
        return
    pairs = [
        p
        for a in changing
        for p in zip(a.picks(mode, rounding), a.picks("asymmetric", "floor"), strict=True)
    ]
    other = sum(cell != plain for cell, plain in pairs)
    if other:
        reason = (
            f"{title}: targets with plain nearest (asymmetric, floor) pick another cell at {other}"
            f" of {len(pairs)}"
        )
        yield warning(node, f"{reason} positions", PLAIN)


def _special(node: LintNode, mode: str) -> LintIssue:
    reason = f"coordinate mode {mode}, which few targets have: others resize the whole input"
    return warning(node, reason, "crop with Slice first, then Resize with half_pixel")


def _cubic(node: LintNode) -> LintIssue:
    a = node.attribute("cubic_coeff_a", -0.75)
    reason = (
        f"cubic with cubic_coeff_a={a:g}: PyTorch and OpenCV take -0.75, TensorFlow and PIL -0.5"
    )
    return note(node, reason, "compare this node on the target, or use linear")
