"""SPEC → Candidate: a backend with options and limits.

A SPEC is `BACKEND[:key=value,…]`, `cmd:COMMAND LINE`, `path/to/backend.py[:key=value,…]`,
`torch:path/to/module.py:FUNCTION`, or a name from the project file, whose table has either `spec`
or `run` (and `convert`), and other settings. A comma that no `key=` follows belongs to the value
before it.

Paths that the user types are relative to the working directory. Paths and commands in a project
file are relative to that file's folder, as in make or npm, from whatever folder below it subcut
runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import field, fields, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from subgraph import plugins
from subgraph.documents import Version
from subgraph.environments import emulated, releases
from subgraph.environments.installation import Installation
from subgraph.errors import UnknownName, UsageError
from subgraph.iterables import flatten, pick
from subgraph.precision import Precision
from subgraph.project import KIND_WORDS, Project
from subgraph.runtime import command_line
from subgraph.runtime.backends import Capabilities, Options, capabilities
from subgraph.runtime.command_line import Code, digest_contents, is_file
from subgraph.runtime.devices import DEVICES, FIELD_NAMES, Device, find_by_package
from subgraph.runtime.executors import (
    Resources,
    check as check_executor,
    parse_hosts,
    parse_resources,
)
from subgraph.storage.convert import DeviceForm
from subgraph.storage.digest import digest
from subgraph.storage.file_kinds import is_named_as_model, recognize
from subgraph.text import clean, find_nearest
from subgraph.trust import NamedCode
from subgraph.types import Fields, JsonObject, StringMap, Strings, frozen, frozen_keywords

BY_HAND = "by-hand"  # backend of a candidate that a person runs: `subcut manual`
RECORDED = "recorded"  # backend of a candidate that has run already: `--recorded`
PRECISIONS = tuple(p.value for p in Precision)
# Seconds for one convert or one run, unless the user sets it; slow converters take minutes.
DEFAULT_TIMEOUT = 600.0
UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
SETTINGS: dict[str, type] = {
    "spec": str,
    "run": str,
    "convert": str,
    "inputs": str,
    "outputs": str,
    "precision": str,
    "multi": bool,
    "timeout": float,
    "memory_limit": str,
    "hosts": list,
    "resources": dict,
    "executor": str,
}
RECIPES = {  # pages of docs/candidates, with other words for the same
    "adb": ("android", "phone"),
    "iree": (),
    "litert": ("tflite", "onnx2tf"),
    "rknn": (),
    "ssh": (),
    "tensorrt": ("trt", "trtexec"),
    "torch": ("pytorch", "onnx2torch"),
    "tvm": (),
    "xnnpack": ("executorch",),
}
RUN = "run"  # the setting of every candidate of command lines, in a table and in a SPEC
COMMANDS = ("convert", RUN)  # in the order in which they run
# Of any backend.
SPEC_OPTIONS: Options = {
    "package": (),
    "python": None,
    "arch": tuple(emulated.PROCESSORS),
}
WITH_FORMS = re.compile(r"(\w+)\[([^\]]*)\]:(.*)", re.DOTALL)  # cmd[inputs=float16:NHWC]:./run.sh
FORMS = ("inputs", "outputs")  # of a command's tensors, as `backends.cmd` reads them


def find_options(head: str) -> Options:
    """Return the options of a backend and its devices, by the name of any; empty for others.

    >>> find_options("mnn==3.6.1")["precision"]
    ('normal', 'high', 'low')
    """
    name = head.partition("==")[0]
    device = _find_device(name)
    backend = device.spec.partition(":")[0] if device else name
    if backend not in plugins.list_own_names("backends"):
        return {}
    named = flatten(
        one.options.items() for one in DEVICES.values() if one.spec.partition(":")[0] == backend
    )
    return {**dict(named), **capabilities(backend).options, **SPEC_OPTIONS}


@frozen_keywords
class RuntimeBuild:
    """The build of a runtime: a part of a candidate, of its identity and of manifests.

    Attributes:
        release: The release, "1.22.1", which runs in a separate environment; "" for the one that is
            installed with subcut. Of a command, the version that the user has switched it to.
        package: The package that holds another build, in a separate environment; "" for the usual.
        python: The interpreter of an environment of the user that has the runtime; "" for none.
        processor: Another processor, by whose kernels it computes under an emulator; "" for none.
        device: The device of `runtime.devices` that computes; "" if none is named.
    """

    release: Version = ""
    package: str = ""
    python: str = ""
    processor: str = ""
    device: str = ""

    def build(self) -> JsonObject:
        """Return the fields of the build, without empty ones."""
        known = ((f.name, str(getattr(self, f.name))) for f in fields(RuntimeBuild))
        return {name: value for name, value in known if value}


@frozen
class Candidate(RuntimeBuild):
    """The runtime that is compared with the reference. Its build: see `RuntimeBuild`.

    Attributes:
        name: The name in reports, as the user typed it.
        backend: The name of a backend, or the path of a Python file.
        options: Options of the backend's `load`.
        precision: The precision that it claims; None for the backend's report.
        multi: Whether it takes several disconnected pieces; None for the backend's report.
        timeout: Seconds for one load or one run.
        memory: Bytes of the process tree; None without a limit.
        origin: The project file that describes it; "" if the user typed it.
        sources: Options for pip: the places of the release.
        executor: The place of the runs, as a SPEC of `runtime.executors`; "" for this machine.
        resources: The resources that each run takes of a worker there.
        hosts: Boards that its commands reach as `{host}`; each takes one run at a time.

    >>> from subgraph import Candidate, compare, load
    >>> one_thread = Candidate("one thread", "ort", {"threads": 1}, timeout=60.0)
    >>> compare(load("resnet50.onnx"), one_thread, at=["prob"]).whole.status.value
    'agree'
    """

    name: str
    backend: str
    options: Fields = field(default_factory=dict)
    precision: str | None = None
    multi: bool | None = None
    timeout: float = DEFAULT_TIMEOUT
    memory: int | None = None
    origin: str = ""
    sources: Strings = ()
    executor: str = ""
    resources: Resources = field(default_factory=dict)
    hosts: Strings = ()

    @property
    def installation(self) -> Installation | None:
        """The environment of its release, or of another build of its runtime; None without one.

        Raises:
            UsageError: The backend has no releases, or not this one.
        """
        own = self.release or self.package or self.processor
        if self.python or self.runs_commands or self.can.npm or not own:
            return None
        beside = DEVICES[self.device].requires if self.device else ()
        return releases.make_release(
            self.backend, self.release, self.sources, self.package, beside, self.processor
        )

    def set_release(self, version: str, sources: Strings = ()) -> Candidate:
        """Return the candidate on a release of its runtime; `sources`: as the attribute.

        Raises:
            UsageError: The backend has no releases, or not this one.
        """
        releases.parse(version)
        options = {**self.options, "version": version} if self.can.npm else self.options
        return replace(self, release=version, sources=sources, python="", options=options)

    @property
    def has_process(self) -> bool:
        """Whether it runs in a process: no person runs it, and it has not run already."""
        return self.backend not in (BY_HAND, RECORDED)

    @property
    def can(self) -> Capabilities:
        """The capabilities of its backend."""
        return capabilities(self.backend)

    @property
    def runs_commands(self) -> bool:
        """Whether it runs command lines of the user."""
        return any(self.options.get(step) for step in self.can.commands)

    @property
    def keeps_nodes(self) -> bool:
        """Whether one of its commands names `{keep}`, the file of the nodes that stay in float."""
        return self.runs_commands and any(
            "{keep}" in c.replace("{{keep}}", "") for c in self.commands
        )

    @property
    def commands(self) -> list[str]:
        """Command lines, a Python file, libraries and files among the options: all foreign code."""
        if self.runs_commands:
            return [str(self.options[step]) for step in self.can.commands if self.options.get(step)]
        files = [self.backend] if self.backend.endswith(".py") else []
        for name, value in self.options.items():
            if name == "custom_ops" or is_file(Path(str(value))):
                files.append(str(value))
        if installation := self.installation:
            files.append(installation.requirements[0])
        if self.can.npm and self.release:
            files.append(f"{releases.find_package(self.backend)[0]}@{self.release}")
        if self.python:
            files.append(self.python)
        if self.executor and "://" not in self.executor:  # its module is imported here
            files.append(self.executor)
        return files

    @property
    def script(self) -> str:
        """The Python file that runs in the worker's process; "" without one."""
        if self.backend.endswith(".py"):
            return self.backend
        return str(self.options.get(self.can.script, ""))

    @property
    def code(self) -> NamedCode:
        """The code that it runs outside of subcut, which needs trust."""
        # The file stays trusted after each `pip install`.
        settings = self.identity("") | {"installed": ""}
        code = self._find_code()
        role = f"candidate {clean(self.name)}"
        return NamedCode(role, self.commands, self.origin, code.files, settings, code.complete)

    def identity(self, version: str) -> JsonObject:
        """Return all that its results depend on, as JSON.

        These are options, limits, version, and digests of files and packages. `files`: the files
        that its commands name, by word; `code`: these and the code near them (`command_line`);
        `installed`: the packages of the Python interpreters among these.

        Name, origin, precision, multi and the place of the runs change no result.
        """
        code = self._find_code().files
        folder = Path()
        words: Iterable[str] = self.commands
        if self.runs_commands:
            folder = Path(str(self.options.get("folder", "")))
            words = flatten(map(command_line.split_values, words))
        files = {word: digest_contents(folder / word) for word in words}
        interpreters = [*code, command_line.OWN_INTERPRETER] if self.script else code
        return {
            "backend": self.backend,
            "options": dict(self.options),
            "timeout": self.timeout,
            "memory": self.memory,
            "version": version,
            **self.build(),
            **(
                {"emulator": emulated.find_emulator_version(self.processor)}
                if self.processor
                else {}
            ),
            "files": {word: digest for word, digest in files.items() if digest},
            "code": digest([[file.name, digest_contents(file)] for file in code]),
            "installed": digest(command_line.find_packages(interpreters)),
        }

    def _find_code(self) -> Code:
        """Return the files of code that its commands reach."""
        if self.runs_commands:
            folder = str(self.options.get("folder", ""))
            return sum(
                (command_line.list_command_code(command, folder) for command in self.commands),
                Code(),
            )
        if self.script:
            return command_line.list_python_code(Path(self.script))
        return Code()


