"""The command line: the only module that prints or exits.

`arrange` rewrites the arguments before typer reads them. `subcut --start A --end B` means
`subcut cut --start A --end B`, and global options may be before or after the command.
"""

from __future__ import annotations

import atexit
import codecs
import contextlib
import gc
import io
import json
import logging
import os
import re
import shlex
import sys
import threading
import time
import traceback
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

from subgraph import system
from subgraph.commands import Result, load_module
from subgraph.commands.help import (
    GLOBAL_SECTION,
    GROUPS,
    TASKS,
    HelpGroup,
    HelpPage,
    find_section,
    join_words,
    make_replies,
    make_start_page,
)
from subgraph.commands.live import (
    EVENTS,
    FIRST_ANSWER_LEVEL,
    EventHandler,
    LineFormatter,
    ProgressHandler,
    adapt_to_stream,
)
from subgraph.commands.options import Text, add_option_groups, option
from subgraph.documents import to_json
from subgraph.errors import (
    EXIT_CODES,
    InternalError,
    OutOfMemory,
    OutputError,
    SubcutError,
    UsageError,
)
from subgraph.iterables import flatten
from subgraph.log import log
from subgraph.results import brief as short
from subgraph.results.answer import ErrorEntry, ErrorResult, NextCommand, TasksResult
from subgraph.storage.file_kinds import is_named_as_model
from subgraph.text import clean, clean_lines, is_text, replace_character
from subgraph.version import __version__

# The commands that store each run of the candidate, and resume from the stored runs.
RESUMABLE = frozenset(("bisect", "blame", "compare", "plan", "sweep", "manual"))
RESUME_HINT = "finished runs are stored: the same command continues"
COMMANDS = tuple(flatten(GROUPS.values()))
FLAGS = frozenset(
    ("--json", "--brief", "-v", "--verbose", "-q", "--quiet", "--progress", "--no-progress")
)
GROUP_ONLY = frozenset(
    ("--help", "-h", "--version", "--skill", "--install-completion", "--show-completion")
)
EXIT_TEXT = "; ".join(f"{code}: {meaning}" for code, meaning in EXIT_CODES.items())
HELP = f"""Find the piece of an ONNX model that a runtime or device computes wrong.

subcut cuts the model between two nodes, keeps the real tensors that enter and leave the piece,
runs it on the target ("candidate"), and compares with onnxruntime ("reference").

Examples:
  subcut demo DIR                            a folder to try this in
  subcut bisect model.onnx -c wrong.py       find the wrong nodes
  subcut --start stem/pad --end stem/pool    short for: subcut cut ...

Exit code {EXIT_TEXT}.

Terms such as "candidate" are explained in docs/words.md.
"""
INTERRUPTED = 130
INTERNAL = SubcutError.exit_code
HEARTBEAT_SECONDS = 15.0  # the time between two lines of a long run


class OutputForm(StrEnum):
    """The forms in which a command prints its result."""

    TEXT = ""
    JSON = "--json"
    BRIEF = "--brief"


class PlainConversion:
    """A replacement of typer's conversion of parameters: texts, lists of texts, flags, integers.

    typer's own conversion loads pydantic, which costs half of a cut's time (0.06 s). typer has no
    public way to replace it. For this reason, `_avoid_pydantic` sets the private attribute in which
    typer keeps its conversion, and typer's minor version is pinned.
    """

    def __init__(self, annotation: Any) -> None:
        self.annotation = annotation

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the value that the command gets.

        Raises:
            BadParameter: The value is not a whole number.
        """
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        if self.annotation is int and not isinstance(value, int):
            try:
                return int(value)
            except ValueError:
                raise typer.BadParameter(
                    f"{value!r} is not a whole number.", ctx=ctx, param=param
                ) from None
        return value


def _avoid_pydantic(params: list[Any]) -> None:
    for param in params:
        annotation = param.type_descriptor.annotation
        if annotation in (str, int, bool, list[str]):
            param._runtime_param = PlainConversion(annotation)


class Command(HelpPage, typer.core.TyperCommand):
    """A sub-command with `PlainConversion`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _avoid_pydantic(self.get_params(ctx))
        return super().parse_args(ctx, args)


