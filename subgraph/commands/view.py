"""`subcut view`: a model, a case or a bisection's folder -> a page on 127.0.0.1 that shows it and
works on it."""

from __future__ import annotations

import contextlib
import os
import tempfile
import webbrowser
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from subgraph import project, results, system
from subgraph.cases import case
from subgraph.cases.layout import PLAN_JSON, REPORT_FILES, RUN_JSON
from subgraph.commands import Result, options
from subgraph.commands.lint import list_hints
from subgraph.commands.options import Number, Text, Texts, option
from subgraph.commands.resolve import ResolvedOptions, parse_candidate
from subgraph.documents import read_document, to_json
from subgraph.errors import InputError, SubcutError, UsageError
from subgraph.graph.graph import Graph, load
from subgraph.log import log
from subgraph.reports import DEVICES
from subgraph.results.bisect import BisectDocument
from subgraph.results.commands import ViewResult
from subgraph.results.compare import ComparisonDocument
from subgraph.results.plan import PlanDocument
from subgraph.results.sweep import SweepDocument
from subgraph.storage import folders
from subgraph.text import clean
from subgraph.trust import require as require_trust
from subgraph.types import JsonObject, frozen

if TYPE_CHECKING:
    from subgraph.view.page_session import ViewOptions

PORTS = (1, 65_535)
MAX_DEPTH = 8  # of bodies in bodies whose documents are checked
REDIRECT = (
    '<!doctype html><meta http-equiv="refresh" content="0; url={url}"><a href="{url}">subcut'
    " view</a>\n"
)


@frozen
class RunOptions:
    """The candidates that the page may run."""

    candidates: Texts = option(
        "--candidate -c",
        "SPEC",
        "As for bisect. Repeatable: Compare runs each; those of subcut.toml are offered as well.",
        options.complete_candidates,
    )
    recorded: Texts = option("--recorded", "DIR", "A device's layer dumps. Repeatable.")
    criterion: Text = option(
        "--criterion",
        "RULE",
        "Rule of agreement, as for bisect.",
        options.complete_plugins("criteria"),
    )
    timeout: options.Timeout = None
    trust: options.Trust = False


@options.add_option_groups()
def view(
    *,
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL|CASE|RUN",
            help="ONNX file, case, or folder of a bisection.",
            show_default=False,
        ),
    ] = None,
    runs: RunOptions,
    inputs: options.InputOptions,
    weights: options.Weights = None,
    output: options.Output = None,
    port: Number = option("--port", "N", "Port on 127.0.0.1; default: any free one.", limits=PORTS),
    no_browser: bool = option("--no-browser", None, "Only print the page's address."),
) -> Result:
    """Open a page on which to see, cut, compare and bisect a model.

    The page is served on 127.0.0.1 to this user only, until Ctrl-C; its address holds a key. It
    runs only candidates that this command line or the project file names.

    Examples:
      subcut view model.onnx -c wrong.py
      subcut view model.onnx --recorded dumps --no-browser
      subcut view subcut_out/bisect-wrong.py
      subcut view subcut_out/plan-int8
    """
    from subgraph.view.page_session import ViewSession
    from subgraph.view.server import ViewServer
    from subgraph.view.values import open_model

    settings = project.load()
    found = _read_run(model)
    resolved = ResolvedOptions(
        settings,
        find_model(found.file, found.structure, clean(str(model))) if found else model,
        weights,
        inputs,
        result=options.ResultOptions(output, trust=runs.trust),
    )
    path = resolved.model_path
    words = str(path if found or model is None else model)
    typed = make_view_options(settings, runs, inputs, output, weights)
    if found:
        typed = offer_candidate(
            typed, resolved, found.candidate, f"{model}/{RUN_JSON}", trust=runs.trust
        )
    known = partial(find_known, resolved, list(typed.candidates))
    typed = replace(typed, known=known, sizes=resolved.feeding.find_symbol_sizes)

    def open_session() -> ViewSession:
        opened = open_model(path)
        if found and found.structure != opened.graph.skeleton.structure:
            raise UsageError(
                f"{clean(str(model))} is of another model than {opened.graph.path.name}",
                "go to the folder of its model",
                code="result.other-model",
            )
        session = ViewSession(opened, words, typed)
        session.show_case(path.parent)
        if found:
            session.runs.show(found.kind, found.command, found.page)
        return session

    with ViewServer(open_session, port or 0) as server:
        with contextlib.suppress(KeyboardInterrupt), system.interrupt_on_termination():
            log.info("%s   (Ctrl-C ends it)", server.url)  # from here on Ctrl-C is no error
            with contextlib.nullcontext() if no_browser else open_page(server.url):
                server.serve_forever(poll_interval=0.2)
        server.session.close()  # a run that is under way stores its state
    return Result(ViewResult(), "the page is closed")


@contextlib.contextmanager
def open_page(url: str) -> Iterator[None]:
    """Open an address in the browser by a file that only this user can read, which is removed after
    the block.

    Each user of the machine can read the browser's command line, and the address holds the key.
    """
    home = Path(os.environ.get("XDG_RUNTIME_DIR", ""))
    if not (home.is_absolute() and os.access(home, os.W_OK) and system.is_private(home)):
        home = Path(tempfile.gettempdir())  # a user's own on macOS and Windows
    with folders.make_scratch(home, "subcut-view") as folder:
        page = folder / "open.html"
        page.touch(0o600)
        page.write_text(REDIRECT.format(url=url), encoding="utf-8")
        webbrowser.open(page.as_uri())
        yield


