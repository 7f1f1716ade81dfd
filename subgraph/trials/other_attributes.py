"""A node -> the same node with another value of one attribute, as a runtime may misread it.

Only attributes of onnx's schemas are changed, and none whose change alters the shape or the type of
an output. Whether the other value is valid shows when the reference runs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from onnx import helper

from subgraph.graph import protobuf
from subgraph.graph.nested import assign
from subgraph.graph.opsets import canonicalize_domain, find_schema, read_imports
from subgraph.inspection.summary import format_attribute
from subgraph.iterables import index_by_name
from subgraph.text import clean
from subgraph.types import frozen

SHAPING = frozenset(
    "axes blocksize dilations dtype group hidden_size kernel_shape keepdims layout num_groups"
    " num_heads num_outputs output_dtype output_height output_padding output_shape output_width"
    " strides to".split()
)
# Texts that an attribute can have instead of each other.
WORDS = tuple(
    group.split()
    for group in (
        "constant edge reflect",
        "nearest linear cubic",
        "bilinear bicubic nearest",
        "half_pixel asymmetric align_corners",
        "round_prefer_floor round_prefer_ceil floor ceil",
        "zeros border reflection",
        "none tanh",
        "none add mul max min",
        "DCR CRD",
        "avg max",
        "forward reverse",
        "SAME_UPPER SAME_LOWER",
    )
)


@frozen
class OtherAttribute:
    """Another value of an attribute.

    Attributes:
        name: The name of the attribute.
        value: The other value.
        present: The value that the node has.
    """

    name: str
    value: Any
    present: Any

    @property
    def says(self) -> str:
        """The change in words: `axis=2 instead of 1`."""
        value, present = (
            format_attribute(helper.make_attribute(self.name, v))
            for v in (self.value, self.present)
        )
        return f"{clean(self.name)}={value} instead of {present}"

    def apply(self, node: protobuf.NodeProto) -> None:
        """Give a node the other value."""
        others = [a for a in node.attribute if a.name != self.name]
        assign(node.attribute, [*others, helper.make_attribute(self.name, self.value)])


def iter_other_attributes(
    node: protobuf.NodeProto, model: protobuf.ModelProto
) -> Iterator[OtherAttribute]:
    """Yield the other values of a node's attributes: its own and those with a default."""
    domain = canonicalize_domain(node.domain)
    known = find_schema(node.op_type, read_imports(model).get(domain, 1), domain)
    own = index_by_name(node.attribute)
    for name, formal in sorted(known.attributes.items()) if known is not None else ():
        default = read_value(formal.default_value)
        given = read_value(own.get(name))
        present = default if given is None else given
        if name in SHAPING or present is None:
            continue
        for value in (default, *iter_other_values(present)):
            if value not in (present, None):
                yield OtherAttribute(name, value, present)


def iter_other_values(present: object) -> Iterator[object]:
    """Yield values of the same type, next to a value."""
    if isinstance(present, bytes):
        text = present.decode(errors="replace")
        groups = (group for group in WORDS if text in group)
        yield from (word.encode() for word in next(groups, ()))
    elif isinstance(present, int):
        yield from (present + 1, present - 1)
    elif isinstance(present, float):
        yield present * 2 if present else 0.5
    elif isinstance(present, list) and len(present) > 1:
        yield present[::-1]
        for k, pair in enumerate(pairwise(present)):
            yield [*present[:k], *reversed(pair), *present[k + 2 :]]
        half = len(present) // 2
        if all(isinstance(value, int) for value in present) and len(present) == 2 * half:
            for k in range(half):  # pads: from the end of an axis to its beginning
                moved = list(present)
                moved[k] += 1
                moved[k + half] -= 1
                yield moved


def read_value(attribute: Any) -> Any:
    """Return the value of an attribute; None without a value."""
    if attribute is None or not attribute.name:
        return None
    return helper.get_attribute_value(attribute)
