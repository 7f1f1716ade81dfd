"""The redaction of documents that leave this machine: known fields leave, free text does not; and
the facts of the machine.

A field leaves if it holds names of the case, words of subcut, versions, digests or numbers. A
command line leaves without known private words. Any other text is omitted: the output of a
candidate, sentences, paths. With the user's consent (`keep`) it leaves as a command line does.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import platform
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, fields, is_dataclass
from functools import cache
from importlib import import_module
from pathlib import Path, PurePath
from typing import Any

from subgraph import results, system
from subgraph.cases import case
from subgraph.documents import KEY
from subgraph.iterables import flatten
from subgraph.storage.convert import StoredFile
from subgraph.system import find_home_folder, name_processor
from subgraph.text import split_spec
from subgraph.types import Fields, JsonObject, StringMap, Strings, frozen
from subgraph.verdict import Signature, Status
from subgraph.version import list_versions

REMOVED = "REMOVED"  # replaces a word of a command line
LEFT_OUT = "left out"  # replaces a text
ALL = "all"  # keeps every text
USER = "USER"
USER_VARIABLES = ("LOGNAME", "USER", "LNAME", "USERNAME", "SUDO_USER")
HOST = "HOST"
# Names of users and hosts that identify nobody, or that subcut prints.
NOT_PERSONAL = frozenset(
    "root user users admin ubuntu debian runner nobody default build docker test guest home jenkins"
    " localhost subcut onnx model max min mean norm mark will may case cut page rich host"
    " data".split()
)
MIN_LENGTH = 3  # letters of the name of a user or host; shorter ones are not looked for
MIN_SECRET_LENGTH = 6  # characters of a secret in the environment
SECRET = re.compile(
    r"token(?!s|i)|secret|passw|passphrase|credential|api_?key|access_?key|private_?key|auth(?!or)"
    r"|[_-]key$|[_-]pat$|_pat$|cookie",
    re.I,
)
# Of known services.
_TOKENS = re.compile(
    r"\b(?:hf_\w{16,}|gh[pousr]_\w{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|sk-[\w-]{16,}"
    r"|AKIA[0-9A-Z]{16}|xox[abprs]-[\w-]{10,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)"
)
_PASSWORD = re.compile(r"[A-Za-z][\w+.-]*://[^\s/@:]*:[^\s/@]+@")
_URL = re.compile(r"[A-Za-z][\w+.-]*://[^\s'\"]+")
_MAIL = re.compile(r"[\w.+-]+@[\w-]+\.[\w.-]*\w(?![\w@/])")
_HOME = re.compile(r"(?:/home|/Users|[A-Za-z]:[\\/]{1,2}Users)[\\/]{1,2}[^\s\\/'\":]+")
_VALUE = r"(?:'[^']*'|\"[^\"]*\"|[^\s,'\"]+)"
_ASSIGNED = re.compile(rf"([\w.-]+)=({_VALUE})")  # `HF_TOKEN=…`, `--api-key=…`
_OPTION = re.compile(rf"(--?[A-Za-z][\w-]*\s+)(?!-)({_VALUE})")  # `--api-key …`
_SHORT = re.compile(r"-[A-Za-z]")  # an option of a program that we do not know: `-p hunter2`
# A placeholder, an option, a short number.
_PLAIN = re.compile(r"\{\w+\}|-.*|\d{1,4}(?:\.\d{1,3})?")
_HOST = re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}\b")
# Also in texts that have none: they are looked for in metadata alone.
_ADDRESSES = {
    "a mail address": _MAIL,
    "the address of a host": re.compile(rf"\w://\w|{_HOST.pattern}"),
}
_DIGEST = re.compile(r"[0-9a-f]{64}")
_VERSION = re.compile(r"\d[\w.+-]{0,40}")
_IDENTIFIER = re.compile(r"[A-Za-z_][\w.+-]{0,60}")


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
# A name or backend below these is a SPEC.
SPEC_KEYS = frozenset(("candidate", "candidates", "reference", "identity"))
# `why` is a criterion's.
JUDGED = frozenset((Signature.MISMATCH, Signature.PRECISION, Signature.NAN, Signature.SHAPE))


@frozen
class Redactor:
    """The rules of redaction, and the private texts of this machine, which `make_redactor` finds.

    Attributes:
        homes: The home folders of the user.
        users: The names of the user.
        hosts: The names of the machine.
        secrets: Values of secrets, in the environment and in a candidate's options.
        names: Names of nodes, tensors and files of the case.
        keep: Names of fields and text files whose texts the user keeps; `ALL` for all of them.
        source: Whether the user keeps lines of source code, with their paths.
        metadata: Whether the user keeps the names of modules.
        kept: Names of the fields and files with texts that were kept.
        left: Names of the fields and files with texts that were omitted.
    """

    homes: Strings = ()
    users: Strings = ()
    hosts: Strings = ()
    secrets: Strings = ()
    names: frozenset[str] = frozenset()
    keep: frozenset[str] = frozenset()
    source: bool = False
    metadata: bool = True
    kept: set[str] = field(default_factory=set, compare=False)
    left: set[str] = field(default_factory=set, compare=False)

    def text(self, text: str, name: str) -> str:
        """Return the free text of a field or file, if it may leave.

        >>> Redactor().text("no route to 10.1.2.3", "why")
        'left out'
        >>> Redactor(keep=frozenset(["why"])).text("no route", "why")
        'no route'
        """
        if name in self.keep or ALL in self.keep:
            self.kept.add(name)
            return self._remove_private(text)
        self.left.add(name)
        return LEFT_OUT

    def _remove_private(self, text: str) -> str:
        """Return a text that the user lets go, without what is known to be private."""
        for secret in self.secrets:
            text = text.replace(secret, REMOVED)
        for pattern in (_URL, _MAIL, _TOKENS):
            text = pattern.sub(REMOVED, text)
        for pattern in (_ASSIGNED, _OPTION):
            text = pattern.sub(_hide_secret, text)
        text = _HOME.sub("~", text)
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
        """Return a command line without what is private, and without the folders of absolute paths.

        >>> Redactor().command("/opt/run.sh {model} --url https://me:pw@host --api-key='x y' -n 4")
        'run.sh {model} --url REMOVED --api-key=REMOVED -n 4'
        >>> Redactor().command("sshpass -p hunter2 curl -H 'Authorization: B abc' --lib=/srv/x.so")
        'sshpass -p REMOVED curl -H REMOVED --lib=x.so'
        """
        try:
            arguments = system.split(line)
        except ValueError:
            return REMOVED
        shown = [
            word if word in self.names else _find_name(word) for word in _hide_words(arguments)
        ]
        # Placeholders like `{model}` are not quoted.
        plain = r"[\w{}./:=,@%+*#-]+"
        quoted = (word if re.fullmatch(plain, word) else shlex.quote(word) for word in shown)
        return _HOST.sub(HOST, self._remove_private(" ".join(quoted)))

    def _name(self, path: str) -> str:
        return self._remove_private(_find_name(path))

    def redact_spec(self, spec: str) -> str:
        """Return a candidate's name, backend or SPEC: `ort:opt=basic`, `cmd:…`, `mine.py:key=…`,
        `npu`."""
        head, sep, rest = split_spec(spec)
        return self._name(head) + sep + self.command(rest)

    def redact_option(self, key: str, value: Any) -> Any:
        """Return the value of a candidate's option, `REMOVED` for a secret one."""
        if SECRET.search(key):
            return REMOVED
        if isinstance(value, str):
            return self.command(value)
        return value

    def document(self, value: Any, key: str = "", inside: bool = False) -> Any:
        """Return a document of which only what is known leaves. `inside`: the value is of a
        candidate."""
        if isinstance(value, Mapping):
            if key in ("source", "sources") and "module" in value:
                if not self.metadata:
                    return None
                if self.source:
                    return value
                nothing = dict.fromkeys(("file", "line", "code"))
                return {"module": value["module"], "class": "", **nothing}
            return self._redact_mapping(value, key, inside or key in SPEC_KEYS)
        if isinstance(value, list):
            items = [self.document(v, key, inside) for v in value]
            has_texts = isinstance(next(iter(value), None), str)
            return [v for v in items if not has_texts or v != LEFT_OUT]
        if isinstance(value, str):
            return self._redact_value(value, key, inside)
        return value

    def _redact_mapping(self, value: Fields, key: str, inside: bool) -> JsonObject:
        if inside and key == "options":
            return {name: self.redact_option(name, v) for name, v in value.items()}
        if inside and key == "files":  # of the candidate, by the word that names each
            return {self._name(word): digest for word, digest in value.items()}
        is_map = key in MAPS
        is_judged = value.get("status") == Status.AGREE or value.get("signature") in JUDGED
        of_criterion = {"label"} if is_judged or "status" not in value else set()
        if is_judged:
            of_criterion.add("why")
        redacted = {}
        for name, v in value.items():
            kind = key if is_map and not isinstance(v, Mapping) else name
            is_plain = bool(_IDENTIFIER.fullmatch(name)) and self._remove_private(name) == name
            is_known = is_map or name in self.names or is_plain
            redacted[name if is_known else REMOVED] = (
                self._remove_private(str(v))
                if name in of_criterion
                else self.document(v, kind, inside)
            )
        return redacted

    def _redact_value(self, value: str, key: str, inside: bool) -> str:
        if not value or _DIGEST.fullmatch(value):
            return value
        leaving = {kind for kind, keys in list_leaving_keys().items() if key in keys}
        if "CommandLine" in leaving:
            return self.command(value)
        if key in ("candidate", "backend", "reference") or (inside and key == "name"):
            return self.redact_spec(value)
        if ("Name" in leaving and not inside) or "Word" in leaving:
            return value
        if "Version" in leaving and _VERSION.fullmatch(value):
            return value
        if "File" in leaving:
            if value in self.names:
                return value
            return PurePath(value.replace("\\", "/")).name
        if key == "criterion":
            return self.command(value)
        return self.text(value, key)

    def find_leaks(self, data: bytes, *, words: bool = False, addresses: bool = False) -> list[str]:
        """Return the kinds of private details in a file that is packed unchanged.

        Names of user and host count only with `words`.
        """
        text = data.decode(errors="replace")
        has_kind = {
            "your home path": any(_make_pattern(home).search(text) for home in self.homes),
            "a secret of the environment": any(s.encode() in data for s in self.secrets),
            "what looks like a token": _TOKENS.search(text),
            "a URL with a password": _PASSWORD.search(text),
            **{kind: addresses and pattern.search(text) for kind, pattern in _ADDRESSES.items()},
            "your user name": words and _has_word(self.users, data),
            "this machine's name": words and _has_word(self.hosts, data),
        }
        return [kind for kind, is_found in has_kind.items() if is_found]


