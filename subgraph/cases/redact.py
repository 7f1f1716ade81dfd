"""The redaction of documents that leave this machine: known fields leave, free text does not; and
the facts of the machine.

A field leaves if it holds names of the case, words of ours, versions, digests or numbers. Any other
text is left out: what a candidate printed, sentences, paths. Of a command line the program's name,
placeholders, our own options and short numbers leave. With the user's consent (`keep`) a text
leaves, without what is known to be private here.
"""

from __future__ import annotations

import getpass
import os
import platform
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib import import_module
from itertools import chain
from pathlib import Path, PurePath
from typing import Any

from subgraph import plugins, results, system
from subgraph.cases import case
from subgraph.documents import KEY
from subgraph.lazy import metadata
from subgraph.runtime.backends import Options, capabilities
from subgraph.runtime.candidate import RUN, WITH_FORMS, stated_options
from subgraph.storage.convert import StoredFile
from subgraph.system import home_folder, memory, processor
from subgraph.text import behind_colon
from subgraph.verdict import Signature, Status

REMOVED = "REMOVED"  # replaces a word of a command line
LEFT_OUT = "left out"  # replaces a text
ALL = "all"  # keeps every text
COMMAND = "command"  # keeps command lines
USER = "USER"
HOST = "HOST"
NOT_PERSONAL = frozenset(
    "root user users admin ubuntu debian runner nobody default build docker test guest home jenkins"
    " localhost subcut onnx model max min mean norm mark will may case cut page rich host data".split()  # noqa: E501
)  # names of users and hosts that identify nobody, or that are words of ours
MIN_LENGTH = 3  # letters of a user's or host's name; shorter ones are not looked for
MIN_SECRET_LENGTH = 6  # characters of a secret in the environment
SECRET = re.compile(
    r"token(?!s|i)|secret|passw|passphrase|credential|api_?key|access_?key|private_?key|auth(?!or)|_key$|_pat$|cookie",
    re.I,
)
PLAIN_VALUE = re.compile(
    r"[\w .,:=+*-]{1,80}"
)  # of a setting that a bundle has: no path, no address
_TOKENS = re.compile(
    r"\b(?:hf_\w{16,}|gh[pousr]_\w{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|sk-[\w-]{16,}|AKIA[0-9A-Z]{16}"
    r"|xox[abprs]-[\w-]{10,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)"
)  # of known services
_PASSWORD = re.compile(r"[A-Za-z][\w+.-]*://[^\s/@:]*:[^\s/@]+@")
_ADDRESSES = {
    "a mail address": re.compile(r"[\w.+-]+@[\w-]+\.[\w.-]*\w(?![\w@/])"),
    "the address of a host": re.compile(r"\w://\w|\b(?:\d{1,3}\.){3}\d{1,3}\b"),
}  # also in texts that have none: they are looked for in metadata alone
_NUMBER = re.compile(
    r"(?=.{1,5}$)\d{1,4}(?:\.\d{1,3})?"
)  # at most four digits: a longer one may be a PIN
_DIGEST = re.compile(r"[0-9a-f]{64}")
_VERSION = re.compile(r"\d[\w.+-]{0,40}")
_IDENTIFIER = re.compile(r"[A-Za-z_][\w.+-]{0,60}")
_NAME = re.compile(
    r"[A-Za-z_][\w.+-]{0,60}(?:==\d[\d.]{0,20})?"
)  # of a program, a backend or a candidate
_FLAG = re.compile(r"-[a-z]|--[a-z]+(?:-[a-z]+)*")  # of subcut, which refuses others
_PLACE = re.compile(r"\{(?:model|converted|inputs|outputs|host)\}")
_SPEC_FLAGS = frozenset(("-c", "--candidate", "--reference"))

