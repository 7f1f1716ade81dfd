"""The inputs that a Python program gives, arrays among them -> the arguments of `-i`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from subgraph.errors import UsageError
from subgraph.lazy import np
from subgraph.storage import folders
from subgraph.types import Fields, Strings

if TYPE_CHECKING:
    from subgraph.types import Array

Sample: TypeAlias = "Array | Mapping[str, Any]"
Inputs: TypeAlias = "str | Path | Sample | Sequence[str | Path | Sample] | None"


def input_arguments(inputs: Inputs, names: Collection[str] = ()) -> Strings:
    """Return the arguments of `-i` for the inputs of a model.

    Arrays are written into files that exist until the process ends.

    Args:
        inputs: A file or a folder of samples, an array for a model with one input, a map from the
            input's name to an array, or a sequence: of files, or of samples.
        names: The inputs of the model, in order; needed only for an array without a name.

    Raises:
        UsageError: The inputs have another type, an array has no name and the model has several
            inputs, or the samples have different names.
    """
    if inputs is None:
        return ()
    if isinstance(inputs, (str, Path)):
        return (str(inputs),)
    if isinstance(inputs, Mapping) or hasattr(inputs, "__array__"):
        files = _write_samples([_name_arrays(inputs, names)])
        return tuple(f"{name}={folder / '0.npy'}" for name, folder in files.items())
    if not isinstance(inputs, Sequence):
        raise _wrong_type(inputs)
    if all(isinstance(word, (str, Path)) for word in inputs):
        return tuple(map(str, inputs))
    files = _write_samples([_name_arrays(sample, names) for sample in inputs])
    return tuple(f"{name}={folder}" for name, folder in files.items())


def _name_arrays(sample: Any, names: Collection[str]) -> Fields:
    """Return the arrays of a sample by the name of their input."""
    if isinstance(sample, Mapping):
        return sample
    if not hasattr(sample, "__array__"):
        raise _wrong_type(sample)
    if len(names) != 1:
        known = ", ".join(names)
        raise UsageError(
            f"an array has no name, and the model has {len(names)} inputs: {known}",
            "pass {name: array}",
            code="api.unnamed-array",
        )
    return dict.fromkeys(names, sample)


def _write_samples(samples: Sequence[Fields]) -> dict[str, Path]:
    """Write a file per sample into a folder per input; return the folders."""
    names = list(samples[0]) if samples else []
    if any(sample.keys() != samples[0].keys() for sample in samples):
        raise UsageError(
            "the samples have different inputs",
            "give each sample the same names",
            code="api.uneven-samples",
        )
    home = folders.make_lasting("subcut-inputs")
    places = {name: home / stem for name, stem in folders.safe_names(names).items()}
    for name, place in places.items():
        place.mkdir()
        for k, sample in enumerate(samples):
            array = np.asarray(sample[name])
            if array.dtype.hasobject:
                raise _wrong_type(sample[name])
            np.save(place / f"{k}.npy", array, allow_pickle=False)
    return places


def _wrong_type(value: object) -> UsageError:
    """Return the error for a value that is not an input."""
    return UsageError(
        f"inputs: expected files, an array, {{name: array}} or a list of these, not a"
        f" {type(value).__name__}",
        'inputs={"image": array}, inputs=["cat.jpg"]',
        code="api.wrong-type",
    )