@cache
def list_leaving_keys() -> Mapping[str, frozenset[str]]:
    """Return the keys of texts that may leave, by the type that `documents` has for them."""
    modules = (import_module(f"subgraph.results.{name}") for name in results.MODULES)
    kinds = filter(is_dataclass, flatten(vars(m).values() for m in (case, *modules)))
    own_fields = [*flatten(map(fields, kinds)), *fields(StoredFile)]
    keys = [(f.metadata.get(KEY, f.name), re.findall(r"\w+", str(f.type))) for f in own_fields]
    return {
        kind: frozenset([*more.split(), *(key for key, words in keys if kind in words)])
        for kind, more in LEAVING.items()
    }


def _find_name(word: str) -> str:
    """Return the last part of an absolute path, also after `=`; any other word unchanged."""
    head, sep, value = word.rpartition("=")
    path = PurePath(value)
    if path.is_absolute():
        return f"{head}{sep}{path.name}"
    return word


def _hide_words(words: Sequence[str]) -> Iterator[str]:
    """Yield the words of a command line without the values of secrets.

    Short options of programs that are not ours lose their values, too.
    """
    is_ours = words[:1] == ["subcut"]
    before = ""
    for word in words:
        key, is_assigned, _ = word.partition("=")
        is_secret = before.startswith("-") and SECRET.search(before) and "=" not in before
        is_unknown = _SHORT.fullmatch(before) and not is_ours and not _PLAIN.fullmatch(word)
        if is_assigned and SECRET.search(key):
            yield f"{key}={REMOVED}"
        elif is_secret or is_unknown or (SECRET.search(word) and re.search(r"[\s:]", word)):
            yield REMOVED
        else:
            yield word
        before = word


