"""Converters of other formats to ONNX: the requirements of each, and a script per family that runs
in a separate environment.

A script needs the standard library, numpy and the installed requirements. `script_main` calls two
functions of it:

    convert(model, target)         writes the ONNX model
    open_original(model, tensors)  a context manager that yields the original's inputs, and a
                                   function that runs it once

The inputs are names with element type and sizes. The function takes a value for each, and returns
the outputs, and those of `tensors` inside the model that the original has, both by the original's
names.

    SCRIPT_MAIN SCRIPT convert MODEL OUT.onnx
    SCRIPT_MAIN SCRIPT run MODEL ASKED.json FOLDER

`ASKED.json` names a `.npy` per input of the ONNX model for each sample, its outputs with their
types, and the tensors in it; `FOLDER` gets the values.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from subgraph import children
from subgraph.storage.file_kinds import Family, recognize, recognize_folder
from subgraph.types import Strings, frozen


@frozen
class Converter:
    """`name`: what converts; `script`: the file in this folder; `requirements`: what is installed
    for it, of `size`."""

    name: str
    script: str
    requirements: Strings
    size: str = ""

    def command(self, python: Path, *words: str | Path) -> list[str]:
        """Return the command line in an environment: what `script_main` is to do."""
        here = Path(__file__).parent
        return children.make_python_command(
            here / "script_main.py", here / self.script, *words, python=python
        )


TENSORFLOW = Converter(
    "tf2onnx",
    "tensorflow_script.py",
    ("tensorflow-cpu==2.21.0", "tf2onnx==1.17.0", "onnx==1.23.2", "onnxruntime==1.32.0"),
    "1.3 GB",
)
PADDLE = Converter(
    "paddle2onnx",
    "paddle_script.py",
    ("paddlepaddle==3.3.1", "paddle2onnx==2.1.0", "packaging"),
    "1 GB",
)
CONVERTERS: Mapping[Family, Converter] = {
    Family.TENSORFLOW: TENSORFLOW,
    Family.KERAS: TENSORFLOW,
    Family.TFLITE: TENSORFLOW,
    Family.PADDLE: PADDLE,
}


def find_converter(model: Path) -> tuple[str, Converter] | None:
    """Return (what a file or folder is, what converts it), by its content; None if there is no
    converter for it."""
    kind = recognize_folder(model) if model.is_dir() else recognize(model)
    converter = CONVERTERS.get(kind.family) if kind and kind.family else None
    return (kind.name, converter) if kind and converter else None
