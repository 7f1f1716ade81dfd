"""`subcut inspect`: a model, a node or the boundary between two nodes -> its contents and its
problems."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from subgraph import project
from subgraph.commands import Result, inside, log, options
from subgraph.commands.options import option
from subgraph.commands.resolve import Asked
from subgraph.documents import to_json
from subgraph.errors import ModelError, SubcutError, UsageError
from subgraph.graph.graph import Graph, load
from subgraph.runtime.inputs import Feeding
from subgraph.storage import folders
from subgraph.storage.tensors import shape_text
from subgraph.text import big, clean, clean_lines, count, shorten, split_signature

if TYPE_CHECKING:
    from subgraph.inspection.describe import (
        EnteringTensor,
        InspectDocument,
        LeavingTensor,
        ModelDocument,
        NodeInfo,
        NodesDocument,
        ProblemEntry,
        RegionDocument,
        TensorInfo,
    )
    from subgraph.inspection.summary import OpCount
    from subgraph.runtime.candidate import Candidate

MAX_VALUE, MAX_LINES = 400, 40  # of an attribute or of metadata: characters of a line, lines
MAX_DETAILED = 3  # nodes; of more, a line for each tensor that they make
SHOWN_PROBLEMS = 50  # in the text; the document has them all
COLUMNS = ("min", "max", "mean", "nan", "inf", "zeros")
LEFT = "<"
RIGHT = ">"


@options.with_option_groups()
def inspect(
    *,
    model: options.ModelArgument = None,
    node: Annotated[
        str | None,
        typer.Argument(
            metavar="NODE",
            help="Show this node with its neighbours; a glob lists all that match.",
            autocompletion=options.complete_nodes,
            show_default=False,
        ),
    ] = None,
    start: options.Start = None,
    end: options.End = None,
    weights: options.Weights = None,
    trust: options.Trust = False,
    candidate: options.CandidateSpec = None,
    inputs: options.InputOptions,
    no_run: Annotated[
        bool, option("--no-run", None, "Only what the file says; run nothing.")
    ] = False,
) -> Result:
    """Show a model's operators, types, and tensors with shape and range.

    Shapes and ranges come from a run on the reference. With a node: the node and its neighbours.
    With --start and
    --end: the tensors that enter and leave that piece. With a node and -c: what this runtime is
    known to compute wrong in nodes like it (`subcut known`).

    Examples:
      subcut inspect model.onnx
      subcut inspect model.onnx stem/pool
      subcut inspect model.onnx 'block1/*'
      subcut inspect model.onnx --start stem/pad --end stem/pool

    Exit code 0: the model is valid; 3: it is not, and the message says what is wrong at which node.
    """
    settings = project.load()
    model, node = _model_and_node(model, node, settings)
    if node and (start or end):
        raise UsageError("name a node, or --start and --end, not both", code="option.conflict")
    if candidate and not node:
        raise UsageError(
            "-c goes with a node",
            "subcut lint MODEL -c SPEC names all nodes like those known to be wrong",
            code="option.requires",
        )
    asked = Asked(settings, model, weights, inputs, result=options.ResultOptions(trust=trust))
    model_path = asked.model_path
    feeding = asked.feeding
    runtime = _runtime(asked, candidate) if node else None
    graph = load(model_path)
    try:
        places = tuple(start or ()), tuple(end or ())
        document = _document(graph, node, *places, None if no_run else feeding, runtime)
    except UnicodeDecodeError as e:
        raise ModelError(
            f"{model_path} is damaged: a name in it is not UTF-8",
            "compare its checksum",
            code="model.not-utf8",
        ) from e
    return Result(to_json(document), text(document), document.exit_code)


def _runtime(asked: Asked, typed: str | None) -> Candidate | None:
    """The candidate whose runtime the node is held against; None where the project's cannot be
    read, with a warning.

    Raises:
        UnknownName, UsageError: the one that is typed cannot be read.
    """
    if typed:
        return asked.described_candidate(typed)
    spec = asked.settings.get("candidate")
    try:
        return asked.described_candidate(spec) if spec else None
    except SubcutError as e:
        place = Path(asked.settings.origin("candidate") or "$SUBCUT_CANDIDATE").name
        what = "; ".join(
            filter(
                None, (clean(e.what), clean(e.hint), f"correct {place}, or name one with -c SPEC")
            )
        )
        log.warning("the project's candidate, %s, cannot be read: %s", clean(spec), what)
        return None


def _document(
    graph: Graph,
    node: str | None,
    start: tuple[str, ...],
    end: tuple[str, ...],
    fed: Feeding | None,
    runtime: Candidate | None,
) -> InspectDocument:
    """The document of what was named; in a body, of that."""

    from subgraph.bodies.iterations import NotRun
    from subgraph.runtime.reference import default_for

    words = (node,) if node else (*start, *end)
    if not any("/" in word for word in words):
        return _describe(graph, node, start, end, fed, runtime)
    try:
        with (
            folders.temporary() as folder,
            default_for(graph) if fed else nullcontext() as reference,
            inside.opened(graph, words, fed or Feeding(), reference, folder) as (
                there,
                feeding,
                names,
            ),
        ):
            node, first = names[0] if node else None, len(start)
            begin, last = (tuple(filter(None, part)) for part in (names[:first], names[first:]))
            return _describe(
                there, node, begin, () if node else last, feeding if fed else None, runtime
            )
    except (NotRun, ModelError) as e:
        log.warning("%s; only what the file says is shown", e.what)
        return _document(graph, node, start, end, None, runtime)


def _describe(
    graph: Graph,
    node: str | None,
    start: Sequence[str],
    end: Sequence[str],
    fed: Feeding | None,
    runtime: Candidate | None,
) -> InspectDocument:
    from subgraph.inspection import describe

    if node:
        document = describe.nodes_document(graph, node, fed)
        return _with_known(document, graph, runtime) if runtime else document
    if not start and not end:
        whole = describe.model_document(graph, fed)
        return replace(
            whole, notes=[*whole.notes, *(f"inside: {body}" for body in inside.bodies(graph))]
        )
    try:
        return describe.region_document(graph, start, end, fed)
    except ModelError as e:
        return describe.invalid_document(graph, e)


def _with_known(document: NodesDocument, graph: Graph, runtime: Candidate) -> NodesDocument:
    """The document, whose nodes have what the runtime is known to compute wrongly in nodes like
    them."""
    from subgraph.commands.known import hints

    said = [(issue.node.top, issue.reason) for issue in hints(graph, runtime) if issue.node]
    nodes = [
        replace(node, known=[reason for top, reason in said if top == node.index])
        for node in document.nodes
    ]
    return replace(document, nodes=nodes)


def _model_and_node(
    model: str | None, node: str | None, settings: project.Project
) -> tuple[str | None, str | None]:
    """Model and node. A single word that is not a file is a node, if a model is found without
    it."""
    if (
        model is None
        or node is not None
        or model.endswith(".onnx")
        or split_signature(Path(model))[0].exists()
    ):
        return model, node
    try:
        project.find_model(None, settings)
    except SubcutError:
        return model, None
    return None, model


# ------------------------------------------------------------ text


def text(document: InspectDocument) -> str:
    """The document for people: what is wrong first, then one table."""
    from subgraph.inspection.describe import ModelDocument, NodesDocument, RegionDocument

    view: Iterable[str] = ()  # of an invalid model there is none
    if isinstance(document, ModelDocument):
        view = _whole(document)
    elif isinstance(document, NodesDocument):
        view = _nodes(document)
    elif isinstance(document, RegionDocument):
        view = _region(document)
    blocks = [_head(document), _problems(document), view, _notes(document)]
    return "\n".join(line for block in blocks for line in block)


def _head(document: InspectDocument) -> Iterable[str]:
    m = document.model
    size = _size(m.bytes) + (f" + {_size(m.external_bytes)} outside" if m.external_bytes else "")
    opsets = (
        ", ".join(f"{clean(domain)} {version}" for domain, version in m.opsets.items()) or "none"
    )
    words = [size, f"IR {m.ir_version}", f"opset {opsets.removeprefix('ai.onnx ')}"]
    words += [f"by {clean(m.producer)}"] if m.producer else []
    words += (
        [f"signature {clean(m.metadata['tflite_signature'])}"]
        if "tflite_signature" in m.metadata
        else []
    )
    yield f"{clean(Path(m.path).name)}   {' · '.join(words)}"


def _problems(document: InspectDocument) -> Iterable[str]:
    fatal = [p for p in document.problems if p.fatal]
    if fatal:
        yield f"INVALID: {count(len(fatal), 'problem')}"
        yield from _listed(fatal)


def _notes(document: InspectDocument) -> Iterable[str]:
    small = [p for p in document.problems if not p.fatal]
    if small or document.notes:
        yield "notes"
        yield from _listed(small)
        yield from (f"  {clean(note)}" for note in document.notes)


def _listed(problems: Sequence[ProblemEntry]) -> Iterable[str]:
    for p in problems[:SHOWN_PROBLEMS]:
        yield f"  {p.kind:<9}  {clean(p.what)}"
        if p.hint:
            yield f"  {'':<9}    {clean(p.hint)}"
    if len(problems) > SHOWN_PROBLEMS:
        yield f"  … and {len(problems) - SHOWN_PROBLEMS} more (--json has them all)"


def _whole(document: ModelDocument) -> Iterable[str]:
    ops = document.ops
    weights = document.weights
    kinds = " · ".join(f"{_op(op)} {op.count}" for op in ops)
    yield f"ops      {count(sum(op.count for op in ops), 'node')}: {kinds}"
    parts = ", ".join(f"{w.type} {big(w.parameters)} ({_size(w.bytes)})" for w in weights.by_type)
    sparse = f" · {weights.sparse} sparse" if weights.sparse else ""
    total = f"{count(weights.count, 'tensor')} · {big(weights.parameters)} parameters{sparse}"
    yield f"weights  {total}{': ' if parts else ''}{parts}"
    for f in document.functions:
        name = ".".join(clean(part) for part in (f.domain, f.name, f.overload) if part)
        yield f"function {name}   {count(f.nodes, 'node')}, called {count(f.calls, 'time')}"
    rows = [["in", *_tensor(t)] for t in document.inputs] + [
        ["out", *_tensor(t)] for t in document.outputs
    ]
    yield from _table(["", *_TENSOR], rows)
    yield from (f"  {clean(t.name)}: {clean(t.values)}" for t in document.inputs if t.values)
    yield ""
    rows = []
    for node in document.nodes:
        first = [f"#{node.index}", clean(node.name), _op(node)]
        rows += [[*(["", "", ""] if k else first), *_tensor(t)] for k, t in enumerate(node.outputs)]
    yield from _table(["#", "node", "op", *_TENSOR], rows)


def _nodes(document: NodesDocument) -> Iterable[str]:
    if len(document.nodes) > MAX_DETAILED:
        yield f"{clean(document.selector)}  {count(len(document.nodes), 'node')}"
        rows = [
            [_node(node), *_tensor(tensor)] for node in document.nodes for tensor in node.outputs
        ]
        yield from _table(["", *_TENSOR], rows)
        return
    for node in document.nodes:
        yield _node(node)
        if node.source:
            yield f"  from {clean(str(node.source) or node.source.module)}"
        for name, value in (
            *node.attributes.items(),
            ("doc_string", node.doc_string),
            *node.metadata.items(),
        ):
            if lines := clean_lines(value).splitlines():
                yield f"  {clean(name)} = {shorten(lines[0].strip(), MAX_VALUE)}"
                yield from (
                    f"    {shorten(line.rstrip(), MAX_VALUE)}" for line in lines[1:MAX_LINES]
                )
        yield from (f"  perhaps {clean(reason)}" for reason in node.known or ())
        yield from _boundary(node.inputs, (), node.outputs)


def _region(document: RegionDocument) -> Iterable[str]:
    ends = (document.start, "the start"), (document.end, "the end")
    names = " → ".join(clean(", ".join(labels)) or default for labels, default in ends)
    parts = (document.nodes, "node"), (document.inputs, "input"), (document.outputs, "output")
    numbers = [count(len(items), noun) for items, noun in parts]
    yield f"region  {names}   {' · '.join(numbers)} · {big(document.parameters)} parameters"
    yield from _boundary(document.inputs, document.shapes, document.outputs)
    yield f"weights  {count(len(document.weights), 'tensor')}"
    for nodes, word, why in (
        (document.pulled, "pulled", "make constants and come along"),
        (document.random, "random", "draw random numbers: captured, not cut"),
    ):
        if nodes:
            yield f"{word}   {', '.join(map(_node, nodes))}: {why}"
    yield ""
    yield from (f"  {_node(n)}" for n in document.nodes)


def _boundary(
    inputs: Iterable[EnteringTensor],
    shapes: Iterable[EnteringTensor],
    outputs: Iterable[LeavingTensor],
) -> Iterable[str]:
    rows = [["in", *_tensor(t), f"from {_maker(t.made_by)}"] for t in inputs]
    rows += [["shape", *_tensor(t), f"from {_maker(t.made_by)}, frozen in a cut"] for t in shapes]
    for t in outputs:
        readers = [_node(n) for n in t.read_by] + (["the model's output"] if t.is_output else [])
        rows.append(["out", *_tensor(t), f"to {', '.join(readers) or 'nobody'}"])
    return _table(["", *_TENSOR, ""], rows)


def _maker(made_by: NodeInfo | str | None) -> str:
    words = {"input": "the model's input", "weight": "a weight", None: "nobody"}
    return words[made_by] if made_by is None or isinstance(made_by, str) else _node(made_by)


def _node(node: NodeInfo) -> str:
    return f"{clean(node.label)} ({_op(node)})"


def _op(node: NodeInfo | OpCount) -> str:
    return clean(f"{node.domain}.{node.op}" if node.domain else node.op)


_TENSOR = ("tensor", "type", "shape", "declared", *COLUMNS)


def _tensor(t: TensorInfo) -> list[str]:
    """The cells of one tensor: type and shape, what is declared if that differs, range."""
    shape = _shape(t.shape)
    declared = ""
    if d := t.declared:
        declared = " ".join(
            word
            for word, real in ((d.type or "?", t.type), (_shape(d.shape), shape))
            if word != real
        )
    if t.value is not None:
        shape += f" = {t.value}"
    r = t.range
    numbers = [_number(r.min), _number(r.max), _number(r.mean)] if r else [""] * 3
    counts = [str(n or "") for n in (r.nan, r.inf, r.zeros)] if r else [""] * 3
    return [clean(t.name), t.type or "?", clean(shape), clean(declared), *numbers, *counts]


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
    """Bytes in the unit in which they have at most four digits; a damaged file's may be any
    number."""
    if number >= 1 << 60:
        return f"{big(number)} bytes"
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if number >= 1 << shift:
            return f"{number / (1 << shift):.1f} {unit}"
    return f"{number} bytes"