PACKAGES = tuple(
    "subcut onnx onnxruntime onnxruntime-gpu onnxruntime-openvino onnxruntime-directml"
    " onnxruntime-extensions numpy ml_dtypes protobuf networkx openvino opencv-python"
    " opencv-python-headless tract MNN ncnn torch tensorflow ai-edge-litert tensorrt apache-tvm"
    " iree-base-compiler iree-base-runtime rknn-toolkit2 rknn-toolkit-lite2 onnxsim onnxscript".split()  # noqa: E501
)
VARIABLES = re.compile(
    r"OMP_(NUM_THREADS|PROC_BIND|PLACES|SCHEDULE|DYNAMIC|WAIT_POLICY)|KMP_(AFFINITY|BLOCKTIME|SETTINGS|HW_SUBSET)"
    r"|GOMP_(CPU_AFFINITY|SPINCOUNT)"
    r"|(MKL|OPENBLAS|BLIS|NUMEXPR|VECLIB)_(NUM|MAXIMUM)_THREADS|MKL_(CBWR|DYNAMIC|DEBUG_CPU_TYPE|ENABLE_INSTRUCTIONS)"
    r"|(DNNL|ONEDNN)_(MAX_CPU_ISA|CPU_ISA_HINTS|DEFAULT_FPMATH_MODE|PRIMITIVE_CACHE_CAPACITY)"
    r"|CUDA_VISIBLE_DEVICES|NVIDIA_TF32_OVERRIDE|TF_ENABLE_ONEDNN_OPTS|MALLOC_ARENA_MAX"
    r"|ORT_TENSORRT_((FP16|INT8|DLA|SPARSITY|BUILD_HEURISTICS)_ENABLE|INT8_USE_NATIVE_CALIBRATION_TABLE|DLA_CORE"
    r"|LAYER_NORM_FP32_FALLBACK|BUILDER_OPTIMIZATION_LEVEL|M(AX_WORKSPACE|IN_SUBGRAPH)_SIZE)"
)  # those that the makers of these libraries document, with plain values

MAX_DIGITS = 4  # of a value of an option; more may be a PIN or a token
_OPTION_WORD = re.compile(r"[A-Za-z][\w-]*(?:[:+][A-Za-z][\w-]*)*|\d+(?:\.\d+){0,2}|[A-Z]+\.\d")
# Types of fields that may leave. The second part has keys that no dataclass holds: of requests, of
# ended processes and of candidates' options.
LEAVING = {
    "Name": "edges pulled random sample",
    "Word": "formats phase signal",
    "Version": "",
    "File": "",
    "CommandLine": "convert run",
}
MAPS = frozenset(("renamed", "ranking", "versions", "packages"))  # their own keys are names
SPEC_KEYS = frozenset(
    ("candidate", "candidates", "reference", "identity")
)  # a name or backend below these is a SPEC
JUDGED = frozenset(
    (Signature.MISMATCH, Signature.PRECISION, Signature.NAN, Signature.SHAPE)
)  # `why` is a criterion's


