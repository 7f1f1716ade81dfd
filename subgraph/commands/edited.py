"""Functions of `replace`, `merge` and `remove`: the written file, and the effect of the change on
the outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from subgraph.commands import Result
from subgraph.commands.options import Text, Texts, declare, option
from subgraph.documents import to_json
from subgraph.errors import ResultExists, SubcutError, UsageError
from subgraph.graph.graph import Graph
from subgraph.results.commands import EditResult
from subgraph.storage.file_kinds import is_of_tflite
from subgraph.text import clean, count
from subgraph.types import JsonObject

if TYPE_CHECKING:
    from subgraph.editing.draft import Draft
    from subgraph.editing.effect import OutputEffect
    from subgraph.runtime.inputs import Feeding
    from subgraph.runtime.reference import Reference

NOT_WRITTEN = "the new model was not written; --no-run writes it without a run"

TensorMap = Annotated[
    Texts,
    declare(
        "--map",
        "OURS=THEIRS",
        "What the other model calls a tensor; or a file of lines `OURS THEIRS`. Repeatable.",
    ),
]


@dataclass(frozen=True)
class FileOptions:
    """The new file."""

    output: Text = option("--output -o", "FILE", "The new model; default: MODEL-new.onnx.")
    force: bool = option("--force", None, "Replace a file that is in the way.")
    no_run: bool = option("--no-run", None, "Run nothing: only write the file.")


def read_maps(words: Sequence[str] | None) -> dict[str, str]:
    """Our tensor → theirs.

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


def free_path(chosen: FileOptions, model: Path, reads: Sequence[Path]) -> Path:
    """Return the path of the new model.

    Raises:
        UsageError: the file is one that is read. ResultExists: it exists, and is not to be
            replaced.
    """
    for model_file in reads:
        if is_of_tflite(model_file):
            what = f"{model_file.name} is TensorFlow Lite's: it is cut and run, but not edited"
            raise UsageError(what, "edit the model that it was converted from", code="edit.tflite")
    path = Path(chosen.output or f"{model.stem}-new.onnx")
    for file in reads:
        if path.exists() and path.samefile(file):
            raise UsageError(
                f"{path} is read: it cannot be written as well",
                "choose another -o FILE",
                code="output.is-input",
            )
    if path.exists() and not chosen.force:
        raise ResultExists(
            f"{path} exists",
            "choose another -o FILE, or --force to replace it",
            code="output.exists",
        )
    return path


def compared(
    graph: Graph, path: Path, feeding: Feeding, reference: Reference | None
) -> tuple[list[str], list[JsonObject]]:
    """Lines and rows: the outputs of the model before and after, on the reference."""
    if reference is None:
        return ["outputs  not run (--no-run)"], []
    from subgraph.editing.effect import effect

    try:
        rows = effect(graph, path, feeding, reference)
    except SubcutError as e:
        e.hint = "; ".join(filter(None, (NOT_WRITTEN, e.hint)))
        raise
    fed = "your inputs" if feeding.inputs else f"random inputs, seed {feeding.seed}"
    width = max(len(clean(row.name)) for row in rows)
    lines = [f"outputs  before and after, on the reference ({fed})"]
    lines += [f"  {clean(row.name):<{width}}  {_what(row)}" for row in rows]
    return lines, [asdict(row) for row in rows]


def _what(row: OutputEffect) -> str:
    return row.what or {"gone": "no longer an output", "new": "a new output"}[row.status]


def result(
    command: str,
    path: Path,
    draft: Draft,
    lines: list[str],
    rows: list[JsonObject],
    **more: Any,
) -> Result:
    """The document and the text of an edit."""
    remarks = [f"note     {remark}" for remark in draft.remarks]
    nodes = len(draft.model.graph.node)
    edit = EditResult(
        schema=f"subcut.{command}/1",
        path=str(path),
        nodes=nodes,
        outputs=rows,
        remarks=draft.remarks,
    )
    document = to_json(edit) | more
    head, *rest = lines
    return Result(
        document, "\n".join([head, *remarks, *rest, f"{clean(str(path))}   {count(nodes, 'node')}"])
    )
