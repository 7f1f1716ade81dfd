"""The recipes of docs/candidates/ → a line each: does it install here, does it run, what do compare
and bisect say.

A recipe is a page, `NAME.md`, and a folder, `NAME/`, of scripts with a `requirements.txt`. Each is
done as its page tells the reader: the folder copied, a `.venv` made in it, the table of the page
written to `subcut.toml`. The board of the ssh recipe is this machine: an sshd on a port of its own,
with keys of its own, as the current user.

    python -m benchmarks.recipes [NAME…]      all, or some; in build/recipes/
"""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx

from fixtures.networks import NETWORKS

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "candidates"
BUILD = ROOT / "build" / "recipes"
SUBCUT = Path(sys.executable).with_name("subcut")
SSHD = Path("/usr/sbin/sshd")
NETWORK, AT = (
    "vision",
    ("*Gemm", "*Softmax"),
)  # each tensor is a start of the candidate's Python or two: only a few
INSTALLING, ASKING = 900, 1800  # seconds
SAYS = {0: "agrees", 1: "disagrees", 4: "cannot run", 5: "unresolved"}  # subcut's exit codes


@dataclass(frozen=True)
class Recipe:
    """A page with what it names."""

    name: str

    @property
    def text(self) -> str:
        """The page."""
        return (PAGES / f"{self.name}.md").read_text(encoding="utf-8")

    @property
    def folder(self) -> Path:
        """Its files."""
        return PAGES / self.name

    @property
    def table(self) -> str:
        """What goes into subcut.toml."""
        return "\n".join(re.findall(r"^```toml\n(.*?)^```", self.text, re.DOTALL | re.MULTILINE))

    @property
    def candidate(self) -> str:
        """What the table calls it."""
        return str(next(iter(tomllib.loads(self.table)["candidates"])))

    @property
    def last_run(self) -> str:
        """`Last run DATE: …` or `Never run here: …`."""
        found = re.search(
            r"^(Last run \d{4}-\d\d-\d\d: .+|Never run here: .+)$", self.text, re.MULTILINE
        )
        if not found:
            raise ValueError(f"{self.name}.md does not say when it was run")
        return found[0]

    @property
    def requirements(self) -> list[str]:
        """Pinned packages, those that matter first."""
        path = self.folder / "requirements.txt"
        return path.read_text(encoding="utf-8").split() if path.exists() else []


def recipes() -> list[Recipe]:
    """All, by name."""
    return [Recipe(p.stem) for p in sorted(PAGES.glob("*.md")) if p.stem != "README"]


# ------------------------------------------------------------ a board


class Sshd:
    """An sshd on this machine that lets one key in: what stands for a board. Its files lie in
    `folder`."""

    def __init__(self, folder: Path) -> None:
        """Raises: OSError: there is no sshd or ssh-keygen here, or it does not start."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None
        for key in ("host", "client"):
            (folder / key).unlink(missing_ok=True)
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True
            )
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        lines = f"""
            Port {self.port}
            ListenAddress 127.0.0.1
            HostKey {folder}/host
            AuthorizedKeysFile {folder}/client.pub
            PidFile none
            StrictModes no
            UsePAM no
            PasswordAuthentication no
            SetEnv PYTHON={sys.executable}
        """
        (folder / "sshd_config").write_text(lines, encoding="utf-8")
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(
                exist_ok=True
            )  # where root's sshd locks itself in; a service would make it

    def config(self) -> str:
        """An ssh_config in which this is `board`."""
        return f"""
            Host board
                HostName 127.0.0.1
                Port {self.port}
                User {getpass.getuser()}
                IdentityFile {self.folder}/client
                UserKnownHostsFile {self.folder}/known
                StrictHostKeyChecking accept-new
                LogLevel ERROR
                ConnectTimeout 10
        """

    def start(self) -> None:
        """Listen, in a process group of its own: its connections go down with it."""
        self.process = subprocess.Popen(
            [SSHD, "-D", "-f", self.folder / "sshd_config", "-E", self.folder / "log"],
            stdin=subprocess.DEVNULL,
        )
        for _ in range(100):
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", self.port), 1),
            ):
                return
            time.sleep(0.05)
        raise OSError(f"sshd does not start: {(self.folder / 'log').read_text(encoding='utf-8')}")

    def kill(self) -> None:
        """The listener and every connection, at once, as when the plug is pulled."""
        if self.process is None:
            return
        for pid in [*_below(self.process.pid), self.process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        self.process.wait()
        self.process = None


def _below(pid: int) -> list[int]:
    """All that a process has started and is still there, however deep."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            words = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            parents.setdefault(int(words[1]), []).append(int(stat.parent.name))
    found = list(parents.get(pid, []))
    for child in found:
        found += parents.get(child, [])
    return found


