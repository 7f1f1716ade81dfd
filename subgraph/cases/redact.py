"""What leaves this machine: texts without who and where, and what is told of the machine itself.

Names of nodes and tensors look like paths (`/pool/MaxPool`) and must stay as they are, or nothing fits together any
more; so a path is what begins with a folder that a machine's root has, and names that are known are never touched.
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

REMOVED = "REMOVED"  # in the place of a secret
USER, HOST = "USER", "HOST"
# Where files are on the machines that people have, and on this one.
ROOTS = frozenset(
    "Applications Users Volumes bin boot data dev etc home lib mnt media nix opt private proc root run sbin srv sys "
    "tmp usr var workspace".split()
)
NOBODY = frozenset(
    "root user users admin ubuntu debian runner nobody default build docker test guest home jenkins localhost subcut "
    "onnx model max min mean norm mark will may case cut page rich host data".split()
)  # names that say nothing of a person, or that are words of ours
SHORT = 3  # letters of a user's or host's name that is looked for
SECRET_LENGTH = 6  # of a value of the environment that is one
SECRET = re.compile(
    r"token(?!s|i)|secret|passw|passphrase|credential|api_?key|access_?key|private_?key|auth(?!or)|_key$|_pat$|cookie",
    re.I,
)
PLAIN_VALUE = re.compile(r"[\w .,:=+*-]{1,80}")  # of a setting that is told: no path, no address
_WORD = r"[\w-]*(?:token(?![a-z])|secret|passw(?:or)?d|passphrase|credentials?|api[_-]?key|access[_-]?key)[\w-]*"
_TOKEN = (
    r"\b(?:hf_\w{16,}|gh[pousr]_\w{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|sk-[\w-]{16,}|AKIA[0-9A-Z]{16}"
    r"|xox[abprs]-[\w-]{10,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)"
)  # as known services write theirs
_TOKENS = re.compile(_TOKEN.encode())
_VALUE = r"[^\s,;'\"]+"
_LOUD = r"\b[A-Z0-9_]*(?:TOKEN|SECRET|PASSW(?:OR)?D|API_?KEY|ACCESS_?KEY)[A-Z0-9_]*="
_PLAIN = r"\b(?:password|passwd|secret|api_?key|access_?key|(?:auth|access)_token)="
_SECRETS = tuple(
    (re.compile(pattern, flags), put)
    for pattern, flags, put in (
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
NAMES = frozenset(
    "name names node nodes tensor tensors first last without start end producer inputs outputs edges pulled random "
    "frozen renamed file files schema structure_sha256 weights_sha256".split()
)
FED = frozenset(("inputs", "from", "other", "map"))  # and files that were named, in which a space is a space
SPECS = frozenset(("candidate", "candidates", "reference", "identity", "request"))  # below these a name is a SPEC


@dataclass(frozen=True)
class Redactor:
    """What must not leave: who and where we are, and what is secret. `here` reads it from this machine."""

    homes: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    names: frozenset[str] = field(default=frozenset())

    def text(self, text: str) -> str:
        """A text without them: a path becomes its last part, home `~`, a secret REMOVED.

        >>> Redactor(("/home/bo",), users=("bo.b",)).text("run /home/bo/x/m.onnx --token=abc ~/y as bo.b")
        'run m.onnx --token=REMOVED y as USER'
        """
        if text in self.names:
            return text
        for secret in self.secrets:
            text = text.replace(secret, REMOVED)
        for pattern, put in _SECRETS:
            text = pattern.sub(put, text)
        for folder in self.homes:
            text = re.sub(rf"(?<![\w.]){re.escape(folder)}(?=$|[/\s'\"`,;:)\]}}])", "~", text)
        text = _URL_PATH.sub("", text)
        text = _PATH.sub(self._last, text)
        text = _WINDOWS.sub(lambda m: m["last"] or "~", text)
        text = _UPWARDS.sub(lambda m: m["last"] or "..", text)
        for words, put in ((self.hosts, HOST), (self.users, USER)):
            for word in words:
                text = re.sub(rf"(?<![^\W_]){re.escape(word)}(?![^\W_])", put, text, flags=re.IGNORECASE)
        return text

    def _last(self, m: re.Match[str]) -> str:
        if m[0] in self.names or (m["root"] and m["root"] not in _roots()):
            return m[0]
        parts = [part for part in m["rest"].split("/") if part]
        return parts[-1] if parts else "~" if m[0][0] == "~" else m["root"]

    def command(self, line: str) -> str:
        """A command line, word by word: a path with spaces is one path."""
        try:
            words = shlex.split(line)
        except ValueError:
            return self.text(line)
        found: list[str] = []
        for word in words:
            hidden = found and re.fullmatch(f"--?{_WORD}", found[-1], re.I) and not word.startswith("-")
            found.append(REMOVED if hidden else self._word(word))
        return joined(found)

    def _word(self, word: str) -> str:
        head, sep, rest = word.partition(":")
        if head == "cmd" and sep:
            return f"cmd:{self.command(rest)}"
        name, sep, path = word.rpartition("=")
        if word not in self.names and " " in path and _is_path(path):
            return f"{self.text(name)}{sep}{self.text(Path(path).name)}"
        return self.text(word)

    def document(self, value: Any, key: str = "", inside: str = "") -> Any:
        """A document of ours, all texts in it cleared but for names; `inside`: the key around."""
        if isinstance(value, Mapping):
            within = inside if inside in SPECS else key if key in SPECS else ""
            return {self.text(str(k)): self.document(v, str(k), within) for k, v in value.items()}
        if isinstance(value, list):
            return [self.document(v, key, inside) for v in value]
        if not isinstance(value, str) or (not inside and key in NAMES):
            return value
        if inside and SECRET.search(key) and value:
            return REMOVED
        if key in FED:
            return self._word(value)
        line = key in ("command", "run", "convert") or value.startswith("cmd:")
        return self.command(value) if line else self.text(value)

    def found(self, data: bytes, *, words: bool = False) -> list[str]:
        """What of it stands in some bytes that are not ours: `home path`, `secret`; with `words` the names as well."""
        found = [
            kind
            for kind, texts in (("your home path", self.homes), ("a secret of the environment", self.secrets))
            if any(text.encode() in data for text in texts)
        ]
        if _TOKENS.search(data):
            found.append("what looks like a token")
        for kind, names in (("your user name", self.users), ("this machine's name", self.hosts)) if words else ():
            if any(re.search(rb"(?i)(?<![a-z0-9])%b(?![a-z0-9])" % re.escape(n.encode()), data) for n in names):
                found.append(kind)
        return found


def joined(words: Iterable[str]) -> str:
    """Words as a command line, quoted where they must be; `{model}` need not."""
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


def here(names: Iterable[str] = (), secrets: Iterable[str] = ()) -> Redactor:
    """What is private on this machine; `names` stay as they are, `secrets` are further ones."""
    homes = {os.path.expanduser("~"), os.environ.get("HOME", ""), _home()}  # noqa: PTH111 - may stay a tilde
    homes |= {os.path.realpath(home) for home in homes if home}
    own = {str(Path(home)) for home in homes if home.startswith("/") and len(Path(home).parts) > 1}
    hosts = {platform.node(), platform.node().partition(".")[0]}
    kept = {v for k, v in os.environ.items() if SECRET.search(k) and len(v) >= SECRET_LENGTH} | set(secrets)
    return Redactor(
        _longest(own),
        _longest(_personal(_users() | {Path(home).name for home in own})),
        _longest(_personal(hosts)),
        _longest(kept),
        frozenset(names),
    )


def _longest(texts: Iterable[str]) -> tuple[str, ...]:
    """Longest first: one may begin with another."""
    return tuple(sorted(filter(None, texts), key=lambda t: (-len(t), t)))


def _personal(words: Iterable[str]) -> Iterable[str]:
    return (w for w in words if len(w) >= SHORT and w.lower() not in NOBODY)


def _users() -> set[str]:
    found = {os.environ.get(name, "") for name in ("LOGNAME", "USER", "LNAME", "USERNAME", "SUDO_USER")}
    try:
        return found | {getpass.getuser()}
    except (OSError, KeyError, ImportError):  # no name for this number
        return found


def _home() -> str:
    try:
        import pwd

        return pwd.getpwuid(os.getuid()).pw_dir
    except (ImportError, KeyError, OSError):
        return ""


# ---------------------------------------------------------------------------------------------------- the machine


def environment() -> dict[str, Any]:
    """What of this machine may matter to who runs a case elsewhere, and nothing else."""
    return {
        "schema": "subcut.environment/1",
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "system": platform.system(),
        "release": platform.release(),
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory": _memory(),
        "packages": _packages(),
        "variables": variables(os.environ),
    }


def variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The settings of an environment that change what is computed, where their values are plain.

    >>> variables({"OMP_NUM_THREADS": "2", "ORT_API_TOKEN": "abc", "KMP_X": "/home/me", "PATH": "/bin"})
    {'OMP_NUM_THREADS': '2'}
    """
    return {
        k: v
        for k, v in sorted(environ.items())
        if VARIABLES.fullmatch(k) and not SECRET.search(k) and PLAIN_VALUE.fullmatch(v)
    }


def _packages() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor()
    m = re.search(r"^(?:model name|Model|Hardware)\s*:\s*(.+)$", text, re.MULTILINE)
    return " ".join(m[1].split()) if m else platform.processor()


def _memory() -> str:
    """A class, in powers of two of GiB: `16 GiB or more`."""
    try:
        size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return ""
    return f"{1 << max(0, (size >> 30).bit_length() - 1)} GiB or more"
