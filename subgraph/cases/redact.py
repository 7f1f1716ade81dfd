"""Texts that leave this machine: only what is known to say nothing about it; and the facts of the machine that do.

A text leaves if all its words are subcut's own, numbers, or names in the model, which goes along anyway. Any other is
left out whole, and says so: what a candidate printed, a path, an address. Of a command line the words are looked at one
by one. Insight: what is private cannot be listed, what subcut itself can say is finite: the texts in its own code.

With the user's consent (`free_text`) texts go as they are, but for what is known to be private on this machine.
"""

from __future__ import annotations

import getpass
import os
import platform
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path, PurePath
from typing import Any

from subgraph import plugins
from subgraph.runtime.backends import capabilities
from subgraph.runtime.candidate import RUN
from subgraph.runtime.command_line import CODE
from subgraph.system import home_folder, memory, processor

REMOVED = "REMOVED"  # replaces a word of a command line
LEFT_OUT = "left out: subcut bundle --include-text sends it"  # replaces a text
USER, HOST = "USER", "HOST"
NOT_PERSONAL = frozenset(
    "root user users admin ubuntu debian runner nobody default build docker test guest home jenkins localhost subcut "
    "onnx model max min mean norm mark will may case cut page rich host data".split()
)  # names of users and hosts that identify nobody, or that are words of ours
MIN_LENGTH = 3  # letters of a user's or host's name; shorter ones are not looked for
MIN_SECRET_LENGTH = 6  # characters of a secret in the environment
SECRET = re.compile(
    r"token(?!s|i)|secret|passw|passphrase|credential|api_?key|access_?key|private_?key|auth(?!or)|_key$|_pat$|cookie",
    re.I,
)
PLAIN_VALUE = re.compile(r"[\w .,:=+*-]{1,80}")  # of a setting that a bundle has: no path, no address
_TOKENS = re.compile(
    r"\b(?:hf_\w{16,}|gh[pousr]_\w{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|sk-[\w-]{16,}|AKIA[0-9A-Z]{16}"
    r"|xox[abprs]-[\w-]{10,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)"
)  # of known services
_NUMBER = re.compile(
    r"[-+~≈×#]?\d{1,9}(?:\.\d{1,17})?(?:e[-+]?\d{1,3})?[%x×]?|\d{1,9}(?:[x×/]\d{1,9})+|nan|[-+]?inf", re.I
)
_DIGEST, _LONG = re.compile(r"[0-9a-f]{64}"), re.compile(r"(?<![\d.])\d{5}")  # in a long number: a PIN, a serial number
_VERSION = re.compile(r"\d[\w.+-]{0,40}")
_IDENTIFIER = re.compile(r"[A-Za-z_][\w.+-]{0,60}")
_OPTION = re.compile(r"--?[A-Za-z][A-Za-z-]{0,30}")
_PLACE = re.compile(r"\{(?:model|converted|inputs|outputs)\}")
_DOCUMENTATION = re.compile(r'""".*?"""', re.DOTALL)
_TEXT, _FIELD = re.compile(r'"((?:[^"\\\n]|\\.)*)"'), re.compile(r"\{.*?\}")  # of Python code
PROGRAMS = frozenset(
    "python python3 bash sh ssh scp adb docker env node perl ruby make cmake wsl sudo nice timeout trtexec".split()
)  # that a command line may begin with: everybody has them
_EDGES = "()[]{}<>,.;:!?'\"`|…*"  # around a word

PACKAGES = tuple(
    "subcut onnx onnxruntime onnxruntime-gpu onnxruntime-openvino onnxruntime-directml onnxruntime-extensions numpy "
    "ml_dtypes protobuf networkx openvino opencv-python opencv-python-headless tract MNN ncnn torch tensorflow "
    "ai-edge-litert tensorrt apache-tvm iree-base-compiler iree-base-runtime rknn-toolkit2 rknn-toolkit-lite2 onnxsim "
    "onnxscript".split()
)
VARIABLES = re.compile(
    r"OMP_(NUM_THREADS|PROC_BIND|PLACES|SCHEDULE|DYNAMIC|WAIT_POLICY)|KMP_[A-Z_]+|GOMP_[A-Z_]+"
    r"|(MKL|OPENBLAS|BLIS|NUMEXPR|VECLIB)_(NUM|MAXIMUM)_THREADS|MKL_(CBWR|DYNAMIC|DEBUG_CPU_TYPE|ENABLE_INSTRUCTIONS)"
    r"|DNNL_[A-Z_]+|ONEDNN_[A-Z_]+|CUDA_VISIBLE_DEVICES|NVIDIA_TF32_OVERRIDE|TF_ENABLE_ONEDNN_OPTS|MALLOC_ARENA_MAX"
    r"|ORT_TENSORRT_((FP16|INT8|DLA|SPARSITY|BUILD_HEURISTICS)_ENABLE|INT8_USE_NATIVE_CALIBRATION_TABLE|DLA_CORE"
    r"|LAYER_NORM_FP32_FALLBACK|BUILDER_OPTIMIZATION_LEVEL|M(AX_WORKSPACE|IN_SUBGRAPH)_SIZE)"  # documented, numbers
)