def _has_word(names: Iterable[str], data: bytes) -> bool:
    patterns = (rb"(?i)(?<![a-z0-9])%b(?![a-z0-9])" % re.escape(n.encode()) for n in names)
    return any(re.search(pattern, data) for pattern in patterns)


def _hide_secret(match: re.Match[str]) -> str:
    if not SECRET.search(match[1].strip()):
        return match[0]
    return match[0].removesuffix(match[2]) + REMOVED


def _make_pattern(folder: str) -> re.Pattern[str]:
    r"""Return a pattern of the spellings of a folder; one of Windows in any case, with `/` or `\`,
    which JSON doubles.

    >>> bool(_make_pattern(r"C:\Users\me").search("c:/users/me/x"))
    True
    >>> bool(_make_pattern("/home/me").search("/HOME/me"))
    False
    """
    if "\\" not in folder:
        return re.compile(re.escape(folder))
    return re.compile(r"[\\/]{1,2}".join(map(re.escape, folder.split("\\"))), re.IGNORECASE)


def make_redactor(secrets: Iterable[str] = ()) -> Redactor:
    """Return the private texts of this machine, and further `secrets`."""
    homes = {
        os.path.expanduser("~"),  # noqa: PTH111
        os.environ.get("HOME", ""),
        find_home_folder(),
    }
    homes |= {os.path.realpath(home) for home in homes if home}
    folders = {
        str(Path(home)) for home in homes if Path(home).is_absolute() and len(Path(home).parts) > 1
    }
    users = {os.environ.get(name, "") for name in USER_VARIABLES}
    users |= {Path(home).name for home in folders}
    with contextlib.suppress(OSError, KeyError, ImportError):  # the user's number has no name
        users.add(getpass.getuser())
    hosts = {platform.node(), platform.node().partition(".")[0]}
    in_environment = {
        v for k, v in os.environ.items() if SECRET.search(k) and len(v) >= MIN_SECRET_LENGTH
    }
    return Redactor(
        _sort_longest_first(folders),
        _sort_longest_first(_iter_personal_texts(users)),
        _sort_longest_first(_iter_personal_texts(hosts)),
        _sort_longest_first(in_environment | set(secrets)),
    )


def _sort_longest_first(texts: Iterable[str]) -> Strings:
    """Sort texts so that longer ones are replaced first: a text may begin with another."""
    return tuple(sorted(filter(None, texts), key=lambda t: (-len(t), t)))


def _iter_personal_texts(words: Iterable[str]) -> Iterable[str]:
    return (w for w in words if len(w) >= MIN_LENGTH and w.lower() not in NOT_PERSONAL)


# ------------------------------------------------------------ the machine


@frozen
class Environment:
    """The machine and the versions that found a case, and nothing else of the machine."""

    schema: str
    system: str
    machine: str
    processor: str
    cores: int | None
    packages: StringMap


def describe_environment() -> Environment:
    """Return the facts of this machine."""
    return Environment(
        "subcut.environment/1",
        f"{platform.system()} {platform.release()}",
        platform.machine(),
        name_processor(),
        os.cpu_count(),
        list_versions(),
    )
