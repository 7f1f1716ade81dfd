"""`subcut inspect`: a model, a node or the edge between two nodes -> what is in it, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from subgraph import project
from subgraph.commands import Result, options, resolve
from subgraph.commands.options import option
from subgraph.documents import to_json
from subgraph.errors import ModelError, SubcutError, UsageError
from subgraph.graph.graph import Graph, load
from subgraph.storage.tensors import shape_text
from subgraph.text import big, clean, count

if TYPE_CHECKING:
    from subgraph.runtime.inputs import Feeding

Document: TypeAlias = dict[str, Any]

SHOWN_PROBLEMS = 50  # in the text; the document has them all
COLUMNS = ("min", "max", "mean", "nan", "inf", "zeros")
LEFT, RIGHT = "<", ">"


@options.with_option_groups()
def inspect(
    *,
    model: options.ModelArgument = None,
    node: Annotated[
        str | None,
        typer.Argument(
            metavar="[NODE]",
            help="One node, with its neighbours.",
            autocompletion=options.complete_nodes,
            show_default=False,
        ),
    ] = None,
    start: options.Start = None,
    end: options.End = None,
    inputs: options.InputOptions,
    no_run: Annotated[bool, option("--no-run", None, "Only what the file says; run nothing.")] = False,
) -> Result:
    """Show what is in a model, a node or an edge, and what is wrong with it.

    Ops, types, and the real shape and range of each tensor by running. Exit code 3 if the model is invalid.
    """
    settings = project.load()
    model, node = _model_and_node(model, node, settings)
    if node and (start or end):
        raise UsageError("name a node, or --start and --end, not both")
    model_path = resolve.model_path(settings, model)
    feeding = resolve.feeding(settings, inputs)
    graph = load(model_path)
    try:
        document = _document(graph, node, start or (), end or (), None if no_run else feeding)
    except UnicodeDecodeError as e:
        raise ModelError(f"{model_path} is damaged: a name in it is not UTF-8", "compare its checksum") from e
    return Result(document, text(document), document["exit_code"])


def _document(graph: Graph, node: str | None, start: Sequence[str], end: Sequence[str], fed: Feeding | None) -> Any:
    from subgraph.inspection import describe

    if node:
        return to_json(describe.nodes_document(graph, node, fed))
    if not start and not end:
        return to_json(describe.model_document(graph, fed))
    try:
        return to_json(describe.region_document(graph, start, end, fed))
    except ModelError as e:
        return to_json(describe.invalid_document(graph, e))


def _model_and_node(model: str | None, node: str | None, settings: project.Project) -> tuple[str | None, str | None]:
    """(model, node): a single word that is no file is a node of the model that is found without it."""
    if model is None or node is not None or model.endswith(".onnx") or Path(model).exists():
        return model, node
    try:
        project.find_model(None, settings)
    except SubcutError:
        return model, None
    return None, model


# ---------------------------------------------------------------------------------------------------- text


def text(document: Document) -> str:
    """The document for people: what is wrong first, then one table."""
    parts = {"model": _whole, "node": _nodes, "region": _region}
    blocks = [_head(document), _problems(document), parts[document["view"]](document), _notes(document)]
    return "\n".join(line for block in blocks for line in block)


def _head(document: Document) -> Iterable[str]:
    m = document["model"]
    size = _size(m["bytes"]) + (f" + {_size(m['external_bytes'])} outside" if m["external_bytes"] else "")
    opsets = ", ".join(f"{clean(domain)} {version}" for domain, version in m["opsets"].items()) or "none"
    words = [size, f"IR {m['ir_version']}", f"opset {opsets.removeprefix('ai.onnx ')}"]
    words += [f"by {clean(m['producer'])}"] if m["producer"] else []
    yield f"{clean(Path(m['path']).name)}   {' · '.join(words)}"


def _problems(document: Document) -> Iterable[str]:
    fatal = [p for p in document["problems"] if p["fatal"]]
    if fatal:
        yield f"INVALID: {count(len(fatal), 'problem')}"
        yield from _listed(fatal)


def _notes(document: Document) -> Iterable[str]:
    small = [p for p in document["problems"] if not p["fatal"]]
    if small or document["notes"]:
        yield "notes"
        yield from _listed(small)
        yield from (f"  {clean(note)}" for note in document["notes"])


def _listed(problems: Sequence[Document]) -> Iterable[str]:
    for p in problems[:SHOWN_PROBLEMS]:
        yield f"  {p['kind']:<9}  {clean(p['what'])}"
        if p["hint"]:
            yield f"  {'':<9}    {clean(p['hint'])}"
    if len(problems) > SHOWN_PROBLEMS:
        yield f"  … and {len(problems) - SHOWN_PROBLEMS} more (--json has them all)"


def _whole(document: Document) -> Iterable[str]:
    ops, weights = document["ops"], document["weights"]
    kinds = " · ".join(f"{_op(op)} {op['count']}" for op in ops)
    yield f"ops      {count(sum(op['count'] for op in ops), 'node')}: {kinds}"
    parts = ", ".join(f"{w['type']} {big(w['parameters'])} ({_size(w['bytes'])})" for w in weights["by_type"])
    sparse = f" · {weights['sparse']} sparse" if weights["sparse"] else ""
    total = f"{count(weights['count'], 'tensor')} · {big(weights['parameters'])} parameters{sparse}"
    yield f"weights  {total}{': ' if parts else ''}{parts}"
    for f in document["functions"]:
        name = ".".join(clean(f[key]) for key in ("domain", "name", "overload") if f[key])
        yield f"function {name}   {count(f['nodes'], 'node')}, called {count(f['calls'], 'time')}"
    rows = [["in", t] for t in document["inputs"]] + [["out", t] for t in document["outputs"]]
    yield from _table(["", *_TENSOR], [[word, *_tensor(t)] for word, t in rows])
    for t in document["inputs"]:
        if t["values"]:
            yield f"  {clean(t['name'])}: {clean(t['values'])}"
    yield ""
    rows = []
    for node in document["nodes"]:
        who = [f"#{node['index']}", clean(node["name"]), _op(node)]
        for t in node["outputs"]:
            rows.append([*who, *_tensor(t)])
            who = ["", "", ""]
    yield from _table(["#", "node", "op", *_TENSOR], rows)


def _nodes(document: Document) -> Iterable[str]:
    for node in document["nodes"]:
        yield _node(node)
        for name, value in node["attributes"].items():
            yield f"  {clean(name)} = {clean(value)}"
        yield from _edges(node["inputs"], (), node["outputs"])


def _region(document: Document) -> Iterable[str]:
    if "start" not in document:  # the graph is too broken to have one
        return
    names = " → ".join(clean(", ".join(document[key])) or f"the {key}" for key in ("start", "end"))
    numbers = [count(len(document[key]), key[:-1]) for key in ("nodes", "inputs", "outputs")]
    yield f"region  {names}   {' · '.join(numbers)} · {big(document['parameters'])} parameters"
    yield from _edges(document["inputs"], document["shapes"], document["outputs"])
    yield f"weights  {count(len(document['weights']), 'tensor')}"
    for key, what in (
        ("pulled", "make constants and come along"),
        ("random", "draw random numbers: captured, not cut"),
    ):
        if document[key]:
            yield f"{key}   {', '.join(_node(n) for n in document[key])}: {what}"
    yield ""
    yield from (f"  {_node(n)}" for n in document["nodes"])


def _edges(inputs: Iterable[Document], shapes: Iterable[Document], outputs: Iterable[Document]) -> Iterable[str]:
    rows = [["in", *_tensor(t), f"from {_maker(t['made_by'])}"] for t in inputs]
    rows += [["shape", *_tensor(t), f"from {_maker(t['made_by'])}, frozen in a cut"] for t in shapes]
    for t in outputs:
        readers = [_node(n) for n in t["read_by"]] + (["the model's output"] if t["is_output"] else [])
        rows.append(["out", *_tensor(t), f"to {', '.join(readers) or 'nobody'}"])
    return _table(["", *_TENSOR, ""], rows)


def _maker(made_by: Any) -> str:
    if isinstance(made_by, dict):
        return _node(made_by)
    return {"input": "the model's input", "weight": "a weight", None: "nobody"}[made_by]


def _node(node: Document) -> str:
    return f"{clean(node['label'])} ({_op(node)})"


def _op(node: Document) -> str:
    return clean(f"{node['domain']}.{node['op']}" if node["domain"] else node["op"])


_TENSOR = ("tensor", "type", "shape", "declared", *COLUMNS)


def _tensor(t: Document) -> list[str]:
    """The cells of one tensor: what is known of it, what is declared where that says less or something else, range."""
    shape = _shape(t["shape"])
    declared = ""
    if d := t["declared"]:
        declared = " ".join(
            word for word, real in ((d["type"] or "?", t["type"]), (_shape(d["shape"]), shape)) if word != real
        )
    if t["value"] is not None:
        shape += f" = {t['value']}"
    found = t["range"] or {}
    numbers = [_number(found.get(key)) for key in COLUMNS[:3]]
    return [clean(t["name"]), t["type"] or "?", clean(shape), clean(declared), *numbers] + [
        str(found[key]) if found.get(key) else "" for key in COLUMNS[3:]
    ]


def _shape(shape: Sequence[Any] | None) -> str:
    return "any" if shape is None else shape_text(tuple(shape))


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return str(value) if isinstance(value, int) else f"{value:.4g}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterable[str]:
    """Aligned columns, numbers to the right; columns without content are left out."""
    kept = [k for k in range(len(header)) if any(row[k] for row in rows)]
    widths = {k: max(len(row[k]) for row in (header, *rows)) for k in kept}
    sides = {k: RIGHT if header[k] in COLUMNS else LEFT for k in kept}
    for row in (header, *rows) if rows else ():
        yield "  " + "  ".join(f"{row[k]:{sides[k]}{widths[k]}}" for k in kept).rstrip()


def _size(number: int) -> str:
    """Bytes in the unit in which they have at most four digits."""
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if number >= 1 << shift:
            return f"{number / (1 << shift):.1f} {unit}"
    return f"{number} bytes"
