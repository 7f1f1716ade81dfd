"""Laws of charts."""

from __future__ import annotations

import math
import re
from typing import Any

from hypothesis import given, strategies as st

from subgraph.drawing.chart import MAX_LABELS, Point, make_log_chart

ERRORS = st.one_of(
    st.none(), st.floats(min_value=0), st.sampled_from([math.inf, math.nan]), st.just(5e-324)
)


@given(
    st.lists(ERRORS, max_size=20), st.lists(st.lists(st.integers(0, 30), max_size=3), max_size=9)
)
def test_chart_stays_in_its_frame(errors: list[Any], marks: list[list[int]]) -> None:
    points = [Point(k, e, "fail" if k % 2 else "agree", "n") for k, e in enumerate(errors)]
    drawn = make_log_chart(points, marks, {"x": "", "label": ""})
    places = re.findall(r"[ML]([\d.]+) ([\d.]+)", f"{drawn.paths.line} {drawn.paths.dots}")
    titled = [(p.x, p.y) for p in drawn.titled]
    assert all(
        drawn.left <= float(x) <= drawn.right and 0 < float(y) <= drawn.bottom
        for x, y in [*places, *titled]
    )
    assert len(re.findall("[ML]", drawn.paths.line)) == sum(e is not None for e in errors)
    assert len(drawn.marks) == sum(bool(m) for m in marks)
    assert len(drawn.levels) <= MAX_LABELS + 1


def test_value_below_the_shown_decades_is_not_zero() -> None:
    points = [Point(k, error, "agree", "") for k, error in enumerate((0.0, 1e-7, 6e37))]
    words = {"x": "", "label": ""}
    assert make_log_chart(points, [], words).levels[-1].label == "≤1e22"
    assert make_log_chart(points[:2], [], words).levels[-1].label == "0"
    assert make_log_chart(points[1:2], [], words).levels[-1].label == "1e-7"