@dataclass(frozen=True)
class Redactor:
    """The rules of redaction, and the private texts of this machine, which `this_machine` finds.

    Attributes:
        names: of nodes, tensors and files of the case. scripts: names of the candidate's files that
            go along.
        keep: names of fields and text files whose texts the user lets go; `ALL` for all of them.
        source: the user lets lines of source code go, with their paths. metadata: the modules'
            names, else.
        own_criterion: a criterion of subcut judged, so its sentences are ours.
        kept, left: names of the fields and files with texts that were kept, and left out.
    """

    homes: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    names: frozenset[str] = frozenset()
    scripts: frozenset[str] = frozenset()
    keep: frozenset[str] = frozenset()
    source: bool = False
    metadata: bool = True
    own_criterion: bool = True
    kept: set[str] = field(default_factory=set, compare=False)
    left: set[str] = field(default_factory=set, compare=False)

    def text(self, text: str, name: str) -> str:
        """The free text of a field or file, if it may leave.

        >>> Redactor().text("no route to 10.1.2.3", "why"), Redactor(keep=frozenset(["why"])).text("no route", "why")
        ('left out', 'no route')
        """  # noqa: E501
        if self._keeps(name):
            return self._remove_private(text)
        self.left.add(name)
        return LEFT_OUT

    def _keeps(self, name: str) -> bool:
        if keeps := name in self.keep or ALL in self.keep:
            self.kept.add(name)
        return keeps

    def _remove_private(self, text: str) -> str:
        """A text that the user lets go, without what is known to be private."""
        for secret in self.secrets:
            text = text.replace(secret, REMOVED)
        text = _TOKENS.sub(REMOVED, text)
        for folder in self.homes:
            text = _make_pattern(folder).sub("~", text)
        for names, replacement in ((self.hosts, HOST), (self.users, USER)):
            for name in names:
                text = re.sub(
                    rf"(?<![^\W_]){re.escape(name)}(?![^\W_])",
                    replacement,
                    text,
                    flags=re.IGNORECASE,
                )
        return text

    def command(self, line: str) -> str:
        """A command line, each word of which stays or is `REMOVED`.

        >>> Redactor().command("/opt/tools/run.sh {model} --url https://me:pw@host -n 4")
        'run.sh {model} REMOVED REMOVED REMOVED 4'
        """
        if self._keeps(COMMAND):
            return self._remove_private(line)
        try:
            words = system.split(line)
        except ValueError:
            return REMOVED
        if words[:1] == ["subcut"]:
            return joined(["subcut", *self._own_words(words[1:])])
        return joined([*map(self._name, words[:1]), *map(self._word, words[1:])])

    def _own_words(self, words: list[str]) -> Iterable[str]:
        """The words of a command line of subcut, whose options are ours."""
        for k, word in enumerate(words):
            flag, eq, value = word.partition("=")
            if k and words[k - 1] in _SPEC_FLAGS:
                yield self.spec(word)
            elif flag in _SPEC_FLAGS and eq:
                yield f"{flag}={self.spec(value)}"
            elif _FLAG.fullmatch(flag) and eq:
                yield f"{flag}={self._word(value)}"
            else:
                is_command = (
                    k == 0
                    and word.isidentifier()
                    and (plugins.HOME / "commands" / f"{word}.py").is_file()
                )
                yield (
                    word
                    if is_command or _FLAG.fullmatch(word) or word in self.names
                    else self._word(word)
                )

    def _word(self, word: str) -> str:
        """A placeholder, a short number, or a script that goes along; `REMOVED` for any other
        word."""
        stays = _PLACE.fullmatch(word) or _NUMBER.fullmatch(word) or self._is_script(word)
        return word if stays else REMOVED

    def _is_script(self, word: str) -> bool:
        return PurePath(os.path.normpath(word)).as_posix() in self.scripts

    def _name(self, word: str) -> str:
        """The name of a program, a backend or a candidate, without its folder."""
        if self._is_script(word):
            return word
        name = PurePath(word.replace("\\", "/")).name
        if _NAME.fullmatch(name) and not self._is_private(name):
            return name
        if word:
            return REMOVED
        return ""

    def _is_private(self, word: str) -> bool:
        return any(
            name.lower() in word.lower() for name in (*self.users, *self.hosts, *self.secrets)
        )

    def spec(self, spec: str) -> str:
        """A candidate's name, backend or SPEC: `ort:opt=basic`, `cmd:…`, `mine.py:key=…`, `npu`."""
        if (m := WITH_FORMS.fullmatch(spec)) and RUN in capabilities(m[1]).commands:
            return f"{m[1]}[{self._settings(m[2], m[1])}]:{self.command(m[3])}"
        head, sep, rest = behind_colon(spec)
        if sep and RUN in capabilities(head).commands:
            return f"{head}:{self.command(rest)}"
        return self._name(head) + sep + self._settings(rest, head)

    def _settings(self, text: str, head: str) -> str:
        settings = (word.partition("=") for word in text.split(",") if word)
        return ",".join(
            (
                f"{self._key_of_option(key, head)}={self.option(key, value, head)}"
                if eq
                else self._word(key)
            )
            for key, eq, value in settings
        )

    def _key_of_option(self, key: str, head: str) -> str:
        return key if _find_stated_values(key, head) or self._keeps(COMMAND) else REMOVED

    def option(self, key: str, value: Any, head: str = "") -> Any:
        """Return the value of a candidate's option if it may leave, else `REMOVED`.

        Args:
            key: The option's name.
            value: The option's value.
            head: The backend or device, whose own options leave with any plain value.
        """
        if value in ("", None, True, False):
            return value
        text = str(value)
        if self._keeps(COMMAND) and not SECRET.search(key):
            return self._remove_private(text)
        stated = _find_stated_values(key, head)
        stays = self._word(text) == text or text in chain.from_iterable(filter(None, stated))
        stays |= () in stated and self._is_plain(text)
        return value if stays and not SECRET.search(key) else REMOVED

    def _is_plain(self, text: str) -> bool:
        """Return whether a value is a word or a version, and neither a path, a host nor a token."""
        is_word = _OPTION_WORD.fullmatch(text) and sum(map(str.isdigit, text)) <= MAX_DIGITS
        return bool(is_word) and not _TOKENS.search(text) and not self._is_private(text)

    def document(self, value: Any, key: str = "", inside: str = "") -> Any:
        """A document of which only what is known leaves. `inside`: the candidate around the value,
        if any."""
        if isinstance(value, Mapping):
            if key in ("source", "sources") and "module" in value:
                if not self.metadata:
                    return None
                if self.source:
                    return value
                nothing = dict.fromkeys(("file", "line", "code"))
                return {"module": value["module"], "class": "", **nothing}
            owner = (
                str(value.get("backend") or value.get("name") or key) if key in SPEC_KEYS else ""
            )
            return self._mapping(value, key, inside or owner)
        if isinstance(value, list):
            kept = [self.document(v, key, inside) for v in value]
            return (
                [v for v in kept if v != LEFT_OUT]
                if isinstance(next(iter(value), None), str)
                else kept
            )
        return self._value(value, key, inside) if isinstance(value, str) else value

    def _mapping(self, value: Mapping[str, Any], key: str, inside: str) -> dict[str, Any]:
        if inside and key == "options":
            lines = leaving_keys()["CommandLine"]
            return {
                k if k in lines else self._key_of_option(k, inside): (
                    self.command(v) if k in lines else self.option(k, v, inside)
                )
                for k, v in value.items()
            }
        if inside and key == "files":  # of the candidate, by the word that names each
            return {word: digest for word, digest in value.items() if self._word(word) == word}
        is_map = key in MAPS
        is_judged = self.own_criterion and (
            value.get("status") == Status.AGREE or value.get("signature") in JUDGED
        )
        ours: set[str] = set()
        if is_judged or "status" not in value:
            ours.add("label")
        if is_judged:
            ours.add("why")
        redacted = {}
        for k, v in value.items():
            kind = key if is_map and not isinstance(v, Mapping) else k
            is_known = is_map or k in self.names or self._is_known_key(k)
            redacted[k if is_known else REMOVED] = (
                v if k in ours else self.document(v, kind, inside)
            )
        return redacted

    def _value(self, value: str, key: str, inside: str) -> str:
        if not value or _DIGEST.fullmatch(value):
            return value
        leaving = {kind for kind, keys in leaving_keys().items() if key in keys}
        if "CommandLine" in leaving:
            return self.command(value)
        if key in ("candidate", "backend", "reference") or (inside and key == "name"):
            return self.spec(value)
        if ("Name" in leaving and not inside) or "Word" in leaving:
            return value
        if "Version" in leaving and _VERSION.fullmatch(value):
            return value
        if "File" in leaving:
            return value if value in self.names else PurePath(value.replace("\\", "/")).name
        if key == "criterion" and self.own_criterion:
            return value
        return self.text(value, key)

    def _is_known_key(self, key: str) -> bool:
        return bool(_IDENTIFIER.fullmatch(key)) and not self._is_private(key)

    def leaks(self, data: bytes, *, words: bool = False, addresses: bool = False) -> list[str]:
        """Kinds of private details in a file that is packed unchanged; names of user and host only
        with `words`."""
        text = data.decode(errors="replace")
        kinds = (
            ["your home path"]
            if any(_make_pattern(home).search(text) for home in self.homes)
            else []
        )
        kinds += (
            ["a secret of the environment"]
            if any(secret.encode() in data for secret in self.secrets)
            else []
        )
        kinds += ["what looks like a token"] if _TOKENS.search(text) else []
        kinds += ["a URL with a password"] if _PASSWORD.search(text) else []
        kinds += [
            kind for kind, pattern in _ADDRESSES.items() if addresses and pattern.search(text)
        ]
        for kind, names in (
            (("your user name", self.users), ("this machine's name", self.hosts)) if words else ()
        ):
            if any(
                re.search(rb"(?i)(?<![a-z0-9])%b(?![a-z0-9])" % re.escape(n.encode()), data)
                for n in names
            ):
                kinds.append(kind)
        return kinds