def offer_candidate(
    typed: ViewOptions, resolved: ResolvedOptions, spec: str, place: str, *, trust: bool
) -> ViewOptions:
    """Return the options with the candidate of an opened run, before those that are not typed.

    Its code runs only if it is trusted, because the run's folder can be someone else's.

    Args:
        typed: The options.
        resolved: The options of the command.
        spec: The SPEC of the candidate; "" for none.
        place: The file that names it.
        trust: Whether the code is trusted from now on.
    """
    if not spec or spec in typed.candidates:
        return typed
    try:
        candidate = parse_candidate(resolved, spec)
    except SubcutError as e:
        log.info("%s is not offered: %s", clean(spec), e.what)
        return typed
    code = replace(candidate, origin=candidate.origin or place).code
    if trust:
        require_trust(code, trust=True)
    candidates = {spec: [f"--candidate={spec}"], **typed.candidates}
    if typed.together:
        candidates = {**typed.candidates, **candidates}
    return replace(typed, candidates=candidates, foreign={spec: code})


def find_known(
    resolved: ResolvedOptions, specs: Sequence[str], graph: Graph
) -> dict[int, list[str]]:
    """Return the known faults of the candidates in nodes like those of a graph, by node."""
    found: dict[int, list[str]] = {}
    for spec in specs:
        with contextlib.suppress(SubcutError):  # a run reports mistakes in words, model or files
            for issue in list_hints(graph, parse_candidate(resolved, spec)):
                if issue.node and issue.node.top is not None:
                    found.setdefault(issue.node.top, []).append(clean(f"{spec}: {issue.reason}"))
    return found


@frozen
class _FoundRun:
    """The result of a bisection or a plan that is opened.

    Attributes:
        kind: The command that wrote it.
        command: The command line that wrote it.
        file: The model's file.
        structure: The digest of the model's structure; None if it is unknown.
        page: The JSON that the page shows.
        candidate: The SPEC of its candidate; "" if it has none that subcut can call.
    """

    kind: str
    command: str
    file: str
    structure: str | None
    page: dict[str, object]
    candidate: str = ""


def _read_run(place: str | None) -> _FoundRun | None:
    """Return the result in the folder of a bisection or a plan; None for anything else.

    Raises:
        InputError: it cannot be read.
        UsageError: it is the search inside a node.
    """
    if place and (Path(place) / PLAN_JSON).is_file():
        folder = Path(place)
        hint = "name the folder that `subcut plan` wrote"
        plan = read_document(folder / PLAN_JSON, PlanDocument, hint)
        manifest = case.read_manifest(folder)
        if manifest is None:
            raise InputError(f"{folder} has no manifest", hint, code="case.damaged")
        agrees = {0: True, 1: False}.get(plan.exit_code)
        report = str(folder / REPORT_FILES["html"])
        source = manifest.source
        page = {**to_json(plan), "agree": agrees, "report": report}
        return _FoundRun("plan", plan.command, source.file, source.structure_sha256, page)
    if place is None or not (Path(place) / RUN_JSON).is_file():
        return None
    hint = "name the folder that `subcut bisect` wrote"
    found = results.read(Path(place) / RUN_JSON, hint)
    if isinstance(found, (SweepDocument, PlanDocument)):
        raise InputError(f"{place} is not a bisection", hint, code="document.damaged")
    if isinstance(found, BisectDocument) and found.setup.body:
        raise UsageError(
            f"{place} is the search inside {found.setup.body}, which is not a separate model",
            f"open {place}/report.html, or view the bisection of the model, or the case in it",
            code="view.body-run",
        )
    kind = found.schema.split("/")[0].removeprefix("subcut.")
    about = found.model
    spec = ""
    if isinstance(found, (BisectDocument, ComparisonDocument)):
        candidate = found.setup.candidate
        spec = candidate.name if candidate.backend not in DEVICES else ""
    return _FoundRun(kind, found.command, about.file, about.structure_sha256, to_json(found), spec)


def find_model(file: str, structure: str | None, folder: str) -> str:
    """Return the model here that the bisection or plan is of, known by its structure: the file of
    that name before others.

    Raises:
        UsageError: There is no such model.
    """
    for path in (Path(file), *sorted(Path().glob("*.onnx"))):
        with contextlib.suppress(SubcutError):  # another file here may be damaged
            if path.is_file() and load(path).skeleton.structure == structure:
                return str(path)
    raise UsageError(
        f"no model here is the one of {folder}: {file} as it was then",
        "go to the folder of its model; one that was exported again needs a new comparison",
        code="result.model-missing",
    )


def make_view_options(
    settings: project.Project,
    runs: RunOptions,
    inputs: options.InputOptions,
    output: str | None,
    weights: str | None,
) -> ViewOptions:
    """Return the words that each run gets, and the candidates by name.

    Candidates of a project file have that file as their origin.
    """
    from subgraph.view.page_session import ViewOptions

    candidates: dict[str, Sequence[str]] = {
        spec: [f"--candidate={spec}"] for spec in runs.candidates or ()
    }
    table: JsonObject = settings.get("candidates", None, {})
    candidates |= {name: [f"--candidate={name}"] for name in table if name not in candidates}
    default = str(settings.get("candidate", None, "ort"))
    # the command finds the default as this command did, and requires trust if a file names it
    candidates.setdefault(default, [])
    shared = options.list_words(inputs, "inputs")
    shared += [f"--weights={weights}"] * bool(weights) + ["--trust"] * runs.trust
    tested = options.list_words(runs, "candidates", "recorded", "trust")
    place = Path(settings.get("output", output, "subcut_out"))
    recordings = tuple(runs.recorded or ())
    together = tuple(dict.fromkeys(runs.candidates or ()))
    return ViewOptions(
        candidates, inputs.inputs or (), shared, tested, recordings, place, together=together
    )
