"""Upsample, and Resize before opset 11: no coordinate mode, so that targets choose one."""

from __future__ import annotations

import numpy as np

from subgraph.inspection.lint import Issues, LintContext, note, warning

FIRST_MODES = 11  # first opset in which Resize has a coordinate mode
FIX = "export with opset 11 or later, as a Resize that names its coordinate_transformation_mode"


def check(context: LintContext) -> Issues:
    """Yield each of them; a note if cells are repeated, which all targets do alike."""
    for node in context.nodes("Upsample", "Resize"):
        if node.op == "Resize" and (node.version or FIRST_MODES) >= FIRST_MODES:
            continue
        mode = node.attribute("mode", "nearest")
        values = np.asarray(node.attribute("scales", node.constant(1)))
        is_vector = values.ndim == 1 and values.size > 0 and values.dtype.kind in "fiu"
        is_integral = is_vector and np.all((values >= 1) & (values == np.floor(values)))
        is_upsample = node.op == "Upsample"
        kind = "Upsample is deprecated since opset 10" if is_upsample else "Resize of opset 10"
        if mode == "nearest" and is_integral:
            yield note(node, f"{kind}: newer converters may lack it", FIX)
        else:
            reason = (
                f"{kind} and names no coordinate mode: it means asymmetric, many targets compute"
                " half_pixel"
            )
            yield warning(node, f"{reason} (mode {mode})", FIX)
