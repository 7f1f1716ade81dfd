"""BatchNormalization or Dropout in training mode."""

from __future__ import annotations

from collections.abc import Iterator

from subgraph.inspection.lint import LintContext, LintIssue, warning
from subgraph.inspection.lint._places import LintNode

EVAL = "export in evaluation mode: model.eval(), training=TrainingMode.EVAL"
# Opsets: until the first, `is_test` says it, and 0 is its default; from the second on it is an attribute.
IS_TEST, ATTRIBUTE = 6, 14
SPATIAL = 8  # the last opset in which BatchNormalization can have statistics per pixel


def check(asked: LintContext) -> Iterator[LintIssue]:
    """Each node that takes statistics of its batch, or drops values; unknown until a run is no finding."""
    for place in asked.nodes("BatchNormalization"):
        if why := _trains(place):
            reason = f"{why}: it normalises by the batch at hand, while targets use the stored mean and variance"
            yield warning(place, reason, EVAL)
        if place.version is not None and place.version <= SPATIAL and place.attribute("spatial", 1) == 0:
            reason = "spatial=0 keeps statistics per pixel, which was dropped in opset 9 and hardly any target has"
            yield warning(place, reason, "write it as Mul and Add of constants of the shape C×H×W")
    for place in asked.nodes("Dropout"):
        if why := _drops(place):
            yield warning(place, f"{why}: it drops values at random, so that two runs differ", EVAL)


def _trains(place: LintNode) -> str:
    version = place.version
    if version is None:
        return ""
    if version >= ATTRIBUTE:
        return "training_mode=1" if place.attribute("training_mode", 0) == 1 else ""
    if version <= IS_TEST and place.attribute("is_test", 0) == 0:
        return f"is_test=0 (the default of opset {version}) means training"
    outputs = sum(map(bool, place.node.output))
    return f"{outputs} outputs mean training at opset {version}" if version > IS_TEST and outputs > 1 else ""


def _drops(place: LintNode) -> str:
    version = place.version or 0
    if 0 < version <= IS_TEST:
        test = place.attribute("is_test", 0)
        return f"is_test=0 (the default of opset {version}) means training" if test == 0 else ""
    mode = place.constant(2)
    return "training_mode is true" if mode is not None and bool(mode.any()) else ""