class Group(HelpGroup):
    """All commands. `cut` runs if no command is named; global options may have any position."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _avoid_pydantic(self.get_params(ctx))
        for word in args:
            if not is_text(word):
                raise UsageError(
                    f"'{word}' is not UTF-8",
                    "rename it; neither ONNX nor JSON can hold such a name",
                    code="name.not-utf8",
                )
        match [word for word in args if word not in FLAGS]:
            case [first, second, *_] if second in COMMANDS and not {first, first[:1]} & {
                *COMMANDS,
                "-",
                "help",
            }:
                raise UsageError(
                    "the command comes first",
                    f"subcut {second} {first}",
                    code="usage.command-first",
                )
            case ["compare" | "bisect" as command, first, second, *_] if all(
                map(is_named_as_model, (first, second))
            ):
                raise UsageError(
                    f"{second} is a second model",
                    f"subcut {command} {first} -c {second}: the candidate's model",
                    code="usage.second-model",
                )
        return super().parse_args(ctx, arrange(args, set(COMMANDS)))

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Build the command when it is needed: all commands would take a third of a cut's time."""
        if cmd_name in COMMANDS and cmd_name not in self.commands:
            self.commands[cmd_name] = _build_command(cmd_name)
        return super().get_command(ctx, cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in COMMANDS:
            for name in COMMANDS:  # typer suggests the nearest of the commands that are built
                self.get_command(ctx, name)
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        items = super().shell_complete(ctx, incomplete)
        if incomplete.startswith("-"):
            cut = self.get_command(ctx, "cut")
            with cut.make_context("cut", [], parent=ctx, resilient_parsing=True) as inner:
                items += cut.shell_complete(inner, incomplete)
        return items


def arrange(args: list[str], commands: set[str]) -> list[str]:
    """Move global options to the front, and insert `cut` if no command is named.

    No command is named if the first word is a path or an option. `help COMMAND` becomes
    `COMMAND --help`.

    >>> arrange(["--start", "a", "--json"], {"cut"})
    ['--json', 'cut', '--start', 'a']
    >>> arrange(["bisekt"], {"cut"}), arrange(["help", "cut"], {"cut"})
    (['bisekt'], ['cut', '--help'])
    """
    front = list[str]()
    rest = list[str]()
    words = iter(args)
    for word in words:
        if word == "--":
            rest += [word, *words]
        elif word in FLAGS or word.startswith("--color="):
            front.append(word)
        elif word == "--color":
            front += [word, *(w for w in [next(words, None)] if w is not None)]
        else:
            rest.append(word)
    first = rest[0] if rest else ""
    is_path = any(c in first for c in "./") or os.path.isfile(first)  # noqa: PTH113
    if first == "help":
        return [*front, *rest[1:], "--help"]
    if (is_path or (first.startswith("-") and first not in GROUP_ONLY)) and first not in commands:
        rest.insert(0, "cut")
    return front + rest


# The text after the command's name in its usage line; `[OPTIONS]` for any other command.
USAGE = {"cut": "--start A --end B [OPTIONS]", "export": "-o DIR [OPTIONS]"}

app = typer.Typer(
    cls=Group,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


def _build_command(name: str) -> Any:
    """Return the command of a name."""
    module = load_module(name)
    if name == "manual":
        actions = typer.Typer(
            cls=HelpGroup, name=name, help=module.HELP, rich_markup_mode=None, add_completion=False
        )
        for action, function in module.ACTIONS.items():
            actions.command(action, cls=Command)(function)
        group = typer.main.get_group(actions)
        group.rich_help_panel = find_section(name)
        return group
    single = typer.Typer(rich_markup_mode=None, add_completion=False)
    usage = USAGE.get(name, "[OPTIONS]")
    single.command(name, cls=Command, options_metavar=usage, rich_help_panel=find_section(name))(
        getattr(module, name)
    )
    return typer.main.get_command(single)


def _print_skill(value: bool) -> None:
    if value:
        print(Path(__file__).with_name("SKILL.md").read_text(encoding="utf-8"), end="", flush=True)
        raise typer.Exit


def _print_version(value: bool) -> None:
    if value:
        print(f"subcut {__version__}", flush=True)
        raise typer.Exit


@app.callback(cls=Group, invoke_without_command=True, help=HELP)
@add_option_groups()
def global_options(
    ctx: typer.Context,
    as_json: bool = option(
        "--json", None, "One JSON document on standard output, errors too.", panel=GLOBAL_SECTION
    ),
    brief: bool = option(
        "--brief", None, "A short JSON document, with the next commands.", panel=GLOBAL_SECTION
    ),
    verbose: bool = option(
        "--verbose -v", None, "More lines on standard error.", panel=GLOBAL_SECTION
    ),
    quiet: bool = option("--quiet -q", None, "Only the result and errors.", panel=GLOBAL_SECTION),
    color: Text = option(
        "--color",
        "WHEN",
        "auto (default), always or never.",
        panel=GLOBAL_SECTION,
        words=("auto", "always", "never"),
    ),
    progress: bool = option(
        "--progress/--no-progress",
        None,
        "Lines or a bar that show progress (default).",
        panel=GLOBAL_SECTION,
        default=True,
    ),
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
    skill: Annotated[
        bool,
        typer.Option("--skill", callback=_print_skill, is_eager=True, help="A guide for agents."),
    ] = False,
) -> Result | None:
    """Apply the global options; if no command is named, return the list of tasks."""
    handler: logging.Handler
    if os.environ.get(EVENTS):
        handler = EventHandler(sys.stderr)
    else:
        handler = ProgressHandler(sys.stderr, live=progress and not quiet, verbose=verbose)
        handler.setFormatter(LineFormatter())
    log.handlers[:] = [handler]
    log.propagate = False
    level = FIRST_ANSWER_LEVEL if quiet else logging.INFO
    log.setLevel(logging.DEBUG if verbose else level)
    if progress and not quiet and not ctx.resilient_parsing and ctx.invoked_subcommand != "view":
        threading.Thread(target=_log_heartbeat, daemon=True).start()
    if ctx.invoked_subcommand is None and not ctx.resilient_parsing:
        return Result(TasksResult(tasks=TASKS), make_start_page())
    return None


def _log_heartbeat() -> None:
    """Log a line every `HEARTBEAT_SECONDS`, so that a long run does not look like a hang."""
    begin = time.monotonic()
    while True:
        time.sleep(HEARTBEAT_SECONDS)
        log.info("still working … %.0f s", time.monotonic() - begin, extra={"heartbeat": True})


def main() -> None:
    """Run one command line and exit."""
    # A model of 80,000 nodes has 400,000 objects and hardly any cycle for the collector to find.
    gc.set_threshold(500_000, 20, 20)
    # A request to end becomes an exit, so that context managers remove half-written folders.
    system.call_at_termination(lambda: sys.exit(system.TERMINATED))
    codecs.register_error("plain", replace_character)  # the console of Windows lacks →
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="plain")
    words = sys.argv[1:]
    form = next(
        (OutputForm(word) for word in ("--brief", "--json") if word in words), OutputForm.TEXT
    )
    if os.environ.get("_SUBCUT_COMPLETE") == "complete_bash":
        _exit(_complete())
    try:
        outcome = typer.main.get_command(app).main(
            args=words, prog_name="subcut", standalone_mode=False
        )
    except (KeyboardInterrupt, typer.Abort):
        outcome = INTERRUPTED
    except Exception as e:  # noqa: BLE001
        # Python wraps the KeyboardInterrupt if it comes while a class is created.
        if isinstance(e.__cause__, KeyboardInterrupt):
            outcome = INTERRUPTED
        else:
            outcome = _report(
                *_describe_error(e, verbose=bool({"-v", "--verbose"} & set(words))), form
            )
    for handler in log.handlers:
        if isinstance(handler, ProgressHandler):
            handler.close_bar()
    if outcome == INTERRUPTED:
        hint = RESUME_HINT if _can_resume(words) else ""
        error = ErrorEntry("Interrupted", code="run.interrupted", what="interrupted", hint=hint)
        outcome = _report(error, INTERRUPTED, form)
    _exit(_show(outcome, form) if isinstance(outcome, Result) else int(outcome or 0))


def _can_resume(words: list[str]) -> bool:
    """Return whether an interrupted command, if it is run again, continues from its stored runs."""
    stores = bool(RESUMABLE & set(words))
    recorded = any(word.startswith("--recorded") for word in words)  # then no candidate runs
    return stores and not recorded and "--fresh" not in words


def _complete() -> int:
    """Print bash's completions: typer finds the names, and `commands.help` quotes them for bash."""
    line = os.environ.get("COMP_WORDS", "")
    words = line.split("\n") if "\n" in line else line.split(" ")
    words, current, kept = join_words(words, int(os.environ.get("COMP_CWORD") or 0))
    os.environ.update(COMP_WORDS="\n".join(words), COMP_CWORD=str(current))
    output = io.StringIO()
    # A completion shows no errors.
    with (
        contextlib.redirect_stdout(output),
        contextlib.suppress(SystemExit, Exception),
    ):
        typer.main.get_command(app).main(args=[], prog_name="subcut", standalone_mode=False)
    names = filter(None, output.getvalue().split("\n"))
    lines = "".join(
        f"{reply}\n"
        for reply in make_replies(names, words[current] if current < len(words) else "", kept)
    )
    with contextlib.suppress(OSError):  # the shell has stopped reading
        print(lines, end="", flush=True)
    return 0


def _describe_error(e: Exception, *, verbose: bool) -> tuple[ErrorEntry, int]:
    """Return an exception as a document, and the exit code."""
    if isinstance(e, SubcutError):
        return ErrorEntry(**e.to_json()), e.exit_code
    if isinstance(e, typer.TyperException):
        what = e.format_message()
        error = ErrorEntry(
            "UsageError", code="usage.command-line", what=what, hint=_find_usage_line(e)
        )
        return error, e.exit_code
    if isinstance(e, MemoryError):
        error = ErrorEntry("MemoryError", code="memory.exceeded", what="out of memory")
        return error, OutOfMemory.exit_code
    if verbose:
        traceback.print_exc()
    if isinstance(e, OSError):
        what = ": ".join(filter(None, (str(e.strerror or e), e.filename)))
        error = ErrorEntry("OSError", code="internal.os-error", what=what, hint="-v shows where")
        return error, OutputError.exit_code
    if not isinstance(e, InternalError):
        e = InternalError(f"{type(e).__name__}: {e}", code="internal.failure")
    what = f"subcut itself failed: {e}"
    hint = "please report it, with -v"
    return ErrorEntry("InternalError", code=e.code, what=what, hint=hint), INTERNAL


def _find_usage_line(e: typer.TyperException) -> str:
    """Return the usage line of the command whose options cannot be read."""
    ctx = getattr(e, "ctx", None)
    if ctx is None or ctx.parent is None:
        return "usage: subcut [MODEL] --start A --end B; see `subcut --help`"
    return (
        f"{' '.join(ctx.get_usage().split()).replace('Usage:', 'usage:')}; see `{ctx.command_path}"
        " --help`"
    )


def _report(error: ErrorEntry, code: int, form: OutputForm) -> int | Result:
    """Print an error and return the exit code; for JSON, return the document of the error.

    The first line has the fact, and with `-v` the error's code. The second line has the hint.
    """
    if form is not OutputForm.TEXT:
        words = sys.argv[1:]
        quoted = re.search("'(.+?)'", error.what)
        unknown = quoted[1] if quoted else error.what.split()[-1]
        following = list[NextCommand]()
        for name in (error.nearest or ())[:1]:
            if unknown in words:
                corrected = [name if word == unknown else word for word in words]
                following.append(NextCommand("the nearest name", ["subcut", *corrected]))
        if error.code == "run.interrupted" and error.hint:
            following.append(NextCommand("continue", ["subcut", *words]))
        for line in re.findall("`(subcut [^`]+)`", error.hint):
            following.append(NextCommand("follow the hint", shlex.split(line)))
        document = ErrorResult(exit_code=code, error=error, next=following)
        return Result(document, "")
    name = f" [{error.code}]" if error.code and log.isEnabledFor(logging.DEBUG) else ""
    hint = f"\n  {clean(error.hint)}" if error.hint else ""
    if sys.stderr is not None:  # `2>&-` closes it
        with contextlib.suppress(OSError):  # the reader of a pipe has ended
            line = f"error: {clean(error.what)}{clean(name)}{hint}"
            print(adapt_to_stream(line, sys.stderr), file=sys.stderr, flush=True)
    return code


def _show(result: Result, form: OutputForm) -> int:
    if form is not OutputForm.TEXT:
        says = short.shorten(result.document, result.text).says
        added = {"says": says, "next": to_json(result.next)}
        result = replace(result, answer={**result.document, **added, **result.document})
    match form:
        case OutputForm.TEXT:
            text = adapt_to_stream(clean_lines(result.text), sys.stdout)
        case OutputForm.JSON:
            text = json.dumps(result.document, indent=1)
        case OutputForm.BRIEF:
            text = json.dumps(to_json(short.shorten(result.document, result.text)), indent=1)
    try:
        print(text, flush=True)
        if short.is_github_workflow():
            answer = short.shorten(result.document, result.text)
            if answer.of in short.ANSWERS:
                short.add_to_summary(answer.says, result.text)
                # Standard output has nothing but the document of `--json`.
                if result.exit_code and sys.stderr is not None:
                    print(short.to_annotation(answer.says), file=sys.stderr, flush=True)
    except BrokenPipeError:  # the reader of the pipe has ended, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as e:
        what = f"cannot write to {e.filename or 'standard output'}: {e.strerror}"
        error = ErrorEntry("OutputError", code="output.unwritable", what=what)
        _report(error, OutputError.exit_code, OutputForm.TEXT)
        return OutputError.exit_code
    return result.exit_code


def _exit(code: int) -> None:
    """Exit without freeing the objects of a large model, which takes a tenth of a run's time."""
    if executors := sys.modules.get("subgraph.runtime.executors"):
        executors.close()
    atexit._run_exitfuncs()  # these remove temporary folders
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # a closed stream is None
            stream.flush()
    os._exit(code)
