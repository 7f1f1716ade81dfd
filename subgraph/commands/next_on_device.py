"""Commands that follow `bisect --recorded`, in the form of the device that recorded."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING

from subgraph.precision import Precision
from subgraph.results.common import NextCommand
from subgraph.text import clean

if TYPE_CHECKING:
    from subgraph.recordings.run_comparison import RunComparison
    from subgraph.results.recorded import IntervalDocument
    from subgraph.runtime.inputs import Feeding


def next_commands(
    document: IntervalDocument,
    compared: RunComparison,
    feeding: Feeding,
) -> list[NextCommand]:
    """The commands that take the search to this very device: its element type and layout, the
    user's files."""
    dtype, layout = _find_form(compared)
    first = document.findings[0]
    case = first.case or "CASE"
    words = [clean(str(document.model.path)), "--within", f"{first.nodes[0]}..{first.nodes[-1]}"]
    if not feeding.records:
        words += chain.from_iterable(("-i", file) for file in feeding.inputs)
    words += ["--export", ":".join(filter(None, ("bin", dtype, layout)))] if dtype or layout else []
    precision = compared.run.precision or document.precision
    words += ["--precision", precision] if precision != Precision.FP32 else []
    words += ["--criterion", document.criterion] if document.criterion != "noise" else []
    form = [*(("--dtype", dtype) if dtype else ()), *(("--layout", layout) if layout else ())]
    return [
        NextCommand(
            "write the interval's inputs in the device's form",
            ["subcut", "export", case, "-o", "to_device", *form],
        ),
        NextCommand("continue the search by hand", ["subcut", "manual", "start", *words]),
    ]


def _find_form(compared: RunComparison) -> tuple[str, str]:
    """The element type and the layout in which a device records; both "" if they are the
    model's."""
    matches = list(chain.from_iterable(sample.matches.values() for sample in compared.matched))
    floats = Counter(match.entry.dtype for match in matches if "float" in match.entry.dtype)
    last = any(
        m.entry.layout == "NHWC" or (m.alignment and m.alignment.is_channels_last) for m in matches
    )
    layout = "NHWC" if last else ""
    dtype = floats.most_common(1)[0][0] if floats else ""
    return (
        ("", "")
        if dtype in ("", "float32", "float64") and not layout
        else (dtype or "float32", layout)
    )
