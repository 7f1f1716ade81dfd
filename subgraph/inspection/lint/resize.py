"""Resize in a coordinate or rounding mode that targets compute otherwise."""

from __future__ import annotations

from collections.abc import Sequence

from subgraph.inspection.lint import Issues, LintContext, note, warning
from subgraph.inspection.lint._places import LintNode

# Targets compute these for linear and cubic; the others differ from half_pixel for few sizes only.
COMMON = ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric")
FIRST_OPSET = 11  # rule `upsample` reports older ones
# Other coordinate modes → operators of TensorFlow Lite that are exported with it.
BILINEAR = {
    "align_corners": " (TFLite's ResizeBilinear with align_corners)",
    "asymmetric": " (TFLite's ResizeBilinear with neither align_corners nor half_pixel_centers)",
    "tf_half_pixel_for_nn": "",
}
NEIGHBOR = {
    "align_corners": " (TFLite's ResizeNearestNeighbor with align_corners)",
    "tf_half_pixel_for_nn": " (TFLite's ResizeNearestNeighbor with half_pixel_centers)",
}
HALF_PIXEL = (
    "export with half_pixel (PyTorch: align_corners=False; TensorFlow: half_pixel_centers=True), or"
    " compare"
)
LINEAR = "compare this node on the target, or use linear"
CROP = "crop with Slice first, then Resize with half_pixel"
PLAIN = (
    "use a whole scale with asymmetric and floor, which all targets compute alike, or compare this"
    " node there"
)


def check(context: LintContext) -> Issues:
    """Yield each Resize in a mode on which targets differ, unless it changes no size."""
    for node in context.nodes("Resize"):
        mode = node.attribute("mode", "nearest")
        coordinates = node.attribute("coordinate_transformation_mode", "half_pixel")
        is_old = (node.version or FIRST_OPSET) < FIRST_OPSET
        scales = _find_scales(node)
        if is_old or mode is None or coordinates is None or (scales and set(scales) == {1.0}):
            continue
        if coordinates not in (*COMMON, *BILINEAR):
            reason = f"coordinate mode {coordinates}, which few targets have: others resize"
            yield warning(node, f"{reason} the whole input", CROP)
        elif mode == "nearest":
            yield from _check_nearest(node, coordinates, scales)
        elif coordinates not in COMMON:
            reason = (
                f"{mode} with {coordinates}{BILINEAR[coordinates]}: targets that compute half_pixel"
                " give shifted values"
            )
            yield warning(node, reason, HALF_PIXEL)
        if mode == "cubic":
            a = node.attribute("cubic_coeff_a", -0.75)
            reason = f"cubic with cubic_coeff_a={a:g}: PyTorch and OpenCV take -0.75"
            yield note(node, f"{reason}, TensorFlow and PIL -0.5", LINEAR)


def _find_scales(node: LintNode) -> list[float] | None:
    """Return the scales, of the axes that are listed or of the spatial ones; None if they are
    unknown."""
    scales_input = node.constant(2)
    if scales_input is not None and scales_input.size:
        return [float(scale) for scale in scales_input.ravel()]
    before = (node.shape(node.input(0)) or [])[2:]
    after = (node.shape(node.output(0)) or [])[2:]
    sizes = [size for size in (*before, *after) if isinstance(size, int) and size > 0]
    if not before or len(sizes) != len(before) + len(after):
        return None
    return [size / old for old, size in zip(before, after, strict=True)]


def _check_nearest(node: LintNode, mode: str, scales: Sequence[float] | None) -> Issues:
    """Compare with asymmetric and floor, which equals half_pixel for whole scales."""
    rounding = node.attribute("nearest_mode", "round_prefer_floor")
    are_whole = scales is not None and all(scale.is_integer() for scale in scales)
    is_rounded = mode in COMMON and str(rounding).startswith("round")
    if (mode, rounding) == ("asymmetric", "floor") or (are_whole and is_rounded):
        return
    title = f"nearest with {mode}{NEIGHBOR.get(mode, '')} and {rounding}"
    if scales is None:
        reason = (
            f"{title}, sizes open: for some of them targets that round otherwise pick neighboring"
            " cells"
        )
        yield note(node, reason, PLAIN)
        return
    reason = f"{title}: targets with plain nearest (asymmetric, floor) pick other cells"
    yield warning(node, reason, PLAIN)