@cache
def leaving_keys() -> Mapping[str, frozenset[str]]:
    """Return the keys of texts that may leave, by the type that `documents` has for them."""
    modules = (import_module(f"subgraph.results.{name}") for name in results.MODULES)
    kinds = filter(is_dataclass, chain.from_iterable(vars(m).values() for m in (case, *modules)))
    known = [*chain.from_iterable(map(fields, kinds)), *fields(StoredFile)]
    keys = [(f.metadata.get(KEY, f.name), re.findall(r"\w+", str(f.type))) for f in known]
    return {
        kind: frozenset([*more.split(), *(key for key, words in keys if kind in words)])
        for kind, more in LEAVING.items()
    }


def _find_stated_values(key: str, head: str) -> list[Sequence[str] | None]:
    """Return the values of an option, as each that has it states them: a backend or device, or any
    of ours.

    Of a candidate of the user's, the listed words of all backends are known, and no other value.
    """
    every = [stated_options(head)] if stated_options(head) else _all_options()
    return [
        values
        for name, values in chain.from_iterable(options.items() for options in every)
        if fnmatchcase(key, name)
    ]


@cache
def _all_options() -> list[Options]:
    """Return the options of all backends with lists of values; an option without a list has no
    value here."""
    stated = map(stated_options, plugins.own_names("backends"))
    return [
        {name: values or None for name, values in options.items() if "*" not in name}
        for options in stated
    ]