def parse(spec: str, project: Project | None = None) -> Candidate:
    """Return the candidate that a SPEC describes.

    Its origin is the project file if that has the same SPEC.

    >>> parse("ort:opt=basic,threads=2").options
    {'opt': 'basic', 'threads': '2'}
    >>> parse("ort==1.22.1:opt=basic").release
    '1.22.1'

    Raises:
        UnknownName: No such backend or candidate; carries the nearest names.
        UsageError: A setting is not valid.
    """
    if project is None or project.file is None:
        return _parse_spec(spec, "", [])
    table = project.values.get("candidates", {})
    if spec in table:
        return _read_table(spec, table[spec], project.file)
    if spec in (project.values.get("candidate"), project.values.get("reference")):
        found = _parse_spec(spec, str(project.file.parent), list(table))
        return replace(found, origin=str(project.file))
    return _parse_spec(spec, "", list(table))


def _require_no_model(spec: str) -> None:
    """Require that a SPEC is not a file of a model, or of another known kind.

    Raises:
        UsageError: It is one.
    """
    if is_named_as_model(spec):
        raise UsageError(
            f"'{spec}' is a model, not a runtime",
            f"subcut bisect MODEL -c SPEC; another model as candidate: --candidate-model {spec}",
            code="candidate.other-name",
        )
    is_other = not spec.endswith(".py") and is_file(Path(spec))
    if kind := recognize(Path(spec)) if is_other else None:
        raise UsageError(
            f"'{spec}' is {kind.name}, not a runtime", kind.advice, code="candidate.other-name"
        )


