"""Edits in a body of If, Loop or Scan: the body becomes a graph, is edited, and is put back.

The graph of a body (`bodies.model`) also has copies of the weights and constants that the body
reads from the graph around it. These copies are not put back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from subgraph.bodies.descend import enter_body
from subgraph.bodies.model import Body
from subgraph.editing.draft import Draft
from subgraph.errors import UsageError
from subgraph.graph import protobuf
from subgraph.graph.graph import Graph, load
from subgraph.graph.nested import assign, iter_named_bodies, list_functions
from subgraph.graph.opsets import read_imports
from subgraph.iterables import flatten

Edit = Callable[[Graph, tuple[str, ...]], Draft]


def edit_inside(graph: Graph, names: Sequence[str], edit: Edit, scratch: Path) -> Draft:
    """Edit the graph whose nodes selectors name: the model, a body, or a body in a body.

    Args:
        graph: The model.
        names: The selectors.
        edit: A function that edits a graph; it gets the selectors with the names of that graph.
        scratch: An empty folder.

    Returns:
        The edited model.

    Raises:
        UsageError: The selectors name nodes of several graphs, or of a local function.
        SubcutError: As `edit` raises it.
    """
    entered = enter_body(graph, names)
    if entered is None:
        return edit(graph, tuple(names))
    body, inside = entered
    if not body.name.attribute:
        raise UsageError(
            f"{body.name.text} is a call of a function: what is changed there is changed in"
            " every call",
            "onnx.inliner.inline_local_functions writes the calls out; edit that model",
            code="edit.function-call",
        )
    draft = edit_inside(inside.graph, inside.names, edit, scratch / "inner")
    draft.save(scratch / "body.onnx")
    return _put_back(graph, body, draft, load(scratch / "body.onnx"))


def _put_back(graph: Graph, body: Body, change: Draft, inner: Graph) -> Draft:
    """Return the model with an edited body.

    Args:
        graph: The model.
        body: The body in the model.
        change: The edited body.
        inner: The edited body, loaded from its file.
    """
    draft = Draft(graph)
    draft.remarks += change.remarks
    edited = Draft(inner).model
    protobuf.load_all(edited.graph.initializer, inner.path)
    holder = draft.model.graph.node[body.name.node]
    proto = next(
        inner_proto
        for name, inner_proto in iter_named_bodies(holder)
        if name == body.name.attribute
    )
    around = {node.SerializeToString(deterministic=True) for node in draft.model.graph.node}
    prefix = re.compile(re.escape(body.name.text.split("@", 1)[0]) + r"(@\w+)?/")
    own = [
        node
        for node in edited.graph.node
        if node.SerializeToString(deterministic=True) not in around
    ]
    for node in own:
        node.name = re.sub(r"^#\d+$", "", prefix.sub("", node.name, count=1))
    assign(proto.node, own)
    assign(proto.initializer, [t for t in edited.graph.initializer if t.name not in graph.weights])
    assign(
        proto.sparse_initializer,
        [s for s in edited.graph.sparse_initializer if s.values.name not in graph.sparse],
    )
    outputs = set(flatten(node.output for node in own))
    assign(proto.value_info, [v for v in edited.graph.value_info if v.name in outputs])
    # The edited body may use domains and local functions that the model does not have.
    model = draft.model
    imports = read_imports(model)
    functions = list_functions(model)
    for domain, version in read_imports(edited).items():
        if domain not in imports:
            model.opset_import.add(domain=domain, version=version)
    model.functions.extend(f for key, f in list_functions(edited).items() if key not in functions)
    model.ir_version = max(model.ir_version, edited.ir_version)
    draft.drop_unused_functions()
    return draft
