"""Tools that write the candidate's model out of the reference's: optimizers and quantizers.

One file per tool. `--made-by NAME` finds it by its file name, `--made-by FILE.py` anywhere:

    \"""What it is, in one line.\"""

    PACKAGE = "onnxthing"               # what pip installs, whose version is told

    def steps(making, level="2"):       # names of what it can leave out
        return ["fuse_bn", "fuse_pad"]

    def make(making, level="2"):        # writes the file `making.made` without `making.skip`
        ...

What follows the name, `NAME:level=1`, is given to both as texts. The file runs in a process of its
own, with the limits of a candidate: it may print, crash and hang. An ImportError means that the
package is not installed. A step counts only if the model is another one without it, so `steps` may
name more than the tool has.
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
        samples: What the model is fed; `runtime.load_inputs.load_sample` returns the arrays.
    """

    model: Path
    made: Path
    skip: frozenset[str]
    samples: tuple[Sample, ...] = ()
