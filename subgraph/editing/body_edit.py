"""An edit in a body of If, Loop or Scan: the body as a graph of its own, edited, and put back where
it was.

The graph of a body (`bodies.model`) also holds the weights and constants that it reads from the
graph around it; these stay there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from subgraph.bodies.descend import enter_body
from subgraph.bodies.model import Body
from subgraph.editing.draft import Draft
from subgraph.errors import UsageError
from subgraph.graph import protobuf
from subgraph.graph.graph import Graph, load
from subgraph.graph.nested import assign, functions_of, iter_named_bodies
from subgraph.graph.opsets import read_imports

Edit = Callable[[Graph, tuple[str, ...]], Draft]


def edit_inside(graph: Graph, names: Sequence[str], edit: Edit, scratch: Path) -> Draft:
    """The model with `edit` done in the graph that the selectors are about, which may be a body in
    a body.

    `edit`: is given that graph, and the selectors as it calls its nodes. `scratch`: an empty
    folder.

    Raises:
        UsageError: the selectors are about several graphs, or about a local function. What `edit`
            raises.
    """
    inside = enter_body(graph, names)
    if inside is None:
        return edit(graph, tuple(names))
    body, inner, own_names = inside
    if not body.name.attribute:
        raise UsageError(
            f"{body.name.text} is a call of a function: what is changed there is changed in"
            " every call",
            "onnx.inliner.inline_local_functions writes the calls out; edit that model",
            code="edit.function-call",
        )
    draft = edit_inside(inner, own_names, edit, scratch / "inner")
    draft.save(scratch / "body.onnx")
    return _put_back(graph, body, draft, load(scratch / "body.onnx"))


def _put_back(graph: Graph, body: Body, change: Draft, inner: Graph) -> Draft:
    """The model with a body in its edited form; `inner`: that form as saved."""
    draft = Draft(graph)
    draft.remarks += change.remarks
    form = Draft(inner).model
    protobuf.load_all(form.graph.initializer, inner.path)
    holder = draft.model.graph.node[body.name.node]
    proto = next(found for name, found in iter_named_bodies(holder) if name == body.name.attribute)
    around = {node.SerializeToString(deterministic=True) for node in draft.model.graph.node}
    prefix = re.compile(re.escape(body.name.text.split("@", 1)[0]) + r"(@\w+)?/")
    own = [
        node for node in form.graph.node if node.SerializeToString(deterministic=True) not in around
    ]
    for node in own:
        node.name = re.sub(r"^#\d+$", "", prefix.sub("", node.name, count=1))
    assign(proto.node, own)
    assign(proto.initializer, [t for t in form.graph.initializer if t.name not in graph.weights])
    assign(
        proto.sparse_initializer,
        [s for s in form.graph.sparse_initializer if s.values.name not in graph.sparse],
    )
    made = set(chain.from_iterable(node.output for node in own))
    assign(proto.value_info, [v for v in form.graph.value_info if v.name in made])
    _take_over(draft.model, form)
    draft.drop_unused_functions()
    return draft


def _take_over(model: Any, form: Any) -> None:
    """Domains and local functions that only the edited body has."""
    known = read_imports(model)
    functions = functions_of(model)
    for domain, version in read_imports(form).items():
        if domain not in known:
            model.opset_import.add(domain=domain, version=version)
    model.functions.extend(f for key, f in functions_of(form).items() if key not in functions)
    model.ir_version = max(model.ir_version, form.ir_version)