# Keys of our documents by what their values are; any other key holds a text.
NAME_KEYS = frozenset(
    "name node nodes tensor tensors first last without start end producer op ops edges pulled random frozen renamed "
    "graph".split()
)  # of nodes and tensors
WORD_KEYS = frozenset(
    "schema status signature signal kind purpose outcome dtype form format formats layout precision runtime machine "
    "provider optimisation".split()
)  # of our own, or of the machine's make
VERSION_KEYS = frozenset("version versions packages python subcut".split())
FILE_KEYS = frozenset(("file", "files", "case", "report", "custom_ops"))  # a path, of which the last part goes
COMMAND_KEYS = frozenset(("command", "run", "convert"))
SPEC_KEYS = frozenset(("candidate", "candidates", "reference", "identity"))  # a name or backend below these is a SPEC


@dataclass(frozen=True)
class Redactor:
    """What may leave this machine, and what is known to be private on it; `this_machine` finds it.

    Attributes:
        names: of nodes, tensors and files that go along. free_text: the user lets other texts go.
        source: the user lets lines of source code go, with their paths.
    """

    homes: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    names: frozenset[str] = frozenset()
    free_text: bool = False
    source: bool = False

    def text(self, text: str) -> str:
        """The text, if it may leave.

        >>> ours, theirs = "max_abs 4.7e+00 beyond 10 × noise 5.2e-07", "RuntimeError: no route to 10.1.2.3"
        >>> Redactor().text(ours) == ours, Redactor().text(theirs)
        (True, 'left out: subcut bundle --include-text sends it')
        """
        if self.free_text:
            return self._without_private(text)
        return text if self._is_known(text) else LEFT_OUT

    def _is_known(self, text: str) -> bool:
        """Are all words ours, numbers, or names in the model?"""
        return text in self.names or all(map(self._is_known_word, text.split()))

    def _is_known_word(self, word: str) -> bool:
        inner = word.strip(_EDGES)
        if not inner or word in self.names or inner in self.names:
            return True
        if self._is_private(inner):
            return False
        known = own_words()
        return all(
            _NUMBER.fullmatch(part) or part in self.names or part in known or part.removesuffix("s") in known
            for part in inner.split("=")
        )

    def _without_private(self, text: str) -> str:
        """A text that the user lets go, without what is known to be private."""
        for secret in self.secrets:
            text = text.replace(secret, REMOVED)
        text = _TOKENS.sub(REMOVED, text)
        for folder in self.homes:
            text = text.replace(folder, "~")
        for names, replacement in ((self.hosts, HOST), (self.users, USER)):
            for name in names:
                text = re.sub(rf"(?<![^\W_]){re.escape(name)}(?![^\W_])", replacement, text, flags=re.IGNORECASE)
        return text

    def command(self, line: str) -> str:
        """A command line, each word of which stays or is `REMOVED`."""
        try:
            words = shlex.split(line)
        except ValueError:
            return REMOVED
        out: list[str] = []
        for before, word in zip(["", *words], words, strict=False):
            is_secret = before.startswith("-") and SECRET.search(before) and not word.startswith("-")
            out.append(REMOVED if is_secret else self._word(word))
        return joined(out)

    def _word(self, word: str) -> str:
        """A word of a command line: ours, an option, a place, a short number, a script's name, or a SPEC of ours."""
        head, sep, rest = word.partition(":")
        if sep and RUN in capabilities(head).commands:
            return f"{head}:{self.command(rest)}"
        if "=" in rest and (head.endswith(".py") or head in plugins.names("backends")):  # another is a URL, a login
            return self.spec(word)
        if self.free_text:
            return self._without_private(word)
        file = PurePath(word.replace("\\", "/")).name
        if file in PROGRAMS or re.fullmatch(r"python[\d.]*", file):
            return file
        is_long = _LONG.search(word) and word not in self.names
        if not is_long and (self._is_known_word(_PLACE.sub("", word)) or _OPTION.fullmatch(word)):
            return word
        option, sep, value = word.partition("=")
        if sep and (_OPTION.fullmatch(option) or self._is_known_word(option)):
            return f"{option}={REMOVED if SECRET.search(option) else self._word(value)}"
        return file if file.endswith(CODE) and _IDENTIFIER.fullmatch(file) and not self._is_private(file) else REMOVED

    def _is_private(self, word: str) -> bool:
        return any(name.lower() in word.lower() for name in (*self.users, *self.hosts, *self.secrets))

    def spec(self, spec: str) -> str:
        """A candidate's name, backend or SPEC: `ort:opt=basic`, `cmd:…`, `mine.py:key=…`, `npu`."""
        head, sep, rest = spec.partition(":")
        if sep and RUN in capabilities(head).commands:
            return f"{head}:{self.command(rest)}"
        file = PurePath(head.replace("\\", "/")).name
        head = file if _IDENTIFIER.fullmatch(file) and not self._is_private(file) else REMOVED if head else ""
        return head + sep + ",".join(self._setting(*word.partition("=")) for word in rest.split(",") if word)

    def _setting(self, key: str, eq: str, value: str) -> str:
        """`key=value` of a SPEC; without a `=`, words between colons: `module.py:build`."""
        told = f"{key if self._is_known_key(key) else REMOVED}={self.option(key, value)}"
        return told if eq else ":".join(map(self._word, key.split(":")))

    def option(self, key: str, value: Any) -> Any:
        """The value of a candidate's option."""
        told = REMOVED if SECRET.search(key) else self._word(str(value))
        return value if value in ("", None, True, False) or told == str(value) else told

    def document(self, value: Any, key: str = "", inside: str = "") -> Any:
        """A document of which only what is known leaves. `inside`: the one of SPEC_KEYS around the value, if any."""
        if isinstance(value, Mapping):
            if key in ("source", "sources") and "module" in value:
                left = {"module": value["module"], "class": "", "file": None, "line": None, "code": None}
                return value if self.source else left  # an empty class: not a module that a name alone tells
            within = inside or (key if key in SPEC_KEYS else "")
            if within and key == "options":
                return {k: self.command(v) if k in COMMAND_KEYS else self.option(k, v) for k, v in value.items()}
            by_key = (VERSION_KEYS | NAME_KEYS) & {key}  # `packages`, `renamed`: maps by name
            return {
                k if by_key or self._is_known_key(k) else self._word(k): self.document(v, key if by_key else k, within)
                for k, v in value.items()
            }
        if isinstance(value, list):
            kept = [self.document(v, key, inside) for v in value]
            return list(dict.fromkeys(kept)) if LEFT_OUT in kept and key in ("stderr", "notes") else kept
        return self._value(value, key, inside) if isinstance(value, str) else value

    def _value(self, value: str, key: str, inside: str) -> str:
        if not value or _DIGEST.fullmatch(value):
            return value
        if key in COMMAND_KEYS:
            return self.command(value)
        if key in ("candidate", "backend", "reference") or (inside and key == "name"):
            return self.spec(value)
        if (key in NAME_KEYS and not inside) or key in WORD_KEYS:
            return value
        if key in VERSION_KEYS and _VERSION.fullmatch(value):
            return value
        if key in FILE_KEYS:
            return value if value in self.names else PurePath(value.replace("\\", "/")).name
        if key == "criterion":
            return value if self._is_known(value) else self.spec(value)
        return LEFT_OUT if key == "stderr" and not self.free_text else self.text(value)

    def _is_known_key(self, key: str) -> bool:
        return bool(_IDENTIFIER.fullmatch(key)) and not self._is_private(key)

    def leaks(self, data: bytes, *, words: bool = False) -> list[str]:
        """Kinds of private details in a file that is packed unchanged; names of user and host only with `words`."""
        kinds = [
            kind
            for kind, texts in (("your home path", self.homes), ("a secret of the environment", self.secrets))
            if any(text.encode() in data for text in texts)
        ]
        if _TOKENS.search(data.decode(errors="replace")):
            kinds.append("what looks like a token")
        for kind, names in (("your user name", self.users), ("this machine's name", self.hosts)) if words else ():
            if any(re.search(rb"(?i)(?<![a-z0-9])%b(?![a-z0-9])" % re.escape(n.encode()), data) for n in names):
                kinds.append(kind)
        return kinds


