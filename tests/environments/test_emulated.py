"""The Python of another processor, under qemu. Covers `environments.emulated`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from fixtures.toy_releases import wheel
from subgraph.environments import emulated
from subgraph.environments.installation import Installation, make
from subgraph.errors import BackendError, UsageError
from subgraph.runtime.candidate import parse
from subgraph.runtime.worker_pool import install
from tests.helpers.facts import has_line
from tests.helpers.refusals import raises
from tests.helpers.run_command import run_program, subcut

pytestmark = pytest.mark.linux("qemu runs single programs of another processor on Linux alone")

# In the place of apt: a package, where the options say that the cache is.
APT = """#!/bin/sh
for word in "$@"; do case $word in Dir::Cache=*) cache=${word#*=};; esac; done
echo "$@" >> "$LOG"
case " $* " in *" install "*) [ "$NONE" ] || echo > "$cache/archives/python.deb";; esac
"""
DPKG = f"""#!/bin/sh
mkdir -p "$3/usr/bin" "$3/lib/aarch64-linux-gnu"
ln -s {sys.executable} "$3/usr/bin/python{sys.version_info[0]}.{sys.version_info[1]}"
echo "GNU C Library (Debian) stable release version 2.28." > "$3/lib/aarch64-linux-gnu/libc.so.6"
"""
QEMU = """#!/bin/sh
[ "$1" = --version ] && { echo "qemu-aarch64 version 7.2.22"; exit; }
shift 2
exec "$@"
"""


@pytest.fixture
def stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """apt, dpkg and a qemu that runs this machine's own programs; the log of apt's calls."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in {"apt-get": APT, "dpkg-deb": DPKG, "qemu-aarch64-static": QEMU}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    monkeypatch.setattr(emulated, "is_own", lambda _: False)
    emulated.find_emulator_version.cache_clear()
    return tmp_path / "log"


def test_processor_is_part_of_a_candidate(stand_ins: Path) -> None:
    candidate = parse("mnn==3.6.1:arch=aarch64,threads=1")
    assert (candidate.processor, dict(candidate.options)) == ("aarch64", {"threads": "1"})
    assert candidate.installation
    assert candidate.installation.requirements == ("mnn==3.6.1", "numpy", "ml_dtypes", "protobuf")
    identity = candidate.identity("3.6.1")
    # another one may differ
    assert (identity["processor"], identity["emulator"][:11]) == ("aarch64", "qemu 7.2.22")
    assert candidate.code.shown == ["mnn==3.6.1"], "where a file names it, only with trust"
    assert (
        candidate.set_release("3.5.0").processor == parse("mnn:arch=arm64").processor == "aarch64"
    )
    with raises(UsageError, "environment.unknown-processor", "mips"):
        parse("mnn:arch=mips")
    for spec in (
        "web:arch=aarch64",
        "web==1.24.3:arch=aarch64",
        f"ort:arch=aarch64,python={sys.executable}",
    ):
        with raises(UsageError, "candidate.no-other-build"):  # and the answer would say ARM
            parse(spec)
    with raises(UsageError, "release.unsupported", "onnx-reference"):
        parse("onnx-reference:arch=aarch64")


def test_this_machines_own_processor_needs_no_emulator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert parse("mnn:arch=aarch64").processor == ""
    assert parse("mnn:arch=aarch64").installation is None


def test_missing_tool_is_an_error_before_anything_is_fetched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(emulated, "is_own", lambda _: False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with raises(BackendError, "backend.no-device", "aarch64", "qemu-user-static"):
        install(parse("mnn:arch=aarch64"))
    monkeypatch.setattr(emulated, "find_qemu", lambda _: "/usr/bin/qemu-aarch64")
    assert has_line(emulated.describe_missing("aarch64"), "aarch64")


@pytest.mark.slow
def test_its_system_is_fetched_once_and_an_environment_starts_in_it(
    stand_ins: Path, tmp_path: Path
) -> None:
    (tmp_path / "wheels").mkdir()
    for name in ("tiny", "small"):
        wheel(tmp_path / "wheels", name, "1.0", f"SAYS = {name!r}")
    sources = ("--no-index", "--find-links", str(tmp_path / "wheels"))
    for name in ("tiny", "small"):
        wanted = Installation((name,), sources, alone=True, processor="aarch64")
        python = make(wanted)
        said = run_program([python, "-I", "-c", f"import {name}; print({name}.SAYS)"])
        assert said.stdout.strip() == name, said.stderr
        command = " ".join(wanted.list_commands(tmp_path)[0])
        # what its C library can load, and no more
        assert has_line(command, "--platform", "manylinux_2_28_aarch64", "--no-index")
    calls = stand_ins.read_text().splitlines()
    assert [line.split()[-1] for line in calls] == ["update", "libgomp1"], "once"
    assert all(
        "APT::Architecture=arm64" in line and f"Dir::State={tmp_path}" in line for line in calls
    )


def test_distribution_without_its_packages_is_a_clear_error(
    stand_ins: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NONE", "1")
    with raises(BackendError, "environment.no-packages", "arm64") as error:
        make(Installation(("tiny",), processor="aarch64"))
    assert "sources.list" in error.value.hint
    assert not emulated.find_system("aarch64").exists(), "the next try begins anew"
    apt = tmp_path / "bin" / "apt-get"
    apt.write_text("#!/bin/sh\necho 'E: Unable to locate package python3-minimal' >&2\nexit 100\n")
    with raises(BackendError, "environment.install-failed", "Unable to locate") as error:
        make(Installation(("tiny",), processor="aarch64"))
    assert has_line(error.value.hint, "/etc/apt")


def test_older_emulator_is_named_where_a_kernel_crashes_in_it(stand_ins: Path) -> None:
    assert has_line(emulated.find_emulator_version("aarch64"), "qemu 7.2.22", "10")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "digits"), [("ort==1.27.0:arch=aarch64", 6), ("mnn==3.6.1:arch=aarch64", 4)]
)
def test_kernels_of_arm_agree_with_those_of_this_machine(
    spec: str, digits: int, tmp_path: Path
) -> None:
    if lacks := emulated.describe_missing("aarch64"):
        pytest.skip(f"{lacks}; .ci/run installs it")
    subcut("demo", "demo", "-q", cwd=tmp_path)
    done = subcut(
        "compare", "model.onnx", "-c", spec, "--at", "classes", "--json", cwd=tmp_path / "demo"
    )
    document = done.document
    whole = done.document["whole"]
    assert whole["status"] in ("agree", "unresolved"), done.err
    assert whole["outputs"][0]["errors"]["max_abs"] < 10**-digits
    assert has_line(json.dumps(document), "aarch64", "qemu"), "each answer names the emulator"
