"""One file per candidate runtime. The file name is the word that the user types; the first line of
its docstring is the help.

To add a backend, write one file here (or anywhere: `-c path/to/file.py`; a package names it under
the entry point `subcut.backends`). It needs one function:

    load(model: Path, options: Mapping[str, Any]) -> run      converts and builds
    run(feeds: Mapping[str, Value]) -> Mapping[str, Value]    runs once

`feeds` and outputs map tensor names to numpy arrays; a sequence is a list of arrays, an empty
optional is None. The file is imported in a separate process, so it may print, crash and hang.
Backends share the parts in `_foreign`.

`load` raises `Refused` if the runtime does not accept the model (any other exception counts as
that); `run` may raise anything, which counts as a crash; both raise `BackendError` or `ImportError`
if the runtime cannot be used at all.

Optional names of the module:

    MULTI                 True: takes several disconnected pieces in one model
    RELEASES              (package, its first release that runs with numpy 2, "" if any does,
                          further packages, where `{date}` is the release's third number):
                          `-c NAME==1.2` runs a release, `-c NAME:arch=aarch64` that of another
                          processor; with NPM = True, which needs no numpy, the release that runs
                          by default
    version()             the runtime's version, a part of the key of stored results; or
                          version(options)
    precision(options)    the precision in which it computes: fp32, tf32, fp16, bf16 or int8
    caveat(options)       a warning before anything runs; "" for none
    exact(options)        the options for full precision, or without optimizations; None if these
                          are
    switches(options)     {feature: the options without it}, of the features that cost accuracy or
                          may be wrong: {"winograd": {…}}
    PASSES                the option that turns passes of its optimizer off, `A+B`; with
    passes(model, options)    the names of the passes that change a model
    computed_by(model, options)   `NAME TENSOR`: the unit that computes the node with this first
                          output
    warm()                imports the runtime before the first model arrives
    tensors(model, options)   the tensors of a full model of which it has values; it receives and
                          returns only these, and `model` among the options of `load` is the file;
                          without this function, any tensor of any model
    missing()             the part that this machine lacks; "" for none
    OPTIONS               {name: its values}, a literal: () for any value, None for one that names a
                          file or a machine of the user, which no bundle holds. A name may be a
                          glob: `session.*`
    DEVICE_LACKS          {pattern: feature}: messages of its runtime about a device that lacks a
                          feature. Such an error is no result of the model: it ends the command, as
                          `BackendError`
    error_text(error)     the text of its runtime's error, without noise; else the error's type and
                          text

and of the function `run`: `outputs`, the type of each output as onnx writes it
(`seq(tensor(float))`), where an empty sequence must keep its type.

The files in this folder also state the constants that `Capabilities` lists, in capitals, as
literals: they are read without importing the file. A backend from elsewhere has the defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, fields
from functools import cache
from typing import TypeAlias

from subgraph import plugins
from subgraph.storage.tensors import Tensors, Values
from subgraph.types import Fields, JsonObject, Strings, frozen

Run = Callable[[Tensors], Values]  # the result of `load`
Switches: TypeAlias = "dict[str, JsonObject]"  # options without each source of differences
Options = Mapping[str, Sequence[str] | None]  # by name or glob; see OPTIONS above
# `DEVICE_LACKS` of the backends that run onnxruntime's WebGPU; the features have WebGPU's names.
WEBGPU_LACKS = {
    r"requires f16 but the device does not support|extension 'f16' is not allowed": "shader-f16",
    r"requires subgroups? but the device does not support|extension 'subgroups' is not allowed": (
        "subgroups"
    ),
    r"requires subgroup matrix but the device does not support": (
        "chromium-experimental-subgroup-matrix"
    ),
}


@frozen
class Capabilities:
    """Facts about a backend that must be known before its process runs.

    Attributes:
        commands: options that are command lines, in the order in which they run.
        script: the option that names the user's Python file, which the process imports; "" for
            none.
        custom_ops: it takes a library of custom operators as the option `custom_ops`.
        tflite_operators: it runs TensorFlow Lite's operators in an ONNX file; others find a .tflite
            next to that.
        half_as_float: it keeps weights of half precision as float32 as well.
        npm: its releases are npm's, and it takes one as the option `version`.
        variants: how the packages of other builds of its runtime begin; "" for none.
        alone: it starts no processes and writes no files.
        reference: options for the same values on every machine, `threads` apart; empty if it
            cannot. It then allocates what it uses and no more, and takes the options `reuse` (plan
            which tensors share memory) and `weights` (the folder of external data).
        options: As `OPTIONS` of the module.
    """

    commands: Strings = ()
    script: str = ""
    custom_ops: bool = False
    tflite_operators: bool = False
    half_as_float: bool = False
    npm: bool = False
    variants: str = ""
    alone: bool = False
    reference: Fields = field(default_factory=dict)
    options: Options = field(default_factory=dict)


@cache
def capabilities(backend: str) -> Capabilities:
    """Return the facts that a backend states; the defaults for one that is not in this folder."""
    if backend not in plugins.list_own_names("backends"):
        return Capabilities()
    stated: JsonObject = {
        f.name: plugins.read_constant("backends", backend, f.name.upper())
        for f in fields(Capabilities)
    }
    return Capabilities(**{name: value for name, value in stated.items() if value is not None})
