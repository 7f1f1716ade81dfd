"""The place of a tensor of the reference's model in the candidate's, and its values from one form
into the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np

from subgraph.documents import KEY
from subgraph.storage.dtypes import Scale
from subgraph.storage.tensors import Record, find_dtype, write_value
from subgraph.types import Array, frozen

Axes: TypeAlias = tuple[int, ...]  # an order of axes, or their lengths in order


@frozen
class MatchedTensor:
    """The place of a tensor of the reference's model in the candidate's.

    Attributes:
        name: Its name there.
        how: "name", "map", "value", "place" among inputs or outputs, or "use": by the tensors that
            are computed of it.
        perm: Candidate's value = reference's value.transpose(perm); () if the axes are in the same
            order.
        dtype: Its element type there; "" if unknown.
        scale: The scale of quantized values there; None for other values.
        reference_scale: The scale of the reference's values, if they are quantized otherwise; else
            None.
    """

    name: str = field(metadata={KEY: "other"})
    how: str
    perm: Axes = ()
    dtype: str = ""
    scale: Scale | None = None
    reference_scale: Scale | None = field(default=None, metadata={KEY: "own"})

    def with_type(self, dtype: str) -> MatchedTensor:
        """Return the match with its element type.

        Integers without a scale count as the reference's own, if nothing else is known.
        """
        same = (
            self.reference_scale is not None
            and self.scale is None
            and find_dtype(dtype).kind in "iu"
        )
        return replace(self, dtype=dtype, scale=self.reference_scale if same else self.scale)

    def get_real_reference(self, value: Array) -> Array:
        """Return a value of the reference's model as real numbers."""
        if self.reference_scale:
            return self.reference_scale.dequantize(value)
        return value

    def to_candidate(self, value: Array) -> Array:
        """Return a value of the reference's model in the candidate's layout and type."""
        real = self.get_real_reference(value)
        turned = real.transpose(self.perm) if self.perm else real
        if self.scale and self.dtype:
            return self.scale.quantize(turned, self.dtype)
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(
                turned.astype(find_dtype(self.dtype)) if self.dtype else turned
            )

    def to_reference(self, value: Array, dtype: str) -> Array:
        """Convert a value back to the reference's layout and to its `dtype`."""
        real = self.to_real(value)
        if self.reference_scale:
            return self.reference_scale.quantize(real, dtype)
        return real.astype(find_dtype(dtype))

    def to_real(self, value: Array) -> Array:
        """Return the candidate's value as real numbers in the reference's layout; a value of
        another rank keeps its axes."""
        real = self.scale.dequantize(value) if self.scale else value
        if not self.perm or len(self.perm) != real.ndim:
            return real
        return np.ascontiguousarray(real.transpose(np.argsort(self.perm)))

    def convert(self, record: Record, folder: Path, stem: str) -> Record:
        """Return a tensor of the reference's model as the candidate's takes it; its file goes to
        `folder` if it is another."""
        if self.plain and self.dtype in ("", record.dtype):
            return replace(record, name=self.name)
        return write_value(self.name, self.to_candidate(record.array()), folder, stem)

    @property
    def plain(self) -> bool:
        """Whether it is the same tensor, up to its name and type."""
        return not self.perm and self.scale is None and self.reference_scale is None


Matches: TypeAlias = Mapping[str, MatchedTensor]  # by tensor of the reference's model