def _parse_spec(spec: str, folder: str, others: list[str]) -> Candidate:
    """Return the candidate of a SPEC that names no table.

    Args:
        spec: The SPEC.
        folder: The folder that its files are relative to; "" for the working directory.
        others: The names of tables, for a hint.
    """
    head, _, rest = spec.partition(":")
    options = {}
    if m := WITH_FORMS.fullmatch(spec):
        head = m[1]
        rest = m[3]
        options = _parse_options(spec, m[2], "")
    can = capabilities(head)
    if RUN in can.commands:
        where = f"candidate {clean(spec)}"
        command_line.split_command(where, RUN, rest)
        _check_forms(where, options)
        options[RUN] = rest
        if folder:
            options["folder"] = folder
        return Candidate(spec, head, options)
    if can.script and rest:
        return Candidate(spec, head, _parse_module(spec, can.script, rest, folder))
    backends = plugins.list_names("backends")
    backend, equals, text = head.partition("==")
    release = text if equals else None
    if backend in backends and not can.script:
        known = _check_release(backend, release)
        options = _parse_options(spec, rest, folder)
        return _take_environment(Candidate(spec, backend, options, release=known))
    if answer := FIELD_NAMES.get(backend.lower()):
        raise UsageError(f"no candidate '{head}'", answer, code="candidate.other-name")
    _require_no_model(spec)
    if device := _find_device(backend):
        return _make_for_device(spec, device, release, _parse_options(spec, rest, folder))
    if m := re.fullmatch(r"(.*?\.py)(?:==([^:]*))?(?::(.*))?", spec, re.DOTALL):
        path = Path(folder, m[1])
        if not path.is_file():
            raise UsageError(
                f"no file {path}",
                "a candidate can be a Python file with load(model, options)",
                code="file.not-found",
            )
        file = str(path.resolve())
        known = _check_release(file, m[2])
        return Candidate(spec, file, _parse_options(spec, m[3] or "", folder), release=known)
    _require_no_recipe(head)
    names = [*backends, *DEVICES, *others]
    hint = f"one of {', '.join(names)}, cmd:COMMAND, or a Python file"
    files = [path.name for path in Path(folder).glob("*.py")]
    close = find_nearest(head, [*names, *files])[:1] if len(head) > 2 else []
    raise UnknownName(
        f"no candidate '{head}'",
        f"did you mean '{close[0]}'? {hint}" if close else hint,
        close,
        code="candidate.unknown",
    )


