"""Converters of other formats to ONNX: what each needs, and a script per family that runs in an environment of its own.

A script needs the standard library, numpy and what is installed for it, and is called in two ways:

    SCRIPT convert MODEL OUT.onnx
    SCRIPT run MODEL ASKED.json OUT.npz

`convert` converts. `run` runs the original: `ASKED.json` names a `.npy` per input of the ONNX model, its outputs in
order, and the tensors in it; `OUT.npz` gets the values of those that the original has, by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from subgraph.storage.file_kinds import HEAD, recognise, recognise_folder


@dataclass(frozen=True)
class Converter:
    """`name`: what converts; `script`: the file in this folder; `requirements`: what is installed for it."""

    name: str
    script: str
    requirements: tuple[str, ...]

    def command(self, python: Path, *words: str | Path) -> list[str]:
        """The command line of the script in an environment."""
        return [str(python), "-P", str(Path(__file__).parent / self.script), *map(str, words)]


TENSORFLOW = Converter(
    "tf2onnx",
    "tensorflow_script.py",
    ("tensorflow-cpu==2.21.0", "tf2onnx==1.17.0", "onnx==1.23.2", "onnxruntime==1.32.0"),
)
PADDLE = Converter("paddle2onnx", "paddle_script.py", ("paddlepaddle==3.3.1", "paddle2onnx==2.1.0", "packaging"))
KINDS: Sequence[tuple[str, Converter]] = (
    ("TensorFlow", TENSORFLOW),  # a part of what `file_kinds` calls a file
    ("Keras", TENSORFLOW),
    ("HDF5", TENSORFLOW),
    ("Paddle", PADDLE),
)


def converter_of(model: Path) -> tuple[str, Converter] | None:
    """(what a file or folder is, what converts it), by its content; None if there is no converter for it."""
    if model.is_dir():
        kind = recognise_folder(model)[0]
    else:
        with model.open("rb") as file:
            kind = recognise(model, file.read(HEAD))[0]
    kind = kind.removeprefix("this is ").removeprefix("this looks like ")
    return next(((kind, converter) for part, converter in KINDS if part in kind), None)
