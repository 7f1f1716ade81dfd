"""The case of an entry of `known`, a model in onnx's text form -> an example, with what onnx's
evaluator gives.

An entry may be somebody else's: nothing of its case runs in this process (`known_case_backend`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks import known_case_backend
from benchmarks.known_case_backend import IN, OUT
from subgraph.documents import to_json
from subgraph.errors import InputError, SubcutError
from subgraph.graph import graph as graphs
from subgraph.inspection.known import Entry, KnownCase
from subgraph.questions.sweep.operator_tests import MODEL, Example
from subgraph.runtime.worker import Worker
from subgraph.storage.digest import digest, digest_file
from subgraph.system import measure_free_memory

RTOL, ATOL = 1e-3, 1e-5  # what is known to be wrong is wrong by more
TIMEOUT = 60.0  # seconds for one case: the models are tiny
TEXT = "case.onnxtxt"
KEY = "case"


def examples(entries: Iterable[Entry], scratch: Path) -> Iterator[tuple[Entry, Example]]:
    """The entries that have a case, each with its example, whose files go below a folder.

    Raises:
        InputError: a case is no model, or the evaluator cannot run it.
    """
    cases = [(entry, entry.case) for entry in entries if entry.case]
    if not cases:
        return
    with open_evaluator() as evaluator:
        for entry, case in cases:
            yield entry, example_of(evaluator, entry, case, scratch / entry.path)


def open_evaluator() -> Worker:
    """The process that cases run in."""
    return Worker(
        str(Path(known_case_backend.__file__)), timeout=TIMEOUT, bounded=measure_free_memory()
    )


def example_of(evaluator: Worker, entry: Entry, case: KnownCase, folder: Path) -> Example:
    """The example; its files go to a folder, which is made.

    Raises:
        InputError: it is no model, or the evaluator cannot run it.
    """
    folder.mkdir(parents=True)
    text = folder / TEXT
    file = folder / MODEL
    text.write_text(case.model, encoding="utf-8")
    try:
        drawing = {key: value for key, value in to_json(case).items() if key != "model"}
        evaluator.load(KEY, text, {"into": str(file), **drawing})
        graph = graphs.load(file)
        names = [*(IN + name for name in graph.inputs), *(OUT + name for name in graph.outputs)]
        run = evaluator.run(KEY, folder, {name: f"v{k}" for k, name in enumerate(names)}, ())
    except SubcutError as e:  # whatever the parser and numpy raise, or end with
        raise InputError(
            f"the case of {entry.path} does not run: {e.what}", "correct its model", code=e.code
        ) from e
    values = {name: record.rebase(str(folder)) for name, record in run.by_name.items()}
    inputs, wanted = (
        tuple(
            replace(values[name], name=name.removeprefix(kind))
            for name in names
            if name.startswith(kind)
        )
        for kind in (IN, OUT)
    )
    key = digest("known case/2", digest_file(file), drawing)
    return Example(entry.name, file, inputs, wanted, RTOL, ATOL, key)