def joined(words: Iterable[str]) -> str:
    """Words as a command line, quoted where needed; placeholders like `{model}` are not."""
    return " ".join(word if re.fullmatch(r"[\w{}./:=,@%+*#-]+", word) else shlex.quote(word) for word in words)


def same(line: str, plain: str) -> bool:
    """Is a command line the same but for its quotes?"""
    try:
        return shlex.split(line) == shlex.split(plain)
    except ValueError:
        return line == plain


@cache
def own_words() -> frozenset[str]:
    """All words of the texts in subcut's own code, documentation apart."""
    found: set[str] = set()
    for path in Path(__file__).parents[1].rglob("*.py"):
        code = _DOCUMENTATION.sub("", path.read_text(encoding="utf-8"))
        texts = (_FIELD.sub(" ", text) for text in _TEXT.findall(code))
        found.update(word.strip(_EDGES) for text in texts for word in text.split())
    return frozenset(found)


def this_machine(
    names: Iterable[str] = (), secrets: Iterable[str] = (), *, free_text: bool = False, source: bool = False
) -> Redactor:
    """What is private on this machine, and further `secrets`; `names`, texts and source code may leave as they say."""
    homes = {os.path.expanduser("~"), os.environ.get("HOME", ""), home_folder()}  # noqa: PTH111 - may stay a tilde
    homes |= {os.path.realpath(home) for home in homes if home}
    folders = {str(Path(home)) for home in homes if home.startswith("/") and len(Path(home).parts) > 1}
    users = _users() | {Path(home).name for home in folders}
    hosts = {platform.node(), platform.node().partition(".")[0]}
    in_environment = {v for k, v in os.environ.items() if SECRET.search(k) and len(v) >= MIN_SECRET_LENGTH}
    return Redactor(
        _longest_first(folders),
        _longest_first(_personal(users)),
        _longest_first(_personal(hosts)),
        _longest_first(in_environment | set(secrets)),
        frozenset(names),
        free_text,
        source,
    )


