"""A tool as a backend: it runs in a separate process, with the limits of a candidate.

To load a model is to write another one. `options`: `maker`, its name or file; `settings`, the
tool's own; `made`, `skip` and `samples` as in `Making`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version as version_of
from pathlib import Path
from typing import Any

from subgraph import plugins
from subgraph.documents import from_json
from subgraph.errors import NotInstalled, Refused, SubcutError
from subgraph.questions.blame.makers import Making
from subgraph.runtime.inputs import Sample
from subgraph.types import Fields


def version(options: Fields) -> str:
    """Return the version of the tool's package; "" without one."""
    package = plugins.read_constant("makers", options["maker"], "PACKAGE")
    return _call_guarded(version_of, options, package) if package else ""


def passes(model: Path, options: Fields) -> list[str]:
    """Return the names of the steps that the tool can omit."""
    return list(_run("steps", model, options))


def load(model: Path, options: Fields) -> Callable[[], None]:
    """Make a model; the function does nothing.

    Raises:
        NotInstalled: The tool's package is not there.
        Refused: The tool fails, or writes no model.
    """
    _run("make", model, options)
    if not Path(options["made"]).is_file():
        raise Refused(f"{options['maker']} wrote no model", code="maker.no-model")
    return lambda: None


def _run(function: str, model: Path, options: Fields) -> Any:
    """Run a function of the tool."""
    maker = plugins.load("makers", options["maker"])
    samples = from_json(tuple[Sample, ...], options.get("samples", []))
    making = Making(model, Path(options["made"]), frozenset(options["skip"]), samples)
    return _call_guarded(getattr(maker, function), options, making, **options["settings"])


def _call_guarded(function: Callable[..., Any], options: Fields, *given: Any, **more: Any) -> Any:
    """Call a function of the tool, which can raise anything."""
    try:
        return function(*given, **more)
    except SubcutError:
        raise
    except ImportError as e:
        package = plugins.read_constant("makers", options["maker"], "PACKAGE")
        hint = f"pip install {package}, or {options['maker']}:python=/path/to/venv/bin/python"
        is_missing = isinstance(e, PackageNotFoundError)
        why = f"the package {package!r} is not installed" if is_missing else str(e)
        raise NotInstalled(
            f"--made-by {options['maker']}: {why}", hint, code="maker.not-installed"
        ) from e
    except Exception as e:
        raise Refused(
            f"{options['maker']} fails: {type(e).__name__}: {e}", code="maker.failed"
        ) from e
