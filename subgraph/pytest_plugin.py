"""A plugin of pytest: the fixture `subcut_agrees(model, candidate, inputs)`; `pytest --subcut` for
a project's tests.

pytest imports this file in every session (entry point `pytest11`), so it imports nothing else when
it is imported.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from subgraph.errors import SubcutError
    from subgraph.project import Project
    from subgraph.runtime.python_values import Inputs

PROJECT_FILES = ("subcut.toml", "pyproject.toml")
OUTPUT = "subcut_out"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the plugin's three options."""
    group = parser.getgroup("subcut", "subcut: is a model right on a runtime or device?")
    group.addoption(
        "--subcut", action="store_true", help="Run [[tests]] of subcut.toml or [tool.subcut], too."
    )
    group.addoption(
        "--subcut-output",
        metavar="DIR",
        help=f"Folder of results; default {OUTPUT} in the rootdir.",
    )
    group.addoption(
        "--subcut-max-time",
        metavar="10m",
        default="10m",
        help="Limit of the search of one failing test; default 10m.",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Collect the rootdir's project file as well, if `testpaths` decides the collection.

    Raises:
        pytest.UsageError: `--subcut` without a project file.
    """
    if not config.getoption("subcut"):
        return
    here = [str(file) for name in PROJECT_FILES if (file := config.rootpath / name).is_file()]
    if not here and not any(arg.partition("::")[0].endswith(PROJECT_FILES) for arg in config.args):
        raise pytest.UsageError(
            f"--subcut: no {' and no '.join(PROJECT_FILES)} in {config.rootpath}"
        )
    if config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        config.args += here


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect the project file of the rootdir, or one that the command line names.

    A project file below, in a bundle of somebody, is not collected.
    """
    wanted = parent.config.getoption("subcut") and file_path.name in PROJECT_FILES
    if wanted and (
        file_path.parent == parent.config.rootpath or parent.session.isinitpath(file_path)
    ):
        return ModelTests.from_parent(parent, path=file_path)
    return None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show the failures in the GitHub workflow that runs the tests."""
    from subgraph.results import brief

    if not brief.is_github_workflow():
        return
    for report in terminalreporter.getreports("failed"):
        if says := dict(report.user_properties).get("subcut"):
            terminalreporter.write_line(brief.to_annotation(f"{report.nodeid}: {says}"))
            try:
                brief.add_to_summary(f"{report.nodeid}: {says}", report.longreprtext)
            except OSError as e:
                terminalreporter.write_line(f"subcut: cannot write the step's summary: {e}")


class ModelTests(pytest.File):
    """A project file: a test for each model on each candidate of its `[[tests]]`."""

    def collect(self) -> Iterator[pytest.Item]:
        """Yield a test for each model of the file.

        Raises:
            CollectError: The file cannot be read, or a model does not exist.
        """
        from subgraph import project
        from subgraph.errors import SubcutError
        from subgraph.text import clean

        seen: Counter[str] = Counter()
        try:
            settings = project.load(self.path.parent)
            if settings.file is None or not settings.file.samefile(self.path):
                return  # a pyproject.toml without settings, or next to a subcut.toml
            for one in settings.iter_tests():
                model = os.path.relpath(one.values["model"], settings.file.parent)
                name = clean(f"{model}[{one.values['candidate']}]")
                seen[name] += 1
                yield ModelTest.from_parent(
                    self, name=name + f"-{seen[name]}" * (seen[name] > 1), settings=one
                )
        except SubcutError as e:
            raise self.CollectError(_describe(e)) from e


class ModelTest(pytest.Item):
    """One model on one candidate."""

    def __init__(self, *, settings: Project, **more: Any) -> None:
        super().__init__(**more)
        self.settings = settings

    def runtest(self) -> None:
        """Fail unless the candidate is known to be right."""
        values = self.settings.values
        _require_agreement(self, self.settings, values["model"], values["candidate"], trust=True)

    def reportinfo(self) -> tuple[Path, None, str]:
        """Return the place of the test, and the title of its failure."""
        return self.path, None, self.name


@pytest.fixture
def subcut_agrees(request: pytest.FixtureRequest) -> Callable[..., None]:
    """`subcut_agrees(model, candidate, inputs)` fails the test unless the candidate is right.

    `model` and `candidate` are arguments as on subcut's command line. `inputs` is a file, a folder
    of samples, several of these, or an array for each name. Keyword arguments are `criterion`,
    `reference`, `shapes` (sizes for each name), `seed` and `may_be_empty` (outputs that are right
    even if they do not depend on the candidate). The project file has the defaults. Without a
    default, the candidate is onnxruntime, and the inputs are seeded random values.
    """
    from subgraph import project

    def agrees(
        model: str | Path, candidate: str | None = None, inputs: Inputs = None, **more: Any
    ) -> None:
        root = request.config.rootpath.resolve()
        settings = project.load(root)
        trust = settings.file is None or settings.file.is_relative_to(root)
        _require_agreement(
            request.node, settings, str(model), candidate, inputs, trust=trust, **more
        )

    return agrees


def _require_agreement(
    item: pytest.Item,
    settings: Project,
    model: str,
    candidate: str | None,
    inputs: Inputs = None,
    **more: Any,
) -> None:
    """Fail the test if the candidate is not known to be right; `more`: as of
    `agreement.find_disagreement`."""
    from subgraph import system
    from subgraph.agreement import Search, find_disagreement
    from subgraph.errors import SubcutError
    from subgraph.storage.folders import make_safe_name

    words = ["pytest", *(["--subcut"] if isinstance(item, ModelTest) else []), item.nodeid]
    typed = item.config.getoption("subcut_output")
    typed = str(item.config.invocation_params.dir / typed) if typed else None
    place = Path(settings.get("output", typed, item.config.rootpath / OUTPUT)).absolute()
    if place.is_relative_to(Path.cwd()):
        place = place.relative_to(Path.cwd())
    output = place / make_safe_name(item.nodeid)
    search = Search(output, item.config.getoption("subcut_max_time"), system.join(words))
    try:
        found = find_disagreement(settings, model, candidate, inputs, search, **more)
        error = "\n  ".join(found.lines) if found else ""
    except SubcutError as e:
        found = None
        error = _describe(e)
    if found:
        item.user_properties += [
            ("subcut", found.lines[0]),
            *((f"subcut_{k}", v) for k, v in found.places.items()),
        ]
    if error:
        pytest.fail(error, pytrace=False)  # outside of `except`, so that pytest shows one error


def _describe(error: SubcutError) -> str:
    """Return the fact of an error, and its remedy in the next line."""
    from subgraph.text import clean

    return f"error: {clean(error.what)}" + (f"\n  {clean(error.hint)}" if error.hint else "")
