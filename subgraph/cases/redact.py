"""Texts that leave this machine, without users, hosts, paths and secrets; and the facts of the machine that do.

Names of nodes and tensors look like paths (`/pool/MaxPool`) and must not change, or documents and models no longer fit
together. So a path must begin with a folder of a machine's root, and known names are never touched.
"""

from __future__ import annotations

import getpass
import os
import platform
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

REMOVED = "REMOVED"  # replaces a secret
USER, HOST = "USER", "HOST"
# Folders in the root of usual machines.
ROOTS = frozenset(
    "Applications Users Volumes bin boot data dev etc home lib mnt media nix opt private proc root run sbin srv sys "
    "tmp usr var workspace".split()
)
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
_WORD = r"[\w-]*(?:token(?![a-z])|secret|passw(?:or)?d|passphrase|credentials?|api[_-]?key|access[_-]?key)[\w-]*"
_TOKEN = (
    r"\b(?:hf_\w{16,}|gh[pousr]_\w{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|sk-[\w-]{16,}|AKIA[0-9A-Z]{16}"
    r"|xox[abprs]-[\w-]{10,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)"
)  # tokens of known services
_TOKENS = re.compile(_TOKEN.encode())
_VALUE = r"[^\s,;'\"]+"
_LOUD = r"\b[A-Z0-9_]*(?:TOKEN|SECRET|PASSW(?:OR)?D|API_?KEY|ACCESS_?KEY)[A-Z0-9_]*="
_PLAIN = r"\b(?:password|passwd|secret|api_?key|access_?key|(?:auth|access)_token)="
_SECRETS = tuple(
    (re.compile(pattern, flags), replacement)
    for pattern, flags, replacement in (
        (_TOKEN, 0, REMOVED),
        (rf"(--?{_WORD}(?:=|\s+))(?!-)('[^']*'|\"[^\"]*\"|\S+)", re.IGNORECASE, rf"\1{REMOVED}"),
        (rf"({_LOUD}){_VALUE}", 0, rf"\1{REMOVED}"),
        (rf"({_PLAIN}){_VALUE}", re.IGNORECASE, rf"\1{REMOVED}"),
        (rf"([?&]{_WORD}=)[^\s&'\"]+", re.IGNORECASE, rf"\1{REMOVED}"),
        (r"(\bBearer\s+)[\w.~+/=-]{8,}", re.IGNORECASE, rf"\1{REMOVED}"),
        (r"(\w://)[^\s/@:]+:[^\s/@]+@", 0, rf"\1{REMOVED}@"),
    )
)
_PART = r"[^\s/'\"`,;:=<>|()\[\]{}]"
_PATH = re.compile(rf"(?<![\w./~:@-])(?:~|/(?P<root>{_PART}+))(?P<rest>(?:/+{_PART}*)+)")
_URL_PATH = re.compile(r"\bfile://")
_WINDOWS = re.compile(r"(?<![\w])[A-Za-z]:\\(?:[^\s\\'\"`,;:<>|*?]+\\)*(?P<last>[^\s\\'\"`,;:<>|*?]*)")
_UPWARDS = re.compile(rf"(?<![\w./-])(?:\.\./)+(?:{_PART}+/)*(?P<last>{_PART}*)")

PACKAGES = tuple(
    "subcut onnx onnxruntime onnxruntime-gpu onnxruntime-openvino onnxruntime-directml onnxruntime-extensions numpy "
    "ml_dtypes protobuf networkx openvino opencv-python opencv-python-headless tract MNN ncnn torch tensorflow "
    "ai-edge-litert tensorrt apache-tvm iree-base-compiler iree-base-runtime rknn-toolkit2 rknn-toolkit-lite2 onnxsim "
    "onnxscript".split()
)
VARIABLES = re.compile(
    r"OMP_(NUM_THREADS|PROC_BIND|PLACES|SCHEDULE|DYNAMIC|WAIT_POLICY)|KMP_[A-Z_]+|GOMP_[A-Z_]+|ORT_[A-Z0-9_]+"
    r"|(MKL|OPENBLAS|BLIS|NUMEXPR|VECLIB)_(NUM|MAXIMUM)_THREADS|MKL_(CBWR|DYNAMIC|DEBUG_CPU_TYPE|ENABLE_INSTRUCTIONS)"
    r"|DNNL_[A-Z_]+|ONEDNN_[A-Z_]+|CUDA_VISIBLE_DEVICES|NVIDIA_TF32_OVERRIDE|TF_ENABLE_ONEDNN_OPTS|MALLOC_ARENA_MAX"
)

# Keys of our documents whose values are names of nodes and tensors, or files of the case itself.
NAME_KEYS = frozenset(
    "name names node nodes tensor tensors first last without start end producer inputs outputs edges pulled random "
    "frozen renamed file files schema structure_sha256 weights_sha256".split()
)
FILE_KEYS = frozenset(("inputs", "from", "other", "map"))  # files, in whose names a space separates no words
SPEC_KEYS = frozenset(("candidate", "candidates", "reference", "identity", "request"))  # a name below these is a SPEC


