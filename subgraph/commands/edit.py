"""`subcut replace`, `merge` and `remove`: models, and an edited piece or nodes -> another model,
and the effect of the change on the outputs."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from subgraph import project
from subgraph.commands import Result, options, split_names
from subgraph.commands.options import Text, Texts, declare, option
from subgraph.commands.resolve import ResolvedOptions
from subgraph.commands.table import make_next
from subgraph.documents import to_json
from subgraph.errors import ResultExists, SubcutError, UsageError
from subgraph.graph.graph import Graph, load
from subgraph.graph.selection import select
from subgraph.iterables import flatten
from subgraph.results.commands import EditResult
from subgraph.storage import folders
from subgraph.storage.file_kinds import is_of_tflite
from subgraph.text import align_columns, clean, count
from subgraph.types import JsonObject, Strings, frozen

if TYPE_CHECKING:
    from subgraph.editing.draft import Draft
    from subgraph.runtime.inputs import Feeding
    from subgraph.runtime.reference import Reference


# Changes of an output that cannot be compared.
CHANGES = {"gone": "no longer an output", "new": "a new output"}
NOT_WRITTEN = "the new model was not written; --no-run writes it without a run"

TensorMap = Annotated[
    Texts,
    declare(
        "--map",
        "OURS=THEIRS",
        "The name of a tensor in the other model; or a file of lines `OURS THEIRS`. Repeatable.",
    ),
]


@frozen
class FileOptions:
    """The new file."""

    output: Text = option("--output -o", "FILE", "The new model; default: MODEL-new.onnx.")
    force: bool = option("--force", None, "Replace a file that is in the way.")
    no_run: bool = option("--no-run", None, "Run nothing: only write the file.")


def read_maps(words: Sequence[str] | None) -> dict[str, str]:
    """Read the tensor of the other model that replaces each of our tensors.

    Raises:
        UsageError: a word is neither OURS=THEIRS nor a file that can be read.
    """
    from subgraph.trials.matching.match_tensors import read_map

    names: dict[str, str] = {}
    for word in words or ():
        ours, equals, theirs = word.rpartition("=")
        if equals and not Path(word).is_file():
            if not ours or not theirs:
                raise UsageError(
                    f"--map {word}: expected OURS=THEIRS",
                    "--map conv1=input",
                    code="option.malformed",
                )
            names[ours] = theirs
        else:
            names |= read_map(Path(word))
    return names


def find_free_path(chosen: FileOptions, model: Path, reads: Sequence[Path]) -> Path:
    """Return the path of the new model.

    Raises:
        UsageError: the file is one that is read. ResultExists: it exists, and is not to be
            replaced.
    """
    for model_file in reads:
        if is_of_tflite(model_file):
            raise UsageError(
                f"{model_file.name} is TensorFlow Lite's: it is cut and run, but not edited",
                "edit the model that it was converted from",
                code="edit.tflite",
            )
    path = Path(chosen.output or f"{model.stem}-new.onnx")
    for file in reads:
        if path.exists() and path.samefile(file):
            raise UsageError(
                f"{path} is read: it cannot be written as well",
                "choose another -o FILE",
                code="output.is-input",
            )
    _require_absent(path, "-o", force=chosen.force)
    return path


def _require_absent(path: Path, flag: str, *, force: bool) -> None:
    if path.exists() and not force:
        raise ResultExists(
            f"{path} exists",
            f"choose another {flag} FILE, or --force to replace it",
            code="output.exists",
        )


def compare_outputs(
    graph: Graph, path: Path, feeding: Feeding, reference: Reference | None
) -> tuple[list[str], list[JsonObject]]:
    """Return lines and rows: the outputs of the model before and after, on the reference."""
    if reference is None:
        return ["outputs  not run (--no-run)"], []
    from subgraph.editing.effect import measure_effect

    try:
        rows = measure_effect(graph, path, feeding, reference)
    except SubcutError as e:
        e.hint = "; ".join(filter(None, (NOT_WRITTEN, e.hint)))
        raise
    fed = "your inputs" if feeding.inputs else f"random inputs, seed {feeding.seed}"
    head = f"outputs  before and after, on the reference ({fed})"
    cells = [("", clean(row.name), row.what or CHANGES[row.status]) for row in rows]
    return [head, *align_columns(cells)], [asdict(row) for row in rows]


def make_result(
    command: str,
    path: Path,
    draft: Draft,
    lines: list[str],
    rows: list[JsonObject],
    **more: Any,
) -> Result:
    """Return the document and the text of an edit."""
    remarks = [f"note     {remark}" for remark in draft.remarks]
    nodes = len(draft.model.graph.node)
    document = EditResult(
        schema=f"subcut.{command}/1",
        path=str(path),
        nodes=nodes,
        outputs=rows,
        remarks=draft.remarks,
    )
    head, *rest = lines
    last = f"{clean(str(path))}   {count(nodes, 'node')}"
    text = "\n".join([head, *remarks, *rest, last])
    following = make_next("check the model", "inspect", str(path))
    return Result(to_json(document) | more, text, next=[following])


def _ask(
    model: str | None,
    weights: str | None,
    inputs: options.InputOptions,
    runtime: options.RuntimeOptions,
    trust: bool,
) -> ResolvedOptions:
    result = options.ResultOptions(trust=trust)
    return ResolvedOptions(
        model=model, weights=weights, inputs=inputs, runtime=runtime, result=result
    )


@options.add_option_groups("precision", "timeout", "memory_limit")
def replace(
    *,
    model: options.ModelArgument = None,
    weights: options.Weights = None,
    start: options.Start = None,
    end: options.End = None,
    by: Text = option("--by", "PIECE", "The new piece: a model, or the folder of a cut."),
    tensor_map: TensorMap = None,
    file: FileOptions,
    inputs: options.InputOptions,
    runtime: options.RuntimeOptions,
    trust: options.Trust = False,
) -> Result:
    """Replace the nodes between two nodes by an edited piece.

    The piece's inputs and outputs are joined by name, or by --map. The reference runs the model
    before and after, and the changes of the outputs are shown. A piece may be in a body: --start
    loop1/body/conv.

    Examples:
      subcut replace -s stem/pad -e stem/pool --by subcut_out/stem_pad__stem_pool
    """
    from subgraph.editing import body_edit
    from subgraph.editing.effect import list_unfrozen_constants
    from subgraph.editing.replace import replace as replaced
    from subgraph.graph.region import find_region

    if not by:
        raise UsageError(
            "replace needs a model to insert",
            "subcut replace MODEL --start A --end B --by piece.onnx",
            code="argument.missing",
        )
    if not start and not end:
        raise UsageError(
            "replace what? name a first and a last node",
            "--start pool1 --end res2a_relu",
            code="region.ends-missing",
        )
    resolved = _ask(model, weights, inputs, runtime, trust)
    path = resolved.model_path
    piece_path = ResolvedOptions(resolved.settings, by).model_path
    new = find_free_path(file, path, [path, piece_path])
    feeding = resolved.feeding
    names = read_maps(tensor_map)
    with (
        contextlib.nullcontext() if file.no_run else resolved.start_reference() as reference,
        folders.make_temporary() as temporary,
    ):
        graph = load(path)
        piece = load(piece_path)
        starts = len(start or ())
        replaced_nodes = 0

        def edit(there: Graph, ends: Strings) -> Draft:
            first, last = split_names(ends, starts)
            region = find_region(there, first, last)
            nonlocal replaced_nodes
            replaced_nodes = len(region.nodes)
            # what a body computes is not known here
            run = reference if there is graph else None
            computed = list_unfrozen_constants(there, region, piece, feeding, run) if run else ()
            return replaced(there, region, piece, names, computed)

        ends = [*(start or ()), *(end or ())]
        draft = body_edit.edit_inside(graph, ends, edit, temporary / "inside")
        with draft.write(new) as aside:
            lines, rows = compare_outputs(graph, aside, feeding, reference)
    nodes = (
        f"{count(replaced_nodes, 'node')} → {count(piece.nodes, 'node')} of"
        f" {clean(str(piece_path))}"
    )
    return make_result("replace", new, draft, [f"replaced {nodes}", *lines], rows)


@options.add_option_groups("precision", "timeout", "memory_limit")
def merge(
    *,
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="The first model, or the folder of a cut.")
    ],
    other: Annotated[
        str,
        typer.Argument(
            metavar="MODEL2", help="The second model: a reader of the first one, or independent."
        ),
    ],
    tensor_map: TensorMap = None,
    file: FileOptions,
    inputs: options.InputOptions,
    runtime: options.RuntimeOptions,
    trust: options.Trust = False,
) -> Result:
    """Join two models, end to end or side by side.

    An input of MODEL2 is fed by the output of MODEL of the same name, or that --map names. Other
    inputs and outputs stay; inputs of the same name and type are one.

    Examples:
      subcut merge head.onnx tail.onnx -o whole.onnx
    """
    from subgraph.editing.effect import require_runs
    from subgraph.editing.merge import merge as merged

    settings = project.Project()  # the settings of a project's model do not fit another model
    resolved = ResolvedOptions(
        settings, model, inputs=inputs, runtime=runtime, result=options.ResultOptions(trust=trust)
    )
    path = resolved.model_path
    other_path = ResolvedOptions(settings, other).model_path
    new = find_free_path(file, path, [path, other_path])
    one = load(path)
    two = load(other_path)
    draft = merged(one, two, read_maps(tensor_map))
    checks = []
    with draft.write(new) as aside:
        if not file.no_run:
            with resolved.start_reference() as reference:
                maps = require_runs(aside, resolved.feeding, reference)
            left = f"; what makes maps was not run: {', '.join(map(clean, maps))}" if maps else ""
            checks.append(f"check    the reference runs it{left}")
    lines = [f"merged   {count(one.nodes, 'node')} and {count(two.nodes, 'node')}"]
    graph = draft.model.graph
    weights = {t.name for t in graph.initializer}
    for word, values in (
        ("in", [v for v in graph.input if v.name not in weights]),
        ("out", graph.output),
    ):
        lines += [f"  {word:<3}    {clean(v.name)}" for v in values]
    lines += checks
    return make_result("merge", new, draft, lines, [{"name": v.name} for v in graph.output])


@options.add_option_groups("precision", "timeout", "memory_limit")
def remove(
    *,
    model: options.ModelArgument = None,
    weights: options.Weights = None,
    nodes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NODE",
            help="Nodes of one input and one output.",
            autocompletion=options.complete_nodes,
        ),
    ] = None,
    first: Texts = option(
        "--from", "NODE", "Drop this node and all below it. Repeatable.", options.complete_nodes
    ),
    tail: Text = option(
        "--tail",
        "FILE",
        "Where to keep what --from drops; default: -tail next to the new model.",
    ),
    file: FileOptions,
    inputs: options.InputOptions,
    runtime: options.RuntimeOptions,
    trust: options.Trust = False,
) -> Result:
    """Take nodes out of a model: bypass some, or drop a tail.

    A bypassed node's readers read its input: a Cast, an Identity, a quantize-dequantize pair. A
    tail that is dropped, such as NMS, is kept as a model; `subcut merge` puts it back. Nodes may
    lie in a body: loop1/body/cast.

    Examples:
      subcut remove model.onnx stem/relu -o without.onnx
      subcut remove model.onnx --from head/softmax -o head.onnx --tail tail.onnx
    """
    from subgraph.editing import body_edit
    from subgraph.editing.effect import compute_edge_values
    from subgraph.editing.merge import bypass, remove_tail

    if bool(nodes) == bool(first):
        raise UsageError(
            "name nodes to bypass, or --from NODE to drop a tail",
            "subcut remove MODEL NODE …",
            code="argument.missing",
        )
    if tail and not first:
        raise UsageError(
            "--tail keeps what --from drops",
            "subcut remove MODEL --from NODE --tail tail.onnx",
            code="option.requires",
        )
    resolved = _ask(model, weights, inputs, runtime, trust)
    path = resolved.model_path
    new = find_free_path(file, path, [path])
    feeding = resolved.feeding
    with (
        contextlib.nullcontext() if file.no_run else resolved.start_reference() as reference,
        folders.make_temporary() as temporary,
    ):
        graph = load(path)
        if nodes:
            labels: dict[str, None] = {}

            def edit(there: Graph, names: Strings) -> Draft:
                chosen = list(flatten(select(there, word).nodes for word in names))
                labels.update((there.label(i), None) for i in chosen)
                return bypass(there, chosen)

            draft = body_edit.edit_inside(graph, nodes, edit, temporary)
            head = f"removed  {count(labels, 'node')}: {', '.join(map(clean, [*labels][:8]))}"
            kept = None
        else:
            ends = first or ()
            kept = Path(tail or new.with_name(f"{new.stem}-tail.onnx"))
            _require_absent(kept, "--tail", force=file.force)
            captured = (
                compute_edge_values(graph, ends, feeding, reference, temporary) if reference else ()
            )
            draft, cut = remove_tail(graph, ends, captured)
            cut.save(kept)
            removed = count(cut.region.nodes, "node")
            head = f"removed  {removed} from {', '.join(map(clean, ends))} on"
        with draft.write(new) as aside:
            lines, rows = compare_outputs(graph, aside, feeding, reference)
    if kept:
        lines.append(
            f"{clean(str(kept))}   the tail; back: subcut merge {clean(str(new))}"
            f" {clean(str(kept))}"
        )
    return make_result("remove", new, draft, [head, *lines], rows, tail=str(kept) if kept else None)
