"""Tools that write the candidate's model from the reference's model: optimizers and quantizers.

One file per tool. `--made-by NAME` finds it by its file name, `--made-by FILE.py` anywhere:

    \"""A description in one line.\"""

    PACKAGE = "onnxthing"               # the package of pip, whose version is reported

    def steps(making, level="2"):       # names of the steps that it can omit
        return ["fuse_bn", "fuse_pad"]

    def make(making, level="2"):        # writes the file `making.made` without `making.skip`
        ...

The settings after the name, `NAME:level=1`, are passed to both as texts. The file runs in a
separate process, with the limits of a candidate: it may print, crash and hang. An ImportError means
that the package is not installed. A step counts only if the model is another one without it, so
`steps` may name more than the tool has.
"""

from __future__ import annotations

from pathlib import Path

from subgraph.runtime.inputs import Sample
from subgraph.types import frozen


@frozen
class Making:
    """A model to make.

    Attributes:
        model: The file of the reference's model.
        made: The file to write.
        skip: The steps that are left out.
        samples: The inputs of the model; `runtime.load_inputs.load_sample` returns the arrays.
    """

    model: Path
    made: Path
    skip: frozenset[str]
    samples: tuple[Sample, ...] = ()
