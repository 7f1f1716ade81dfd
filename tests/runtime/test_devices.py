"""Names of devices: candidates with a package, a provider and its options. Covers
`runtime.devices`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from subgraph import plugins
from subgraph.errors import BackendError, UnknownName, UsageError
from subgraph.precision import Precision
from subgraph.results.commands import BackendRow
from subgraph.runtime import devices
from subgraph.runtime.backends import _ort_providers, ort
from subgraph.runtime.candidate import RECIPES, parse
from subgraph.runtime.devices import DEVICES, FIELD_NAMES
from subgraph.runtime.worker_pool import install
from subgraph.system import hardware
from tests.helpers.facts import has_line
from tests.helpers.refusals import raises

CUDA = {"providers": "CUDAExecutionProvider"}


@pytest.mark.parametrize("name", [*devices.DEVICES])
def test_each_name_is_a_candidate_whose_precision_is_known(name: str) -> None:
    found = devices.DEVICES[name]
    candidate = parse(name)
    assert candidate.device == name
    assert candidate.package == found.package
    assert found.precision in [*Precision], "a word of `Precision`"
    assert all(
        claim in [*Precision] and default in "01" for default, claim in found.lowers.values()
    )
    if candidate.backend == "ort":
        # found again by its provider
        assert _ort_providers.devices(candidate.options)[0].name == name


def test_options_of_the_users_are_added_and_a_release_is_of_the_devices_package() -> None:
    candidate = parse("cuda==1.30.0:use_tf32=0")
    assert dict(candidate.options) == {**CUDA, "use_tf32": "0"}
    environment = candidate.installation
    assert environment and environment.requirements[:2] == ("onnxruntime-gpu==1.30.0", "numpy")
    assert "nvidia-cudnn-cu13" in environment.requirements
    identity = candidate.identity("")
    # a case is run with the same
    assert (identity["package"], identity["device"]) == ("onnxruntime-gpu", "cuda")


def test_another_build_of_onnxruntime_has_an_environment_of_its_own() -> None:
    candidate = parse("onnxruntime-webgpu==1.27.0")
    assert candidate.options == {"providers": "WebGpuExecutionProvider"}
    assert candidate.installation and candidate.installation.requirements == (
        "onnxruntime-webgpu==1.27.0",
        "numpy",
    )
    named = parse("ort:package=onnxruntime-gpu,providers=CUDAExecutionProvider")
    assert named.installation and named.installation.requirements[0] == "onnxruntime-gpu"
    assert parse("ort").installation is None
    with raises(UsageError, "candidate.no-provider", "onnxruntime-new"):
        parse("onnxruntime-new")
    assert parse("onnxruntime-new:providers=NewExecutionProvider").package == "onnxruntime-new"
    with raises(UsageError, "candidate.no-other-build", "mnn"):
        parse("mnn:package=onnxruntime-gpu")


def test_environment_of_the_users_is_run_and_nothing_is_installed(tmp_path: Path) -> None:
    candidate = parse(f"ort:python={sys.executable},threads=1")
    assert candidate.python == sys.executable
    assert dict(candidate.options) == {"threads": "1"}
    assert install(candidate) == Path(sys.executable)
    assert candidate.identity("")["python"] == sys.executable
    with raises(UsageError, "file.not-found"):
        parse(f"ort:python={tmp_path / 'none'}")


def test_missing_tool_of_this_machine_is_an_error_before_installation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hardware, "name_missing_nvidia_gpu", lambda: "needs an NVIDIA GPU")
    with raises(BackendError, "backend.no-device", "NVIDIA"):
        install(parse("cuda"))


def test_name_that_is_none_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownName) as error:
        parse("cudda")
    assert "cuda" in error.value.nearest


def test_tf32_is_the_default_of_cuda_and_can_be_turned_off() -> None:
    assert ort.precision(CUDA) == "tf32"
    assert ort.precision({**CUDA, "use_tf32": "0"}) == "fp32"
    assert ort.exact(CUDA) == {**CUDA, "use_tf32": "0"}
    assert ort.exact({**CUDA, "use_tf32": "0"}) == {**CUDA, "use_tf32": "0", "opt": "disable"}
    assert ort.switches(CUDA)["TF32"] == {**CUDA, "use_tf32": "0"}
    assert has_line(ort.caveat(CUDA), "tf32", "cuda:use_tf32=0", "float32")
    assert ort.caveat({**CUDA, "use_tf32": "1"}) == "", "asked for"
    assert (ort.precision({}), ort.caveat({}), "TF32" in ort.switches({})) == ("fp32", "", False)


def test_emulator_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = parse("qnn-htp").options
    monkeypatch.setattr(hardware, "is_x86", lambda: True)
    assert has_line(ort.caveat(asked), "x86 emulator", "qnn-htp")
    monkeypatch.setattr(hardware, "is_x86", lambda: False)
    assert ort.caveat(asked) == ""


def test_provider_that_onnxruntime_left_out_is_an_error_not_the_cpu() -> None:
    class Session:
        def get_providers(self) -> list[str]:
            return ["CPUExecutionProvider"]

    with raises(BackendError, "backend.device-unusable", "CUDAExecutionProvider"):
        _ort_providers.require(CUDA, Session())
    _ort_providers.require({}, Session())


def test_the_smallest_model_tells_a_provider_that_cannot_be_used_from_a_model_that_it_refuses() -> (
    None
):
    import onnxruntime

    assert _ort_providers.unusable({}, onnxruntime.SessionOptions(), ["CPUExecutionProvider"]) == ""
    said = _ort_providers.unusable({}, onnxruntime.SessionOptions(), ["NoExecutionProvider"])
    assert "NoExecutionProvider" in said


@pytest.mark.parametrize(
    ("options", "code", "about"),
    [
        (
            {"ep": "QNN", "library": "no_such_module"},
            "backend.provider-not-loadable",
            "no_such_module",
        ),
        ({"ep": "QNN", "library": __file__}, "backend.provider-not-loadable", "onnxruntime"),
        ({"providers": "NoExecutionProvider"}, "backend.unknown-provider", "NoExecutionProvider"),
    ],
)
def test_plug_in_that_is_not_there(
    options: dict[str, str], code: str, about: str, tmp_path: Path
) -> None:
    with raises(BackendError, code, about):
        ort.load(tmp_path / "m.onnx", options)


def test_option_of_no_provider_is_still_a_mistake(tmp_path: Path) -> None:
    for options, code, about in (
        ({"use_tf32": "0"}, "backend.unknown-option", "use_tf32"),
        ({"ep": "QNN"}, "backend.no-library", "ep=NAME"),
    ):
        with raises(UsageError, code, about):
            ort.load(tmp_path / "m.onnx", options)


def test_doctor_says_of_each_device_what_it_lacks_and_starts_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from subgraph.commands import manage

    monkeypatch.setattr(hardware, "name_missing_nvidia_gpu", lambda: "needs an NVIDIA GPU")
    monkeypatch.setattr(hardware, "is_x86", lambda: True)
    row = manage.describe_device("cuda", {})
    assert (row.usable, row.says) == (False, "needs an NVIDIA GPU")
    monkeypatch.setenv("XDG_CACHE_HOME", "/nowhere")
    row = manage.describe_device("qnn-htp", {})
    wanted = (
        "onnxruntime-qnn is installed when it is first used; Qualcomm's x86 emulator answers for it"
    )
    assert (row.usable, row.says) == (True, wanted)
    monkeypatch.setattr(hardware, "name_missing_gpu", lambda *_: "")
    fails = BackendRow("openvino", False, "", "openvino is not installed")
    assert manage.describe_device("openvino-gpu", {"openvino": fails}).says == fails.says


def test_without_a_gpu_its_benchmark_says_so_and_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks import gpu

    monkeypatch.setattr(hardware, "name_missing_nvidia_gpu", lambda: "needs an NVIDIA GPU")
    assert gpu.main([]) == 0
    assert has_line(capsys.readouterr().out, "cuda", "NVIDIA GPU")


HOME = Path(__file__).parents[2]


def test_no_name_hides_a_candidate() -> None:
    known = {*plugins.list_names("backends"), *DEVICES, *RECIPES}
    assert known.isdisjoint(FIELD_NAMES)


@pytest.mark.parametrize("name", FIELD_NAMES)
def test_name_of_the_field_is_answered(name: str) -> None:
    with raises(UsageError, "candidate.other-name") as e:
        parse(name.upper())
    assert e.value.hint == FIELD_NAMES[name]


@pytest.mark.parametrize("answer", dict.fromkeys(FIELD_NAMES.values()))
def test_pages_and_devices_of_an_answer_exist(answer: str) -> None:
    for page in re.findall(r"docs/[\w/.-]+\.md", answer):
        assert (HOME / page).is_file()
    first = re.match(r"-c ([a-z][\w-]*)(?=$|,| \(|:ep)", answer)
    assert first is None or parse(first[1]).backend in plugins.list_names("backends")