def _require_no_recipe(head: str) -> None:
    """Require that the documents have no recipe of this name.

    Raises:
        UsageError: They have one.
    """
    for recipe, words in RECIPES.items():
        if head.lower() in (recipe, *words):
            page = f"docs/candidates/{recipe}"
            hint = f"copy the folder {page}, and the page's table into subcut.toml"
            if capabilities(recipe).script:
                hint += f"; {plugins.read_help('backends', recipe).rstrip('.')}"
            raise UsageError(
                f"no candidate '{head}' here, but {page}.md is a recipe for it",
                hint,
                code="candidate.is-recipe",
            )


def _find_device(word: str) -> Device | None:
    """Return the device that a word names: by its name, or by a package of a backend's builds."""
    if word in DEVICES:
        return DEVICES[word]
    for backend in plugins.list_own_names("backends"):
        begin = capabilities(backend).variants
        if begin and word.startswith(begin):
            return find_by_package(word, backend)
    return None


def _make_for_device(
    spec: str, device: Device, release: str | None, options: StringMap
) -> Candidate:
    """Return the candidate that a device's name means, with the user's options.

    Raises:
        UsageError: The provider of a build of onnxruntime, or the release, is not known.
    """
    head, _, rest = device.spec.partition(":")
    if not device.name and not options.keys() & {"providers", "ep"}:
        raise UsageError(
            f"{device.package} has no provider without its name",
            f"{device.package}:providers=NAME",
            code="candidate.no-provider",
        )
    own = _parse_options(spec, rest, "")
    known = _check_release(head, release)
    base = Candidate(
        spec, head, {**own, **options}, release=known, package=device.package, device=device.name
    )
    return _take_environment(base)


