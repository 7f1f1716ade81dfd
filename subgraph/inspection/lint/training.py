"""BatchNormalization or Dropout in training mode."""

from __future__ import annotations

from subgraph.inspection.lint import Issues, LintContext, warning
from subgraph.inspection.lint._places import LintNode

EVAL = "export in evaluation mode: model.eval(), training=TrainingMode.EVAL"
MAX_IS_TEST_OPSET = 6  # last opset with the attribute `is_test`, whose default 0 means training
# First opset in which BatchNormalization has the attribute `training_mode`.
MIN_TRAINING_MODE_OPSET = 14
MAX_SPATIAL_OPSET = 8  # the last opset in which BatchNormalization can have statistics per pixel


def check(context: LintContext) -> Issues:
    """Yield each node that, without a run, is known to normalize by its batch or drop values."""
    for node in context.nodes("BatchNormalization"):
        if why := _trains(node):
            reason = (
                f"{why}: it normalizes by the batch at hand, while targets use the stored mean and"
                " variance"
            )
            yield warning(node, reason, EVAL)
        if (
            node.version is not None
            and node.version <= MAX_SPATIAL_OPSET
            and node.attribute("spatial", 1) == 0
        ):
            reason = (
                "spatial=0 keeps statistics per pixel, which was dropped in opset 9 and hardly any"
                " target has"
            )
            yield warning(node, reason, "write it as Mul and Add of constants of the shape C×H×W")
    for node in context.nodes("Dropout"):
        if why := _drops(node):
            yield warning(node, f"{why}: it drops values at random, so that two runs differ", EVAL)


def _trains(node: LintNode) -> str:
    version = node.version
    if version is None:
        return ""
    if version >= MIN_TRAINING_MODE_OPSET:
        if node.attribute("training_mode", 0) == 1:
            return "training_mode=1"
        return ""
    if version <= MAX_IS_TEST_OPSET and node.attribute("is_test", 0) == 0:
        return f"is_test=0 (the default of opset {version}) means training"
    outputs = sum(map(bool, node.proto.output))
    if version > MAX_IS_TEST_OPSET and outputs > 1:
        return f"{outputs} outputs mean training at opset {version}"
    return ""


def _drops(node: LintNode) -> str:
    version = node.version or 0
    if 0 < version <= MAX_IS_TEST_OPSET:
        test = node.attribute("is_test", 0)
        if test == 0:
            return f"is_test=0 (the default of opset {version}) means training"
        return ""
    mode = node.constant(2)
    if mode is not None and bool(mode.any()):
        return "training_mode is true"
    return ""
