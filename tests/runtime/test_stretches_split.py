"""Every node is in one stretch, in order; a stretch takes no more than the limit, unless one node
alone does."""

from __future__ import annotations

from itertools import chain

from hypothesis import given, settings
from hypothesis import strategies as st

from subgraph.runtime.stretches import Cost, next_end, peak, stretches

SIZES = st.integers(0, 20)
NODES = st.lists(
    st.builds(
        Cost,
        st.dictionaries(st.sampled_from("abcdef"), st.just(7), max_size=3),
        work=SIZES,
        kept=SIZES,
    )
)


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(NODES, st.data(), st.integers(1, 120))
def test_plan_covers_all_nodes_in_order_within_the_limit(
    costs: list[Cost], data: st.DataObject, limit: int
) -> None:
    live = data.draw(st.lists(SIZES, min_size=len(costs) + 1, max_size=len(costs) + 1))
    start = data.draw(st.integers(0, len(costs)))
    plan = list(stretches(costs, live, limit, start))
    assert list(chain.from_iterable(plan)) == list(range(start, len(costs)))
    for nodes in plan:
        assert len(nodes) == 1 or peak(costs, live, nodes) <= limit
        longer = range(nodes.start, nodes.stop + 1)
        assert nodes.stop == len(costs) or peak(costs, live, longer) > limit, "it could be longer"


def test_weight_counts_once() -> None:
    """Two nodes that read the same one fit where two that read different ones do not."""
    same = Cost({"w": 60})
    other = Cost({"v": 60})
    assert next_end([same, same, other], [0] * 4, 0, 100) == 2
    assert [list(s) for s in stretches([same, other, same], [0] * 4, 100)] == [[0], [1], [2]]


def test_inputs_and_requested_tensors_take_room() -> None:
    costs = [Cost({"a": 30}), Cost({"b": 30}), Cost({"c": 30}, kept=50)]
    assert next_end(costs, [0, 0, 0, 0], 0, 100) == 2
    assert next_end(costs, [50, 50, 0, 0], 0, 100) == 1
    assert peak(costs, [10, 5, 20, 0], range(3)) == 10 + 90 + 50 + 20
