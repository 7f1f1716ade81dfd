"""`subcut report`: the document of a bisection -> pages, tables and files for other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from subgraph import plugins, results
from subgraph.cases.layout import PLAN_JSON, RUN_JSON, SWEEP_JSON
from subgraph.commands import Result, table
from subgraph.commands.options import Text, add_option_groups, option
from subgraph.documents import read_json
from subgraph.errors import UsageError
from subgraph.iterables import drop_repeats
from subgraph.results.commands import ReportResult
from subgraph.text import clean

STDOUT = "-"


def _complete(incomplete: str) -> list[str]:
    before, comma, word = incomplete.rpartition(",")
    return [
        f"{before}{comma}{name}" for name in plugins.list_names("reports") if name.startswith(word)
    ]


@add_option_groups()
def report(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help=(
                "The folder that `subcut bisect`, `compare`, `plan` or `sweep` wrote, or its"
                " run.json."
            ),
        ),
    ],
    forms: str = option(
        "--format -f",
        "FORM,…",
        f"{', '.join(plugins.list_own_names('reports'))}, or a Python file with your own;"
        " default text.",
        _complete,
        default="text",
    ),
    output: Text = option(
        "--output -o",
        "DIR",
        "Folder for the files; - shows one format. Default: the folder of run.json.",
    ),
) -> Result:
    """Write a result as HTML, Markdown or another form.

    Without options the text is shown.

    Examples:
      subcut report subcut_out/bisect-wrong.py
      subcut report subcut_out/bisect-wrong.py/run.json -f html,md -o reports
    """
    from subgraph.cases.find_case import find_result, require_no_loop
    from subgraph.reports import can_render, find_renderer, render_document

    words = drop_repeats(word.strip() for word in forms.split(",") if word.strip())
    if not words:
        raise UsageError(
            "no form named",
            f"known: {', '.join(plugins.list_names('reports'))}",
            code="argument.missing",
        )
    modules = {word: plugins.load("reports", word) for word in words}
    path = Path(run)
    if path.is_dir():
        path = find_result(path)
        require_no_loop(path)
        documents = [path / name for name in (SWEEP_JSON, PLAN_JSON, RUN_JSON)]
        path = next(filter(Path.is_file, documents), documents[-1])
    document = read(path)
    if odd := [word for word, module in modules.items() if not can_render(module, document)]:
        raise UsageError(
            f"the form {odd[0]} has no {find_renderer(document)}:"
            f" it does not show {document.schema}",
            "choose another form, -f html for example",
            code="report.not-for-result",
        )
    texts = {word: render_document(module, document) for word, module in modules.items()}
    if output == STDOUT or (output is None and words == ["text"]):
        if len(words) > 1:
            raise UsageError(
                "several forms for standard output",
                "name one form, or a folder with -o DIR",
                code="option.conflict",
            )
        text = texts[words[0]]
        return Result(ReportResult(report=text), text.rstrip("\n"))
    folder = Path(output) if output is not None else path.parent
    files = {}
    for word, module in modules.items():
        # a form from elsewhere may not define a file name
        stem = Path(word).stem.replace("-", "_")
        files[word] = folder / str(getattr(module, "FILE", f"report_{stem}.txt"))
    for word, file in files.items():
        table.write(file, texts[word], "choose another -o DIR")
    lines = [f"{word}  {clean(str(file))}" for word, file in files.items()]
    answer = ReportResult(files=[str(file) for file in files.values()])
    return Result(answer, "\n".join(lines))


def read(path: Path) -> results.Document:
    """Return the document of a bisection, a comparison, a recording, a plan or a sweep.

    Args:
        path: The file of the document.

    Raises:
        UsageError: There is no such file, it is not JSON, or a field is missing or wrong. The error
            names the field.
    """
    hint = f"`subcut bisect` or `compare` writes a {RUN_JSON} into its folder"
    document = read_json(path, hint)
    schema = document.get("schema", "none") if isinstance(document, dict) else "none"
    if schema not in results.KNOWN:
        raise UsageError(
            f"{path} is not a result with a report: its schema is {schema}, not one of"
            f" {', '.join(results.KNOWN)}",
            hint,
            code="document.unknown-schema",
        )
    return results.parse(document, str(path), hint)
