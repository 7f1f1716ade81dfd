"""One file per device that people know by a name: `-c cuda`. The file's name is the word that the
user types.

To add one, write a file here. It states, in capitals, as literals, which are read without importing
the file:

    SPEC            the candidate that the name stands for; options of the user's are added to it
    PACKAGE         the package that holds it, installed into an environment of its own; ""
    (default) for none REQUIRES        what else goes into that environment, as pip names it
    PROVIDER        the provider of onnxruntime that computes; "" where onnxruntime is not what runs
    it PRECISION       what it computes in whatever its options are: fp32 (default), tf32, fp16,
    bf16, int8 LOWERS          options that lower the precision: {name: (its default, the precision
        where it is 1)}
    SWITCHES        what may make a difference: {name: {option: the value without it}}; `blame`
        throws each

and may define functions, which are called on the machine that runs it:

    missing()       what this machine lacks, in a line, before anything is installed; "" if nothing
    is known to lack emulated()      what computes in the device's place; "" if the device itself
    does prepare()       called in the worker's process before the provider is asked for
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from itertools import chain
from typing import Any

from subgraph import plugins

KIND = "devices"


@dataclass(frozen=True)
class Device:
    """What a file of this folder states."""

    name: str = ""
    spec: str = ""
    package: str = ""
    requires: tuple[str, ...] = ()
    provider: str = ""
    precision: str = "fp32"
    lowers: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    switches: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def options(self) -> dict[str, tuple[str, ...]]:
        """Options of its provider that its file names, as `backends.Options`: any value."""
        typed = (word.partition("=")[0] for word in self.spec.partition(":")[2].split(","))
        switched = chain.from_iterable(self.switches.values())
        return dict.fromkeys(filter(None, [*typed, *self.lowers, *switched]), ())

    def missing(self) -> str:
        """What this machine lacks, as far as that is known; "" if nothing."""
        return self._asked("missing")

    def emulated(self) -> str:
        """What computes in the device's place on this machine; "" if the device itself does."""
        return self._asked("emulated")

    def prepare(self) -> None:
        """Have the provider find what it needs, in the process that will ask for it."""
        self._asked("prepare")

    def _asked(self, function: str) -> str:
        if not self.name or not plugins.defines(KIND, self.name, function):
            return ""
        return getattr(plugins.load(KIND, self.name), function)() or ""


def names() -> list[str]:
    """The names of all devices, sorted."""
    return plugins.own_names(KIND)


@cache
def device(name: str) -> Device:
    """What the file of a name states."""
    stated: dict[str, Any] = {
        f.name: plugins.constant(KIND, name, f.name.upper()) for f in fields(Device)
    }
    return Device(**{k: v for k, v in stated.items() if v is not None} | {"name": name})


def of_package(package: str, backend: str) -> Device:
    """The first device that a package holds; one without a name, on a backend, if there is none."""
    return next(
        (d for d in map(device, names()) if d.package == package),
        Device(spec=backend, package=package),
    )


def of_provider(provider: str) -> Device:
    """The device that a provider of onnxruntime computes on; one without a name if there is
    none."""
    return next(
        (d for d in map(device, names()) if provider and d.provider == provider),
        Device(provider=provider),
    )
