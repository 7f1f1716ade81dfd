"""Walks along the tensors of a graph."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from fixtures import oracle
from fixtures.dags import random_dag
from subgraph.graph.walks import (
    find_ancestors,
    find_descendants,
    iter_predecessors,
    iter_successors,
)
from tests.helpers import text_models
from tests.helpers.examples import examples


@settings(max_examples=examples(60), deadline=None, derandomize=True, database=None)
@given(st.integers(0, 2**32 - 1), st.integers(3, 40))
def test_walks_agree_with_networkx(
    tmp_path_factory: pytest.TempPathFactory, seed: int, size: int
) -> None:
    model = random_dag(np.random.default_rng(seed), size)
    g = text_models.read(tmp_path_factory.mktemp("dag"), model)
    dag = oracle.digraph(model)
    assert [set(names) for names in g.reads] == [oracle.reads(node) for node in model.graph.node]
    assert {(i, j) for i in range(len(g.nodes)) for j in iter_successors(g, i)} == set(dag.edges())
    assert list(g.ops) == [node.op_type for node in model.graph.node]
    for i in range(0, len(g.nodes), 3):
        assert find_ancestors(g, [i]) == {i} | nx.ancestors(dag, i)
        assert find_descendants(g, [i]) == {i} | nx.descendants(dag, i)
        assert set(iter_predecessors(g, i)) == set(dag.predecessors(i))
        assert set(iter_successors(g, i)) == set(dag.successors(i))
    assert all(g.rank[i] < g.rank[j] for i, j in dag.edges())