@contextlib.contextmanager
def board(recipe: Recipe, place: Path) -> Iterator[Sshd | None]:
    """This machine as the board, where a recipe has one."""
    if not (recipe.folder / "ssh_config").exists():
        yield None
        return
    sshd = Sshd(place / "sshd")
    (place / "ssh_config").write_text(sshd.config(), encoding="utf-8")
    sshd.start()
    try:
        yield sshd
    finally:
        sshd.kill()


# ------------------------------------------------------------ trying


def prepare(recipe: Recipe, place: Path) -> None:
    """The recipe's folder as its reader has it, but for the packages."""
    place.mkdir(parents=True, exist_ok=True)
    for file in recipe.folder.iterdir():
        if file.is_file():
            shutil.copy(file, place)
    (place / "subcut.toml").write_text(recipe.table, encoding="utf-8")
    onnx.save(NETWORKS[NETWORK](), place / f"{NETWORK}.onnx")


def install(recipe: Recipe, place: Path) -> str:
    """Its packages into `.venv`, unless they are there; why not, or nothing."""
    wanted = "\n".join(recipe.requirements)
    mark = place / ".venv" / "installed"
    if not wanted or (mark.exists() and mark.read_text(encoding="utf-8") == wanted):
        return ""
    shutil.rmtree(place / ".venv", ignore_errors=True)
    words = [
        ".venv/bin/pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "-r",
        "requirements.txt",
    ]
    subprocess.run([sys.executable, "-m", "venv", ".venv"], cwd=place, check=True)
    done = subprocess.run(
        words, cwd=place, capture_output=True, text=True, timeout=INSTALLING, check=False
    )
    if done.returncode:
        return next(
            (line for line in done.stderr.splitlines() if line.startswith("ERROR")),
            done.stderr[-200:],
        )
    mark.write_text(wanted, encoding="utf-8")
    return ""


def ask(recipe: Recipe, place: Path, command: str, *words: str) -> str:
    """What `subcut COMMAND` says of the network, in a word; all of it goes to COMMAND.txt."""
    line: list[str | Path] = [
        SUBCUT,
        command,
        f"{NETWORK}.onnx",
        "-c",
        recipe.candidate,
        "--trust",
        "--fresh",
        *words,
    ]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SUBCUT_")}
    done = subprocess.run(
        line,
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        timeout=ASKING,
        check=False,
    )
    (place / f"{command}.txt").write_text(done.stdout + done.stderr, encoding="utf-8")
    return SAYS.get(done.returncode, f"exit code {done.returncode}")


def try_out(recipe: Recipe) -> list[str]:
    """A row: recipe, version, compare, bisect, seconds; or why there is none."""
    version = (recipe.requirements or ["-"])[0].replace("==", " ")
    if recipe.last_run.startswith("Never"):
        return [recipe.name, version, recipe.last_run]
    place = BUILD / recipe.name
    try:
        prepare(recipe, place)
        if lacking := install(recipe, place):
            return [recipe.name, version, f"not installed: {lacking}"]
        start = time.monotonic()
        with board(recipe, place):
            at = [word for name in AT for word in ("--at", name)]
            found = [
                ask(recipe, place, "compare", *at),
                ask(recipe, place, "bisect", "--repeat", "2", "--force"),
            ]
    except (OSError, subprocess.SubprocessError) as e:
        return [recipe.name, version, f"did not run: {e}"]
    return [recipe.name, version, *found, f"{time.monotonic() - start:.0f}"]


def main(names: Sequence[str] = ()) -> int:
    """Print the table as it comes; 1 where a recipe that says it ran did not agree."""
    chosen = [r for r in recipes() if not names or r.name in names]
    print(f"{'recipe':<10} {'version':<28} {'compare':<12} {'bisect':<12} seconds", flush=True)
    bad = False
    for recipe in chosen:
        row = try_out(recipe)
        bad |= len(row) == 5 and set(row[2:4]) != {SAYS[0]}
        print(
            " ".join(
                f"{cell:<{width}}" for cell, width in zip(row, (10, 28, 12, 12, 7), strict=False)
            ).rstrip()
        )
    return int(bad)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