def _take_environment(candidate: Candidate) -> Candidate:
    """Return the candidate with `package`, `python` and `arch` taken out of its options.

    Raises:
        UsageError: The interpreter does not exist, its runtime has no packages, or the processor is
            not known.
    """
    options = dict(candidate.options)
    processor = emulated.find_processor(str(word)) if (word := options.pop("arch", "")) else ""
    if processor and (candidate.can.npm or options.get("python")):
        what = "your environment" if options.get("python") else candidate.backend
        raise UsageError(
            f"arch={processor}: {what} runs on this machine's own processor",
            "leave one of them out",
            code="candidate.no-other-build",
        )
    if candidate.can.npm and (version := candidate.release or str(options.get("version", ""))):
        return candidate.set_release(version)
    package = str(options.pop("package", candidate.package))
    python = str(options.pop("python", ""))
    if (
        package
        and not candidate.can.variants
        and package != releases.find_package(candidate.backend)[0]
    ):
        raise UsageError(
            f"{candidate.backend} has no other builds than its own",
            "package=NAME goes with ort",
            code="candidate.no-other-build",
        )
    if python and not Path(python).is_file():
        raise UsageError(
            f"python={python}: no such file",
            "python=/path/to/venv/bin/python",
            code="file.not-found",
        )
    path = str(Path(python).absolute()) if python else ""  # not resolved: a venv's is a link
    if processor:
        releases.find_package(candidate.backend)
    return replace(candidate, options=options, package=package, python=path, processor=processor)


def _check_release(backend: str, text: str | None) -> str:
    """Return the release that a SPEC names; "" for None.

    Raises:
        UsageError: The backend's releases are not known, or not this one.
    """
    if text is not None:
        releases.find_package(backend)
        releases.parse(text)
    return text or ""


def _check_forms(where: str, forms: StringMap) -> None:
    """Check the form of a command's tensors.

    Raises:
        UnknownName: A setting that a command does not have.
        UsageError: Its tensors cannot have this form.
    """
    for key, words in forms.items():
        if key not in FORMS:
            raise UnknownName(
                f"{where}: '{key}' is not a setting of a command",
                nearest=find_nearest(key, FORMS)[:1],
                code="candidate.unknown-key",
            )
        try:
            DeviceForm.parse(words)
        except UsageError as e:
            raise UsageError(
                f"{where}: {key}: {e.what}", "[big:][DTYPE][:LAYOUT], float16:NHWC", code=e.code
            ) from e


def _parse_module(spec: str, option: str, text: str, folder: str) -> StringMap:
    """Return `module.py:build` as options of a backend that runs a script.

    Args:
        spec: The SPEC of the candidate.
        option: The option that names the file.
        text: The file and the function.
        folder: The folder that the file is relative to.

    Raises:
        UsageError: It names no function, or no file.
    """
    file, _, function = text.rpartition(":")
    path = Path(folder, file)
    if not file.endswith(".py") or not function.isidentifier():
        raise UsageError(
            f"candidate {spec} does not name a function that builds the module",
            "torch:module.py:build",
            code="torch.no-function",
        )
    if not path.is_file():
        raise UsageError(
            f"no file {path}",
            "torch:module.py:build, a function that returns (module, args)",
            code="file.not-found",
        )
    return {option: str(path.resolve()), "build": function}