def joined(words: Iterable[str]) -> str:
    """Words as a command line, quoted where needed; placeholders like `{model}` are not."""
    return " ".join(
        word if re.fullmatch(r"[\w{}./:=,@%+*#-]+", word) else shlex.quote(word) for word in words
    )


def same(line: str, plain: str) -> bool:
    """Return whether two command lines differ only in their quotes."""
    try:
        return system.split(line) == system.split(plain)
    except ValueError:
        return line == plain


def _make_pattern(folder: str) -> re.Pattern[str]:
    r"""Return a pattern of the spellings of a folder; one of Windows in any case, with `/` or `\`,
    which JSON doubles.

    >>> bool(_make_pattern(r"C:\Users\me").search("c:/users/me/x")), bool(_make_pattern("/home/me").search("/HOME/me"))
    (True, False)
    """  # noqa: E501
    if "\\" not in folder:
        return re.compile(re.escape(folder))
    return re.compile(r"[\\/]{1,2}".join(map(re.escape, folder.split("\\"))), re.IGNORECASE)


def this_machine(secrets: Iterable[str] = ()) -> Redactor:
    """Return the private texts of this machine, and further `secrets`."""
    homes = {
        os.path.expanduser("~"),  # noqa: PTH111
        os.environ.get("HOME", ""),
        home_folder(),
    }
    homes |= {os.path.realpath(home) for home in homes if home}
    folders = {
        str(Path(home)) for home in homes if Path(home).is_absolute() and len(Path(home).parts) > 1
    }
    users = _users() | {Path(home).name for home in folders}
    hosts = {platform.node(), platform.node().partition(".")[0]}
    in_environment = {
        v for k, v in os.environ.items() if SECRET.search(k) and len(v) >= MIN_SECRET_LENGTH
    }
    return Redactor(
        _longest_first(folders),
        _longest_first(_personal(users)),
        _longest_first(_personal(hosts)),
        _longest_first(in_environment | set(secrets)),
    )


def _longest_first(texts: Iterable[str]) -> tuple[str, ...]:
    """A text may begin with another, so the longer ones are replaced first."""
    return tuple(sorted(filter(None, texts), key=lambda t: (-len(t), t)))


def _personal(words: Iterable[str]) -> Iterable[str]:
    return (w for w in words if len(w) >= MIN_LENGTH and w.lower() not in NOT_PERSONAL)


def _users() -> set[str]:
    users = {
        os.environ.get(name, "") for name in ("LOGNAME", "USER", "LNAME", "USERNAME", "SUDO_USER")
    }
    try:
        return users | {getpass.getuser()}
    except (OSError, KeyError, ImportError):  # the user's number has no name
        return users


# ------------------------------------------------------------ the machine


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
    """  # noqa: E501
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