def _longest_first(texts: Iterable[str]) -> tuple[str, ...]:
    """A text may begin with another, so the longer ones are replaced first."""
    return tuple(sorted(filter(None, texts), key=lambda t: (-len(t), t)))


def _personal(words: Iterable[str]) -> Iterable[str]:
    return (w for w in words if len(w) >= MIN_LENGTH and w.lower() not in NOT_PERSONAL)


def _users() -> set[str]:
    users = {os.environ.get(name, "") for name in ("LOGNAME", "USER", "LNAME", "USERNAME", "SUDO_USER")}
    try:
        return users | {getpass.getuser()}
    except (OSError, KeyError, ImportError):  # the user's number has no name
        return users


# ---------------------------------------------------------------------------------------------------- the machine


@dataclass(frozen=True)
class Environment:
    """The facts of a machine that may matter to whoever runs a case elsewhere, and no others."""

    schema: str
    python: str
    implementation: str
    system: str
    release: str
    machine: str
    processor: str
    cores: int | None
    memory: str
    packages: Mapping[str, str]
    variables: Mapping[str, str]


def environment() -> Environment:
    """The facts of this machine."""
    return Environment(
        "subcut.environment/1",
        platform.python_version(),
        platform.python_implementation(),
        platform.system(),
        platform.release(),
        platform.machine(),
        processor(),
        os.cpu_count(),
        _memory(),
        _packages(),
        variables(os.environ),
    )


def variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The settings of an environment that change computed values, where they are plain words.

    >>> variables({"OMP_NUM_THREADS": "2", "ORT_API_TOKEN": "abc", "KMP_X": "/home/me", "PATH": "/bin"})
    {'OMP_NUM_THREADS': '2'}
    """
    return {
        k: v
        for k, v in sorted(environ.items())
        if VARIABLES.fullmatch(k) and not SECRET.search(k) and PLAIN_VALUE.fullmatch(v)
    }


def _packages() -> dict[str, str]:
    installed = {}
    for name in PACKAGES:
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return installed


def _memory() -> str:
    """Rounded down to a power of two of GiB: `16 GiB or more`."""
    size = memory(1.0)
    return f"{1 << max(0, (size >> 30).bit_length() - 1)} GiB or more"
