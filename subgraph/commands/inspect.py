"""`subcut inspect`: a model, a node or the boundary between two nodes -> its contents and its
problems."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from subgraph import project
from subgraph.commands import Result, list_bodies, open_body, options, require_utf8, split_names
from subgraph.commands.options import option
from subgraph.commands.resolve import ResolvedOptions, parse_candidate
from subgraph.commands.table import make_next
from subgraph.errors import ModelError, SubcutError, UsageError
from subgraph.graph.graph import Graph, load
from subgraph.inspection.summary import CONSTANT
from subgraph.log import log
from subgraph.runtime.inputs import Feeding
from subgraph.storage import folders
from subgraph.storage.tensors import format_shape, has_dims
from subgraph.text import (
    align_columns,
    clean,
    clean_lines,
    count,
    count_columns,
    format_large,
    format_size,
    make_distinct_labels,
    shorten,
    split_signature,
    wrap,
)
from subgraph.types import Strings, frozen

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
        TypeEntry,
    )
    from subgraph.inspection.summary import OpCount
    from subgraph.runtime.candidate import Candidate

MAX_VALUE = 400  # characters of a line of an attribute or of metadata
MAX_LINES = 40  # of an attribute or of metadata
MAX_DETAILED = 3  # nodes; of more, a line for each tensor that they make
MAX_PROBLEMS = 50  # in the text; the document has them all
FIRST_ROWS = 40  # of the table of all tensors: two screens hold the first and the last ones
LAST_ROWS = 12
TEXT_WIDTH = 110  # columns of a text that goes to no terminal
UNBROKEN_WIDTH = 1 << 20  # columns of a line that is not broken
MIN_NAME = 12  # columns to which a name is shortened if a table is too wide
NAMES = ("node", "op", "tensor", "declared", "shape")  # columns that may be shortened
OMITTED = ("type", "min", "max", "mean", "zeros")  # columns that a narrow terminal does not show
COLUMNS = ("min", "max", "mean", "nan", "inf", "zeros")


@options.add_option_groups()
def inspect(
    *,
    model: options.ModelArgument = None,
    node: Annotated[
        str | None,
        typer.Argument(
            metavar="NODE",
            help="Show this node with its neighbors; a glob lists all that match.",
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
    no_run: bool = option("--no-run", None, "Only the contents of the file; run nothing."),
    every: bool = option("--all", None, "Each node, also constants, with whole names and sizes."),
) -> Result:
    """Show a model's operators, types, and tensors with shape and range.

    Shapes and ranges come from a run on the reference. With a node: the node and its neighbors.
    With --start and --end: the tensors that enter and leave that piece. With a node and -c: what
    this runtime is known to compute wrong in nodes like it (`subcut known`).

    Examples:
      subcut inspect model.onnx
      subcut inspect model.onnx stem/pool
      subcut inspect model.onnx 'block1/*'
      subcut inspect model.onnx --all
      subcut inspect model.onnx --start stem/pad --end stem/pool

    Exit code 0: the model is valid; 3: it is not, and the message names the node and the mistake.
    """
    settings = project.load()
    model, node = _split_words(model, node, settings)
    if node and (start or end):
        raise UsageError("name a node, or --start and --end, not both", code="option.conflict")
    if candidate and not node:
        raise UsageError(
            "-c goes with a node",
            "subcut lint MODEL -c SPEC names all nodes like those known to be wrong",
            code="option.requires",
        )
    resolved = ResolvedOptions(
        settings, model, weights, inputs, result=options.ResultOptions(trust=trust)
    )
    model_path = resolved.model_path
    feeding = resolved.feeding
    runtime = _find_runtime(resolved, candidate) if node else None
    graph = load(model_path)
    with require_utf8(model_path):
        places = tuple(start or ()), tuple(end or ())
        document = _make_document(graph, node, *places, None if no_run else feeding, runtime)
    following = make_next("look for known troubles with targets", "lint", str(model_path))
    return Result(document, format_text(document, every=every), [following])


def _find_runtime(resolved: ResolvedOptions, typed: str | None) -> Candidate | None:
    """Return the candidate whose runtime the node is held against; None if the project's cannot
    be read, with a warning.

    Raises:
        UnknownName, UsageError: the one that is typed cannot be read.
    """
    if typed:
        return parse_candidate(resolved, typed)
    spec = resolved.settings.get("candidate")
    try:
        if spec:
            return parse_candidate(resolved, spec)
        return None
    except SubcutError as e:
        place = Path(resolved.settings.find_origin("candidate") or "$SUBCUT_CANDIDATE").name
        what = "; ".join(
            filter(None, (e.what, e.hint, f"correct {place}, or name one with -c SPEC"))
        )
        log.warning("the project's candidate, %s, cannot be read: %s", clean(spec), what)
        return None


def _make_document(
    graph: Graph,
    node: str | None,
    start: Strings,
    end: Strings,
    fed: Feeding | None,
    runtime: Candidate | None,
) -> InspectDocument:
    """Return the document of the named nodes, of the model or of a body."""
    from subgraph.bodies.iterations import NotRun
    from subgraph.runtime.reference import make_default

    words = (node,) if node else (*start, *end)
    if not any("/" in word for word in words):
        return _describe(graph, node, start, end, fed, runtime)
    try:
        with (
            folders.make_temporary() as folder,
            make_default(graph) if fed else nullcontext() as reference,
            open_body(graph, words, fed or Feeding(), reference, folder) as (
                there,
                feeding,
                names,
            ),
        ):
            node = names[0] if node else None
            begin, last = split_names(names, len(start))
            return _describe(
                there, node, begin, () if node else last, feeding if fed else None, runtime
            )
    except (NotRun, ModelError) as e:
        log.warning("%s; only the contents of the file are shown", e.what)
        return _make_document(graph, node, start, end, None, runtime)


def _describe(
    graph: Graph,
    node: str | None,
    start: Sequence[str],
    end: Sequence[str],
    fed: Feeding | None,
    runtime: Candidate | None,
) -> InspectDocument:
    from subgraph.commands.lint import list_hints
    from subgraph.inspection import describe

    if node:
        document = describe.describe_nodes(graph, node, fed)
        if runtime is None:
            return document
        said = [
            (issue.node.top, issue.reason) for issue in list_hints(graph, runtime) if issue.node
        ]
        nodes = [
            replace(node, known=[reason for top, reason in said if top == node.index])
            for node in document.nodes
        ]
        return replace(document, nodes=nodes)
    if not start and not end:
        whole = describe.describe_model(graph, fed)
        return replace(
            whole, notes=[*whole.notes, *(f"inside: {body}" for body in list_bodies(graph))]
        )
    try:
        return describe.describe_region(graph, start, end, fed)
    except ModelError as e:
        return describe.describe_invalid_model(graph, e)


def _split_words(
    model: str | None, node: str | None, settings: project.Project
) -> tuple[str | None, str | None]:
    """Split the words into model and node.

    A single word that is not a file is a node, if a model is found without it.
    """
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


def format_text(document: InspectDocument, *, every: bool = False) -> str:
    """Return the document for people: what is wrong first, then one table.

    Args:
        document: The model, the nodes or the region.
        every: Show all rows with whole names. By default a table of many tensors has its first and
            last rows, without constants, and names are shortened to the width of the terminal.
    """
    from subgraph.inspection.describe import ModelDocument, NodesDocument, RegionDocument

    view: Iterable[str] = ()  # an invalid model has no view
    form = _Form(None if every else shutil.get_terminal_size((TEXT_WIDTH, 0)).columns)
    if isinstance(document, ModelDocument):
        view = _iter_model(document, form)
    elif isinstance(document, NodesDocument):
        view = _iter_nodes(document, form)
    elif isinstance(document, RegionDocument):
        view = _iter_region(document, form)
    fatal = [p for p in document.problems if p.fatal]
    small = [p for p in document.problems if not p.fatal]
    lines = [_make_headline(document)]
    if fatal:
        lines += [f"INVALID: {count(fatal, 'problem')}", *_list_problems(fatal)]
    lines += view
    if small or document.notes:
        lines += ["notes", *_list_problems(small)]
        lines += [f"  {clean(note)}" for note in document.notes]
    return "\n".join(lines)


@frozen
class _Form:
    """The extent of a table.

    Attributes:
        width: Columns that its lines may take; None to show all rows, names and sizes whole.
    """

    width: int | None

    def is_shown(self, node: NodeInfo) -> bool:
        """Return whether the node has a row: a constant is a weight, and has none by default."""
        return self.width is None or node.op != CONSTANT or bool(node.domain)

    def describe_tensor(self, tensor: TensorInfo, *, is_end: bool = False) -> list[str]:
        """Return the cells of a tensor: type and shape, what is declared if that differs, range.

        Args:
            tensor: The tensor.
            is_end: Whether the symbols of a declared shape are shown, too.
        """
        shape = self._format_shape(tensor.shape)
        declared = ""
        written = tensor.declared
        if written and (is_end or not _fits(written, tensor)):
            pairs = (written.type or "?", tensor.type), (self._format_shape(written.shape), shape)
            declared = " ".join(word for word, real in pairs if word != real)
        is_short = self.width is None or len(tensor.shape or ()) < 2  # as a shape, or a size
        if tensor.value is not None and is_short:
            shape += f" = {tensor.value}"
        numbers = [""] * len(COLUMNS)
        if r := tensor.range:
            numbers = [_format_number(number) for number in (r.min, r.max, r.mean)]
            numbers += [str(n or "") for n in (r.nan, r.inf, r.zeros)]
        return [clean(tensor.name), tensor.type or "?", clean(shape), clean(declared), *numbers]

    def _format_shape(self, shape: Sequence[Any] | None) -> str:
        from subgraph.inspection.drawn_network import shorten_size

        if shape is None:
            return "any"
        if self.width is None:
            return format_shape(tuple(shape))
        return format_shape(tuple(shorten_size(d) if isinstance(d, str) else d for d in shape))

    def format_table(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
        """Return aligned columns, numbers to the right; columns without content are left out, and
        rows between the first and the last ones.

        Args:
            header: The titles.
            rows: The cells.
        """
        if not rows:
            return []
        left = len(rows) - FIRST_ROWS - LAST_ROWS
        is_short = self.width is None or left <= 1
        if not is_short:
            rows = [*rows[:FIRST_ROWS], *rows[-LAST_ROWS:]]
        kept = [k for k in range(len(header)) if any(row[k] for row in rows)]
        names = [header.index(word) for word in ("node", "tensor") if word in header]
        if len(names) > 1 and all(row[names[0]] == row[names[1]] for row in rows):  # a .tflite
            kept.remove(names[1])
        widths = {k: max(count_columns(row[k]) for row in (header, *rows)) for k in kept}
        self._narrow(header, widths)
        labels = {
            k: make_distinct_labels([row[k] for row in (header, *rows)], widths[k]) for k in widths
        }
        cells = [[labels[k][row[k]] for k in widths] for row in (header, *rows)]
        right = [place for place, k in enumerate(widths) if header[k] in COLUMNS]
        lines = [f"  {line}" for line in align_columns(cells, right)]
        if not is_short:
            more = f"  … {left} more: --all, or a node's name or glob, 'block1/*'"
            lines.insert(FIRST_ROWS + 1, more)
        return lines

    def _narrow(self, header: Sequence[str], widths: dict[int, int]) -> None:
        """Take from the widest column of names until the lines fit or names are as short as they
        can be, then from shapes; then omit numbers and types."""
        while self.width and sum(widths.values()) + 2 * len(widths) > self.width:
            long = [k for k in widths if header[k] in NAMES and widths[k] > MIN_NAME]
            omitted = [k for k in widths if header[k] in OMITTED]
            if long:
                widths[max(long, key=lambda k: (header[k] != "shape", widths[k]))] -= 1
            elif omitted:
                del widths[omitted[-1]]
            else:
                return

    def wrap(self, title: str, words: str) -> list[str]:
        """Return words in lines after a title; words that a no-break space joins stay in one
        line."""
        width = max(self.width or UNBROKEN_WIDTH, 2 * len(title))
        lines = wrap(title + words, width, len(title))
        return [line.replace("\xa0", " ") for line in lines]


def _fits(declared: TypeEntry, tensor: TensorInfo) -> bool:
    """Return whether a declaration is that of a tensor, apart from sizes that it leaves open."""
    if declared.type != tensor.type or declared.shape is None or tensor.shape is None:
        return declared.type == tensor.type and declared.shape == tensor.shape
    return has_dims(tensor.shape, declared.shape)


def _make_headline(document: InspectDocument) -> str:
    m = document.model
    size = format_size(m.bytes)
    if m.external_bytes:
        size += f" + {format_size(m.external_bytes)} outside"
    opsets = (
        ", ".join(f"{clean(domain)} {version}" for domain, version in m.opsets.items()) or "none"
    )
    words = [size, f"IR {m.ir_version}", f"opset {opsets.removeprefix('ai.onnx ')}"]
    words += [f"by {clean(m.producer)}"] if m.producer else []
    if "tflite_signature" in m.metadata:
        words.append(f"signature {clean(m.metadata['tflite_signature'])}")
    return f"{clean(Path(m.path).name)}   {' · '.join(words)}"


def _list_problems(problems: Sequence[ProblemEntry]) -> Iterable[str]:
    for p in problems[:MAX_PROBLEMS]:
        yield f"  {p.kind:<9}  {clean(p.what)}"
        if p.hint:
            yield f"  {'':<9}    {clean(p.hint)}"
    if len(problems) > MAX_PROBLEMS:
        yield f"  … and {len(problems) - MAX_PROBLEMS} more (--json has them all)"


def _iter_model(document: ModelDocument, form: _Form) -> Iterable[str]:
    ops = document.ops
    weights = document.weights
    kinds = "\xa0· ".join(f"{_name_op(op)}\xa0{op.count}" for op in ops)
    nodes = f"{count(sum(op.count for op in ops), 'node')}: {kinds}"
    yield from form.wrap("ops      ", nodes)
    parts = ", ".join(
        f"{w.type} {format_large(w.parameters)} ({format_size(w.bytes)})" for w in weights.by_type
    )
    sparse = f" · {weights.sparse} sparse" if weights.sparse else ""
    total = (
        f"{count(weights.count, 'tensor')} · {format_large(weights.parameters)} parameters{sparse}"
    )
    yield from form.wrap("weights  ", f"{total}: {parts}" if parts else total)
    for f in document.functions:
        name = ".".join(clean(part) for part in (f.domain, f.name, f.overload) if part)
        yield f"function {name}   {count(f.nodes, 'node')}, called {count(f.calls, 'time')}"
    rows = [["in", *form.describe_tensor(t, is_end=True)] for t in document.inputs]
    rows += [["out", *form.describe_tensor(t, is_end=True)] for t in document.outputs]
    yield from form.format_table(["", *_TENSOR], rows)
    yield from (f"  {clean(t.name)}: {clean(t.values)}" for t in document.inputs if t.values)
    yield ""
    rows = []
    for node in filter(form.is_shown, document.nodes):
        first = [f"#{node.index}", clean(node.name), _name_op(node)]
        for tensor in node.outputs:
            rows.append([*first, *form.describe_tensor(tensor)])
            first = ["", "", ""]
    yield from form.format_table(["#", "node", "op", *_TENSOR], rows)


def _iter_nodes(document: NodesDocument, form: _Form) -> Iterable[str]:
    if len(document.nodes) > MAX_DETAILED:
        yield f"{clean(document.selector)}  {count(document.nodes, 'node')}"
        rows = []
        for node in document.nodes:
            rows += [[_name_node(node), *form.describe_tensor(tensor)] for tensor in node.outputs]
        yield from form.format_table(["node", *_TENSOR], rows)
        return
    for node in document.nodes:
        yield _name_node(node)
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
        yield from _iter_boundary(form, node.inputs, (), node.outputs)


def _iter_region(document: RegionDocument, form: _Form) -> Iterable[str]:
    ends = (document.start, "the start"), (document.end, "the end")
    names = " → ".join(clean(", ".join(labels)) or default for labels, default in ends)
    parts = (document.nodes, "node"), (document.inputs, "input"), (document.outputs, "output")
    numbers = [count(items, noun) for items, noun in parts]
    yield (
        f"region  {names}   {' · '.join(numbers)} · {format_large(document.parameters)} parameters"
    )
    yield from _iter_boundary(form, document.inputs, document.shapes, document.outputs)
    yield f"weights  {count(document.weights, 'tensor')}"
    for nodes, word, why in (
        (document.pulled, "pulled", "make constants and come along"),
        (document.random, "random", "draw random numbers: captured, not cut"),
    ):
        if nodes:
            yield f"{word}   {', '.join(map(_name_node, nodes))}: {why}"
    yield ""
    yield from (f"  {_name_node(n)}" for n in document.nodes)


def _iter_boundary(
    form: _Form,
    inputs: Iterable[EnteringTensor],
    shapes: Iterable[EnteringTensor],
    outputs: Iterable[LeavingTensor],
) -> Iterable[str]:
    rows = [["in", *form.describe_tensor(t), f"from {_name_maker(t.made_by)}"] for t in inputs]
    rows += [
        ["shape", *form.describe_tensor(t), f"from {_name_maker(t.made_by)}, frozen in a cut"]
        for t in shapes
    ]
    for t in outputs:
        readers = [*map(_name_node, t.read_by), *(["the model's output"] * t.is_output)]
        rows.append(["out", *form.describe_tensor(t), f"to {', '.join(readers) or 'nobody'}"])
    return form.format_table(["", *_TENSOR, ""], rows)


def _name_maker(made_by: NodeInfo | str | None) -> str:
    words = {"input": "the model's input", "weight": "a weight", None: "nobody"}
    if made_by is None or isinstance(made_by, str):
        return words[made_by]
    return _name_node(made_by)


def _name_node(node: NodeInfo) -> str:
    return f"{clean(node.label)} ({_name_op(node)})"


def _name_op(node: NodeInfo | OpCount) -> str:
    return clean(f"{node.domain}.{node.op}" if node.domain else node.op)


_TENSOR = ("tensor", "type", "shape", "declared", *COLUMNS)


def _format_number(value: float | None) -> str:
    if value is None:
        return ""
    if isinstance(value, int):
        return str(value)
    return f"{value:.4g}"
