"""The inputs of a step without its states: tokens, positions, mask, next slice, constants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from subgraph.errors import InputError, UsageError, name_setting
from subgraph.questions.decoding.decoder import (
    DEFAULT_STEPS,
    Decoder,
    LoopFile,
    find_declared_type,
    find_dims,
    find_first_shape,
)
from subgraph.runtime.inputs import Feeding
from subgraph.runtime.load_inputs import load_sample
from subgraph.storage.digest import digest
from subgraph.storage.tensors import Record, find_dtype, format_tensor_type, write_value
from subgraph.types import Array, Arrays, Fields, JsonObject, frozen


@frozen
class LoopInputs:
    """The values of the user's inputs.

    Attributes:
        decoder: The purposes of the inputs.
        file: The user's file.
        prompt: Tokens (batch, length); None if the model has no tokens.
        mask: The mask of the prompt; None for all ones.
        sequences: The sequences that slices are cut from, by input.
        values: Constants, and states before the first step.
    """

    decoder: Decoder
    file: LoopFile
    prompt: Any
    mask: Any
    sequences: Arrays
    values: Fields

    @property
    def batch(self) -> int:
        """Number of rows of the prompt, or of the sequences."""
        if self.prompt is not None:
            return len(self.prompt)
        return next((len(a) for a in self.sequences.values() if a.ndim), 1)

    @property
    def steps(self) -> int:
        """The number of runs of the model, unless the text ends before."""
        if self.sequences:
            counts = [
                1 + (self.sequences[n].shape[s.axis] - s.size) // s.step
                for n, s in self.decoder.slices.items()
            ]
            return int(min([*counts, *filter(None, [self.file.steps])]))
        return self.file.steps or DEFAULT_STEPS

    def digest(self) -> str:
        """Return a hash of all values and of the purposes of the inputs."""
        arrays = {"": self.mask, **self.sequences, **self.values}
        parts = {
            name: [str(a.dtype), list(a.shape), a.tobytes()]
            for name, a in arrays.items()
            if hasattr(a, "tobytes")
        }
        roles = [list(self.decoder.states.items()), self.decoder.logits, repr(self.file)]
        return digest(
            parts, None if self.prompt is None else self.prompt.tobytes(), self.steps, roles
        )

    def find_prompt(self, k: int) -> Array | None:
        """Return the tokens that the prompt has for step k; None once it is used up."""
        if self.prompt is None:
            return None
        if self.decoder.takes_whole_prompt:
            return self.prompt if k == 0 else None
        return self.prompt[:, k : k + 1] if k < self.prompt.shape[1] else None

    def arrays(self, k: int, tokens: Sequence[Array]) -> JsonObject:
        """Return the inputs of step k but its states; `tokens`: of the steps 0 … k, each (batch,
        length)."""
        decoder = self.decoder
        arrays = {name: self.values[name] for name in self.decoder.constants}
        for name, part in decoder.slices.items():
            axis = part.axis % self.sequences[name].ndim
            at = (slice(None),) * axis + (slice(k * part.step, k * part.step + part.size),)
            arrays[name] = np.ascontiguousarray(self.sequences[name][at])
        if tokens:
            now = tokens[k]
            seen = sum(t.shape[1] for t in tokens[: k + 1])
            mask: Array = np.ones((self.batch, seen), np.int64)
            if self.mask is not None:
                mask[:, : self.mask.shape[1]] = self.mask[:, :seen]
            places = np.maximum(mask.cumsum(axis=1) - 1, 0)[:, seen - now.shape[1] :]
            dims = find_dims(decoder.graph, decoder.tokens)
            arrays[decoder.tokens] = now[:, 0] if dims is not None and len(dims) == 1 else now
            arrays[decoder.position_ids] = places
            arrays[decoder.cache_position] = np.arange(seen - now.shape[1], seen)
            arrays[decoder.attention_mask] = self._as_wide(mask)
        if decoder.cache_branch:
            arrays[decoder.cache_branch] = np.full(
                [1] * len(find_dims(decoder.graph, decoder.cache_branch) or ()), k > 0
            )
        return {name: value for name, value in arrays.items() if name}

    def _as_wide(self, mask: Array) -> Array:
        """Return the mask in the width that the model fixes, if it does.

        A window ends with the last tokens; a cache that is written at a position begins with the
        first ones.
        """
        name = self.decoder.attention_mask
        dims = find_dims(self.decoder.graph, name) if name else None
        width = dims[-1] if dims else None
        if not isinstance(width, int):
            return mask
        wide = np.zeros((len(mask), width), np.int64)
        if self.decoder.cache_position:
            wide[:, : mask.shape[1]] = mask[:, :width]
            return wide
        kept = mask[:, -width:]
        wide[:, width - kept.shape[1] :] = kept
        return wide

    def records(self, k: int, tokens: Sequence[Array], folder: Path) -> dict[str, Record]:
        """Return `arrays` as files in a folder, in the types that the model declares."""
        return {
            n: self._save(n, value, folder, f"in{i}")
            for i, (n, value) in enumerate(self.arrays(k, tokens).items())
        }

    def make_first_states(self, folder: Path) -> dict[str, Record]:
        """Return the states before step 0: what was given, else zeros.

        Raises:
            UsageError: a shape is not known.
        """
        states = {}
        for i, name in enumerate(self.decoder.states):
            value = self.values.get(name)
            if value is None:
                shape = find_first_shape(self.decoder, name, self.batch)
                value = np.zeros(shape, find_dtype(find_declared_type(self.decoder.graph, name)[1]))
            states[name] = self._save(name, value, folder, f"state{i}")
        return states

    def _save(self, name: str, value: Any, folder: Path, stem: str) -> Record:
        dtype = find_declared_type(self.decoder.graph, name)[1]
        if value is not None and not isinstance(value, list):
            value = value.astype(find_dtype(dtype), copy=False)
        return write_value(name, value, folder, stem, format_tensor_type(dtype))


def read_inputs(decoder: Decoder, file: LoopFile, feeding: Feeding) -> LoopInputs:
    """Read the inputs of a loop from the file and the feeding.

    Raises:
        InputError: a file cannot be read or fits no input; no prompt, or several samples.
    """
    graph = decoder.graph
    free = [decoder.tokens, decoder.attention_mask, *decoder.slices]
    names = [
        *filter(None, free),
        *(n for n in decoder.constants if n not in file.constants),
        *decoder.states,
    ]
    samples = feeding.plan(graph, names)
    if len(samples) > 1:
        raise InputError(
            f"{len(samples)} samples: a loop is for one",
            "several prompts are rows of one array",
            code="loop.many-samples",
        )
    specs = [replace(spec, dims=None) if spec.name in free else spec for spec in samples[0].specs]
    named = {name for name, _ in samples[0].files if name}
    wanted = [s for s in specs if s.name in named or s.name in free[:1] or s.name in decoder.slices]
    unnamed = [f for name, f in samples[0].files if not name]
    # The only file without a name is for the tokens, or for the slices.
    if unnamed and len(wanted) > 1:
        first = decoder.tokens or next(iter(decoder.slices))
        samples = [replace(samples[0], files=[(name or first, f) for name, f in samples[0].files])]
    counted = [n for n in (decoder.position_ids, decoder.cache_position) if n in named]
    if counted:
        raise InputError(
            f"'{counted[0]}' is counted from step to step",
            f"leave -i {counted[0]}=… out",
            code="loop.counted-input",
        )
    given = {name for name, _ in samples[0].files if name} | (
        {wanted[0].name} if unnamed else set()
    )
    missing = [n for n in filter(None, [decoder.tokens, *decoder.slices]) if n not in given]
    if missing:
        content = "the prompt" if decoder.tokens else "the sequence"
        raise InputError(
            f"nothing is given for '{missing[0]}'",
            f"-i {missing[0]}=FILE.npy: {content}",
            code="loop.input-missing",
        )
    with name_setting(feeding.setting):
        values, _ = load_sample(replace(samples[0], specs=[s for s in wanted if s.name in given]))
    for name, number in file.constants.items():
        _, dtype, dims = find_declared_type(graph, name)
        shape = [d if isinstance(d, int) else 1 for d in dims or ()]
        try:
            values[name] = np.broadcast_to(np.asarray(number), shape).astype(find_dtype(dtype))
        except ValueError as e:
            raise UsageError(f"[constants] {name} = {number}: {e}", code="loop.wrong-value") from e
    prompt = values.pop(decoder.tokens, None)
    mask = values.pop(decoder.attention_mask, None)
    sequences = {name: np.asarray(values.pop(name)) for name in decoder.slices}
    read = LoopInputs(decoder, file, _make_rows(prompt, decoder), mask, sequences, values)
    if mask is not None and (prompt is None or np.shape(mask) != np.shape(read.prompt)):
        raise InputError(
            f"'{decoder.attention_mask}' is for the prompt: the two must have one shape",
            code="loop.wrong-shape",
        )
    if sequences and read.steps < 1:
        raise InputError(
            "the sequence is shorter than one slice",
            "[slices] sets the length of a slice",
            code="loop.too-short",
        )
    return read


def _make_rows(prompt: Any, decoder: Decoder) -> Any:
    """Return a prompt as (batch, length).

    Raises:
        InputError: it has another rank, or no token.
    """
    if prompt is None:
        return None
    rows = np.atleast_2d(np.asarray(prompt))
    if rows.ndim != 2 or not rows.size:
        shape = "×".join(map(str, rows.shape))
        raise InputError(
            f"'{decoder.tokens}' is {shape}: a prompt is (batch, length) tokens",
            code="loop.wrong-shape",
        )
    return rows.astype(np.int64)