@dataclass(frozen=True)
class Redactor:
    """What must not leave this machine; `this_machine` finds it. `names` of nodes and tensors are never touched."""

    homes: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    names: frozenset[str] = field(default=frozenset())

    def text(self, text: str) -> str:
        """The redacted text: a path becomes its last part, home `~`, a secret REMOVED.

        >>> Redactor(("/home/bo",), users=("bo.b",)).text("run /home/bo/x/m.onnx --token=abc ~/y as bo.b")
        'run m.onnx --token=REMOVED y as USER'
        """
        if text in self.names:
            return text
        for secret in self.secrets:
            text = text.replace(secret, REMOVED)
        for pattern, replacement in _SECRETS:
            text = pattern.sub(replacement, text)
        for folder in self.homes:
            text = re.sub(rf"(?<![\w.]){re.escape(folder)}(?=$|[/\s'\"`,;:)\]}}])", "~", text)
        text = _URL_PATH.sub("", text)
        text = _PATH.sub(self._last, text)
        text = _WINDOWS.sub(lambda m: m["last"] or "~", text)
        text = _UPWARDS.sub(lambda m: m["last"] or "..", text)
        for names, replacement in ((self.hosts, HOST), (self.users, USER)):
            for name in names:
                text = re.sub(rf"(?<![^\W_]){re.escape(name)}(?![^\W_])", replacement, text, flags=re.IGNORECASE)
        return text

    def _last(self, m: re.Match[str]) -> str:
        if m[0] in self.names or (m["root"] and m["root"] not in _roots()):
            return m[0]
        parts = [part for part in m["rest"].split("/") if part]
        return parts[-1] if parts else "~" if m[0][0] == "~" else m["root"]

    def command(self, line: str) -> str:
        """A redacted command line. It is redacted word by word, since a path may have spaces."""
        try:
            words = shlex.split(line)
        except ValueError:
            return self.text(line)
        out: list[str] = []
        for word in words:
            is_secret = out and re.fullmatch(f"--?{_WORD}", out[-1], re.I) and not word.startswith("-")
            out.append(REMOVED if is_secret else self._word(word))
        return joined(out)

    def _word(self, word: str) -> str:
        head, sep, rest = word.partition(":")
        if head == "cmd" and sep:
            return f"cmd:{self.command(rest)}"
        name, sep, path = word.rpartition("=")
        if word not in self.names and " " in path and _is_path(path):
            return f"{self.text(name)}{sep}{self.text(Path(path).name)}"
        return self.text(word)

    def document(self, value: Any, key: str = "", inside: str = "") -> Any:
        """A redacted document; names of nodes and tensors stay. `inside`: the one of SPEC_KEYS around the value."""
        if isinstance(value, Mapping):
            within = inside if inside in SPEC_KEYS else key if key in SPEC_KEYS else ""
            return {self.text(str(k)): self.document(v, str(k), within) for k, v in value.items()}
        if isinstance(value, list):
            return [self.document(v, key, inside) for v in value]
        if not isinstance(value, str) or (not inside and key in NAME_KEYS):
            return value
        if inside and SECRET.search(key) and value:
            return REMOVED
        if key in FILE_KEYS:
            return self._word(value)
        is_command = key in ("command", "run", "convert") or value.startswith("cmd:")
        return self.command(value) if is_command else self.text(value)

    def leaks(self, data: bytes, *, words: bool = False) -> list[str]:
        """Kinds of private details in a file that is packed unchanged; names of user and host only with `words`."""
        kinds = [
            kind
            for kind, texts in (("your home path", self.homes), ("a secret of the environment", self.secrets))
            if any(text.encode() in data for text in texts)
        ]
        if _TOKENS.search(data):
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


def _is_path(text: str) -> bool:
    return text.startswith(("~", "../")) or (text.startswith("/") and text.split("/")[1] in _roots())


def _roots() -> frozenset[str]:
    try:
        return ROOTS | {p.name for p in Path("/").iterdir()}
    except OSError:
        return ROOTS


def this_machine(names: Iterable[str] = (), secrets: Iterable[str] = ()) -> Redactor:
    """What is private on this machine, and further `secrets`; `names` are never touched."""
    homes = {os.path.expanduser("~"), os.environ.get("HOME", ""), _home()}  # noqa: PTH111 - may stay a tilde
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


def _home() -> str:
    try:
        import pwd

        return pwd.getpwuid(os.getuid()).pw_dir
    except (ImportError, KeyError, OSError):
        return ""


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
        _processor(),
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


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor()
    m = re.search(r"^(?:model name|Model|Hardware)\s*:\s*(.+)$", text, re.MULTILINE)
    return " ".join(m[1].split()) if m else platform.processor()


def _memory() -> str:
    """Rounded down to a power of two of GiB: `16 GiB or more`."""
    import psutil

    size = psutil.virtual_memory().total
    return f"{1 << max(0, (size >> 30).bit_length() - 1)} GiB or more"
