"""`subcut bundle`: a case -> one file that can be mailed and run elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from subgraph import project
from subgraph.commands import Result, options
from subgraph.commands.options import Text, Texts, option
from subgraph.documents import to_json
from subgraph.errors import UsageError
from subgraph.log import log
from subgraph.results.commands import PackedResult
from subgraph.text import clean, count

if TYPE_CHECKING:
    from subgraph.cases.bundle import Packed

UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
LEFT_OUT_NAMED = 4  # files that are not packed


@options.with_option_groups()
def bundle(
    *,
    source: Annotated[
        str,
        typer.Argument(metavar="CASE", help="Folder that cut, bisect, sweep or manual wrote."),
    ],
    output: Text = option("--output -o", "FILE.zip", "The zip; default CASE.zip in this folder."),
    candidate_files: Texts = option(
        "--candidate-files",
        "PATH",
        "Files of the candidate to pack as they are, or a folder of them. Repeatable.",
    ),
    keep: Texts = option(
        "--keep",
        "NAME",
        "Also pack free texts, which may be private: those of a field (why, notes, stderr …),"
        " a file (log.txt), or all. Repeatable.",
    ),
    source_code: bool = option(
        "--keep-source",
        None,
        "Also pack lines of source code and their paths, which PyTorch writes into models.",
    ),
    strip_metadata: bool = option(
        "--strip-metadata", None, "Leave out all metadata and documentation of the models."
    ),
    force: bool = option("--force", None, "Replace another result that is in the way."),
) -> Result:
    """Pack a piece of a model into one zip that runs elsewhere.

    The zip holds the model, its inputs, the right outputs, the candidate's outputs, the versions of
    the machine, and a README.txt. Free texts and most words of commands are left out. `subcut
    replay FILE.zip` runs it elsewhere; without subcut, `python repro.py` does.

    Examples:
      subcut bundle subcut_out/bisect-wrong.py -o fault.zip
      subcut bundle subcut_out/bisect-wrong.py/culprit --candidate-files wrong.py
    """
    from subgraph.cases.bundle import BundleRequest, name_of, pack, require_free

    if source_code and strip_metadata:
        raise UsageError(
            "--keep-source and --strip-metadata: source code is metadata",
            "give one of them",
            code="option.conflict",
        )
    settings = project.load()
    path = Path(source)
    name = name_of(path)
    target = Path(output or f"{name}.zip")
    if output and (output.endswith("/") or target.is_dir()):
        target /= f"{name}.zip"
    require_free(target, name, force=force)
    request = BundleRequest(
        path,
        target,
        name,
        [Path(word) for word in candidate_files or ()],
        [Path.cwd(), *([settings.file.parent] if settings.file else [])],
        force=force,
        keep=keep or (),
        source=source_code,
        metadata=not strip_metadata,
    )
    return _make_result(pack(request), path)


def _make_result(packed: Packed, source: Path) -> Result:
    size = packed.path.stat().st_size
    for line in packed.warnings:
        log.warning("%s", clean(line))
    for line in packed.unchanged:
        log.info("in the bundle, to be checked: %s", clean(line))
    if packed.left_texts:
        log.info("texts left out: %s (--keep NAME packs one)", ", ".join(packed.left_texts))
    for name in packed.left[:LEFT_OUT_NAMED]:
        log.info("left out: %s, which subcut did not write", clean(name))
    if len(packed.left) > LEFT_OUT_NAMED:
        log.info("left out: %d more", len(packed.left) - LEFT_OUT_NAMED)
    document = PackedResult(
        path=str(packed.path),
        bytes=size,
        source=str(source),
        files=packed.files,
        warnings=packed.warnings,
        unchanged=packed.unchanged,
        left_out_texts=packed.left_texts,
        left_out=packed.left,
    )
    shown = next(
        (f"{size / unit:.1f} {word}" for unit, word in UNITS if size >= unit), f"{size} bytes"
    )
    return Result(
        to_json(document), f"{count(len(packed.files), 'file')}, {shown}: {clean(str(packed.path))}"
    )