def _parse_options(spec: str, text: str, folder: str) -> dict[str, str]:
    """Return each `key=value`, with the full path of a file in `folder` that a value names."""
    options = {}
    for word in re.split(r",(?=[\w.-]+=|$)", text):
        key, sep, value = word.partition("=")
        if not word:
            continue
        if not sep or not re.fullmatch(r"[\w.-]+", key):
            raise UsageError(
                f"candidate {spec}: '{word}' is not a setting",
                "BACKEND:key=value,key=value",
                code="candidate.malformed",
            )
        if key in options:
            raise UsageError(
                f"candidate {spec}: '{key}' is given twice",
                "give it once",
                code="option.repeated",
            )
        path = Path(folder, value)
        if folder and re.search(r"[\\/]", value) and path.exists():  # a word may be a device
            value = str(path)
        options[key] = value
    return options


def _read_table(name: str, table: Any, file: Path) -> Candidate:
    """Return a candidate from the project file."""
    where = f"{file}: candidate '{clean(name)}'"
    if not isinstance(table, dict):
        raise UsageError(
            f"{where} must be a table", f"[candidates.{name}]", code="candidate.wrong-value"
        )
    _check(where, table)
    if "spec" in table:
        base = _parse_spec(table["spec"], str(file.parent), [])
    else:
        for step in COMMANDS:
            command_line.split_command(where, step, table.get(step, "true"))
        _check_forms(where, pick(table, FORMS))
        options = pick(table, (*COMMANDS, *FORMS))
        base = Candidate(name, "cmd", {**options, "folder": str(file.parent)})
    return replace(
        base,
        name=name,
        precision=parse_precision(where, table.get("precision")),
        multi=table.get("multi"),
        timeout=float(table.get("timeout", DEFAULT_TIMEOUT)),
        memory=parse_memory(table["memory_limit"]) if "memory_limit" in table else None,
        origin=str(file),
        executor=check_executor(table.get("executor", "")),
        resources=parse_resources(where, table.get("resources", {})),
        hosts=parse_hosts(where, table, COMMANDS),
    )


def _check(where: str, table: Fields) -> None:
    """Check the table of a candidate in a project file.

    Raises:
        UnknownName: An unknown key.
        UsageError: A value of another type, or keys that exclude each other.
    """
    for key, value in table.items():
        if key not in SETTINGS:
            raise UnknownName(
                f"{where} has an unknown key '{key}'",
                nearest=find_nearest(key, SETTINGS)[:1],
                code="candidate.unknown-key",
            )
        kind = SETTINGS[key]
        if not isinstance(value, kind) and not (kind is float and type(value) is int):
            raise UsageError(
                f"{where}: '{key}' must be {KIND_WORDS[kind]}, not {value!r}",
                code="candidate.wrong-value",
            )
    if not table.get("timeout", DEFAULT_TIMEOUT) > 0:
        raise UsageError(
            f"{where}: 'timeout' must be more than 0 seconds, not {table['timeout']!r}",
            code="candidate.wrong-value",
        )
    if ("spec" in table) == ("run" in table):
        raise UsageError(
            f"{where} needs either 'spec' or 'run'",
            'run = "./run.sh {model} {inputs} {outputs}"',
            code="candidate.no-spec",
        )
    if "run" not in table and (alone := [key for key in ("convert", *FORMS) if key in table]):
        raise UsageError(
            f"{where}: '{alone[0]}' goes with 'run'",
            "put it into the backend that 'spec' names",
            code="candidate.misplaced-key",
        )


def parse_precision(where: str, text: str | None) -> str | None:
    """Return a claimed precision.

    Raises:
        UsageError: It is unknown.
    """
    if text is not None and text not in PRECISIONS:
        raise UsageError(
            f"{where}: precision '{text}' is unknown",
            f"one of {', '.join(PRECISIONS)}",
            code="candidate.unknown-precision",
        )
    return text


def parse_memory(text: str) -> int:
    """Return the bytes of `8G`, `500M`, `1.5GiB` …

    >>> parse_memory("1.5G") == 3 << 29
    True

    Raises:
        UsageError: The text is not a size.
    """
    m = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)(?:i?b)?", text.strip().lower())
    size = int(Decimal(m[1]) * UNITS[m[2]]) if m else 0
    if not size:
        raise UsageError(
            f"memory limit {text}: expected a size", "8G, 500M", code="option.malformed"
        )
    return size
