"""Iterables and mappings: the members of groups, the groups of members, parts of mappings."""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Protocol, TypeVar

T = TypeVar("T", bound=Hashable)
Group = TypeVar("Group")
Value = TypeVar("Value")


class Named(Protocol):
    """Something that has a name."""

    @property
    def name(self) -> str:
        """The name."""


Item = TypeVar("Item", bound=Named)


def flatten(groups: Iterable[Iterable[Value]]) -> Iterator[Value]:
    """Return the members of all groups, in order.

    >>> list(flatten([("a", "b"), (), ("c",)]))
    ['a', 'b', 'c']
    """
    return chain.from_iterable(groups)


def drop_repeats(items: Iterable[T]) -> list[T]:
    """Return each item once, in the order of their first places.

    >>> drop_repeats("banana")
    ['b', 'a', 'n']
    """
    return list(dict.fromkeys(items))


def ungroup(groups: Iterable[tuple[Group, Iterable[T]]]) -> Iterator[tuple[Group, T]]:
    """Yield each group with each of its members.

    Args:
        groups: Each group with its members.

    >>> list(ungroup([("even", (2, 4)), ("odd", (3,))]))
    [('even', 2), ('even', 4), ('odd', 3)]
    """
    for group, members in groups:
        for member in members:
            yield group, member


def invert(groups: Iterable[tuple[Group, Iterable[T]]]) -> dict[T, Group]:
    """Return the group of each member; of several groups, the last one.

    Args:
        groups: Each group with its members.

    >>> invert([("even", (2, 4)), ("odd", (3,))])
    {2: 'even', 4: 'even', 3: 'odd'}
    """
    found = {}
    for group, members in groups:
        found.update(dict.fromkeys(members, group))
    return found


def group_values(pairs: Iterable[tuple[T, Value]]) -> dict[T, list[Value]]:
    """Return the values of each key, in the order of the pairs.

    >>> group_values((len(word), word) for word in ("a", "bc", "d"))
    {1: ['a', 'd'], 2: ['bc']}
    """
    found: dict[T, list[Value]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def index_by_name(items: Iterable[Item]) -> dict[str, Item]:
    """Return items by their names; of several with one name, the last one."""
    return {item.name: item for item in items}


def pick(mapping: Mapping[T, Value], keys: Iterable[T]) -> dict[T, Value]:
    """Return the entries of some keys, in the order of the keys; keys without an entry are omitted.

    >>> pick({"a": 1, "b": 2, "c": 3}, ["c", "a", "d"])
    {'c': 3, 'a': 1}
    """
    return {key: mapping[key] for key in keys if key in mapping}


def restrict(mapping: Mapping[T, Value], keys: Container[T]) -> dict[T, Value]:
    """Return the entries of some keys, in the order of the mapping.

    >>> restrict({"a": 1, "b": 2, "c": 3}, ["c", "a", "d"])
    {'a': 1, 'c': 3}
    """
    return {key: value for key, value in mapping.items() if key in keys}
