"""A user's score as a backend: its file runs in a separate process, with the limits of a
candidate.

The "model" is the Python file. It is fed each output as `o/SAMPLE/NAME`, each input as
`i/SAMPLE/NAME`, each true value as `t/SAMPLE/NAME`, and `draws` [k, n], indices of samples: it
returns a score for each row.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from subgraph import plugins
from subgraph.types import Fields, JsonObject

Run = Callable[[Mapping[str, Any]], dict[str, Any]]


def version() -> str:
    """Return "": nothing depends on it."""
    return ""


def load(model: str, options: Fields) -> Run:
    """Load the function of the file, which takes a list with a dictionary, name → array, per
    sample."""
    spec = plugins.make_user_spec("score", Path(model))
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function = getattr(module, str(options["function"]), None)
    if not callable(function):
        raise ValueError(f"{model} has no function {options['function']}")
    takes_more = len(inspect.signature(function).parameters) > 1

    def run(feeds: Fields) -> JsonObject:
        parts: dict[str, dict[int, JsonObject]] = {"o": {}, "i": {}, "t": {}}
        for key, value in feeds.items():
            if key != "draws":
                kind, sample, name = key.split("/", 2)
                parts[kind].setdefault(int(sample), {})[name] = value
        more = parts["t"] if options.get("truth") else parts["i"]
        scores = []
        for row in np.asarray(feeds["draws"]).tolist():
            outputs = [parts["o"][k] for k in row]
            scores.append(
                float(
                    function(outputs, [more[k] for k in row]) if takes_more else function(outputs)
                )
            )
        return {"score": np.asarray(scores, np.float64)}

    return run
