"""The text of a prototxt <-> a tree of messages; and the fields of a layer's parameters that change
its values.

The text is protobuf's text format, without extensions:
https://protobuf.dev/reference/protobuf/textformat-spec/. The fields, with names, kinds and
defaults, are a subset of `caffe.proto`.

Facts from BVLC's caffe.proto
(https://github.com/BVLC/caffe/blob/master/src/caffe/proto/caffe.proto); those of Permute,
Normalize, PriorBox and DetectionOutput from the SSD branch of weiliu89, those of Interp from
DeepLab; `ceil_mode` and `bn_param` from PSPNet's fork (`bn_mode`: SegNet's), ROIPooling from Fast
R-CNN's, ShuffleChannel from farmingyard's ShuffleNet, Reorg and Upsample from the forks that
darknet2caffe writes for. A field that is not listed is an error and not ignored: it may be a typo,
or change the result.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from google.protobuf.text_format import ParseError, Tokenizer

from subgraph.errors import ModelError
from subgraph.graph import protobuf
from subgraph.text import clean
from subgraph.types import JsonObject

MAX_BYTES = 32 << 20  # the largest public prototxt has 0.2 MB
MAX_DEPTH = 16  # Caffe's own messages go five deep

_WORD = re.compile(r"[-+.\w]+")


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number, an enumerator or a string (`quoted`), with its line in the file."""

    text: str
    quoted: bool
    line: int


@dataclass(slots=True)
class Message:
    """Fields in the order of the file; a repeated field is there several times."""

    line: int = 0
    fields: list[tuple[str, Value]] = field(default_factory=list)

    def add(self, name: str, *values: str | Message, quoted: bool = False) -> Message:
        """Append a field for each value; returns the message itself."""
        self.fields += [
            (name, v if isinstance(v, Message) else Scalar(v, quoted, 0)) for v in values
        ]
        return self

    def all(self, name: str) -> list[Value]:
        """Return the values of a field."""
        return [value for other, value in self.fields if other == name]


Value: TypeAlias = Scalar | Message


def read(path: Path) -> Message:
    """Return the tree of a prototxt. Linear in its size.

    Raises:
        ModelError: it cannot be read, is not UTF-8, too large, or not protobuf's text format; names
            the line.
    """
    with protobuf.explain_read_error(path), path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ModelError(
            f"{path} is larger than {MAX_BYTES >> 20} MB",
            "a prototxt holds no weights",
            code="caffe.too-large",
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise ModelError(
            f"{path} is not text: byte {e.start} is not UTF-8",
            "name the .prototxt",
            code="caffe.not-text",
        ) from e
    return parse(text, path)


def parse(text: str, path: Path) -> Message:
    """Return the tree of a text; `path` is only named in errors."""
    tokens = Tokenizer(text.split("\n"))
    root = Message(1)
    stack = [root]
    while not tokens.AtEnd() or len(stack) > 1:
        if _take_mark(tokens, ",;") or (
            len(stack) > 1 and _take_mark(tokens, "}>") and stack.pop()
        ):
            continue
        name = _parse_word(tokens, path, "the name of a field")
        has_colon = _take_mark(tokens, ":")
        if _take_mark(tokens, "{<"):
            inner = Message(name.line)
            stack[-1].fields.append((name.text, inner))
            stack.append(inner)
            if len(stack) > MAX_DEPTH:
                raise ModelError(
                    f"{path}, line {name.line}: nested deeper than {MAX_DEPTH}",
                    "compare it with the original",
                    code="caffe.too-deep",
                )
        elif not has_colon:
            raise _refuse_token(tokens, path, f"':' or '{{' after '{name.text}'")
        elif _take_mark(tokens, "["):
            while not _take_mark(tokens, "]"):
                stack[-1].fields.append((name.text, _parse_scalar(tokens, path)))
                _take_mark(tokens, ",")
        else:
            stack[-1].fields.append((name.text, _parse_scalar(tokens, path)))
    return root


def _take_mark(tokens: Tokenizer, marks: str) -> bool:
    """Drop the next token if it is one of these marks; return whether it was."""
    return any(map(tokens.TryConsume, marks))


def _parse_word(tokens: Tokenizer, path: Path, expected: str) -> Scalar:
    text = tokens.token
    if not _WORD.fullmatch(text):
        raise _refuse_token(tokens, path, expected)
    tokens.NextToken()
    return Scalar(text, False, tokens.ParseErrorPreviousToken("").GetLine())


def _parse_scalar(tokens: Tokenizer, path: Path) -> Scalar:
    if not tokens.token.startswith(("'", '"')):
        return _parse_word(tokens, path, "a value")
    line = tokens.ParseError("").GetLine()
    try:
        return Scalar(tokens.ConsumeString(), True, line)
    except ParseError:
        raise _refuse_token(tokens, path, "a string") from None


def _refuse_token(tokens: Tokenizer, path: Path, expected: str) -> ModelError:
    found = "the end of the file" if tokens.AtEnd() else repr(tokens.token[:40])
    return ModelError(
        f"{path}, line {tokens.ParseError('').GetLine()}: expected {expected}, found {found}",
        "correct that line",
        code="caffe.syntax",
    )


def write(message: Message, indent: str = "") -> str:
    """Return the text of a tree."""
    lines = []
    for name, value in message.fields:
        if isinstance(value, Message):
            lines.append(f"{indent}{name} {{\n{write(value, indent + '  ')}{indent}}}\n")
        elif value.quoted:
            escaped = value.text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
            lines.append(f'{indent}{name}: "{escaped}"\n')
        else:
            lines.append(f"{indent}{name}: {value.text}\n")
    return "".join(lines)


# ------------------------------------------------------------ fields

# Per message: `name:kind`, with `=default`. A kind with `*` is repeated. `size` is an integer ≥ 0,
# `word` an enumerator or string, `skip` is read by Caffe for training or speed only.
_POOL = (
    "pool:word=MAX pad:size=0 pad_h:size pad_w:size kernel_size:size kernel_h:size kernel_w:size"
    " stride:size=1"
)
_MESSAGES = {
    "shape": "dim:int*",
    "argmax_param": "out_max_val:bool=false top_k:size=1 axis:int",
    "batch_norm_param": (
        "use_global_stats:bool=true moving_average_fraction:skip eps:float=1e-5 engine:skip "
        "scale_filler:skip bias_filler:skip"
    ),
    # `frozen` and four blobs: PSPNet's; `bn_mode` and two: SegNet's and ENet's
    "bn_param": (
        "slope_filler:skip bias_filler:skip scale_filler:skip shift_filler:skip momentum:skip"
        " eps:float=1e-5 frozen:skip engine:skip bn_mode:word"
    ),
    "bias_param": "axis:int=1 num_axes:int=1 filler:skip",
    "clip_param": "min:float max:float",
    "concat_param": "axis:int=1 concat_dim:int",
    "convolution_param": (
        "num_output:size=0 bias_term:bool=true pad:size* kernel_size:size* stride:size*"
        " dilation:size* pad_h:size pad_w:size kernel_h:size kernel_w:size stride_h:size"
        " stride_w:size group:size=1 weight_filler:skip bias_filler:skip engine:skip axis:int=1"
        " force_nd_im2col:skip cudnn_convolution_algo_seeker:skip"
    ),
    "crop_param": "axis:int=2 offset:size*",
    "data_param": (
        "source:skip batch_size:size backend:skip rand_skip:skip scale:skip mean_file:skip"
        " crop_size:size=0 mirror:skip force_encoded_color:skip prefetch:skip"
    ),
    "detection_output_param": (
        "num_classes:size=0 share_location:bool=true background_label_id:int=0 nms_param:nms_param"
        " save_output_param:skip code_type:word=CORNER variance_encoded_in_target:bool=false"
        " keep_top_k:int=-1 confidence_threshold:float visualize:skip visualize_threshold:skip"
        " save_file:skip"
    ),
    "dropout_param": "dropout_ratio:float=0.5 scale_train:bool=true",
    "dummy_data_param": (
        "data_filler:skip shape:shape* num:size* channels:size* height:size* width:size*"
    ),
    "eltwise_param": "operation:word=SUM coeff:float* stable_prod_grad:skip",
    "elu_param": "alpha:float=1",
    "exp_param": "base:float=-1 scale:float=1 shift:float=0",
    "flatten_param": "axis:int=1 end_axis:int=-1",
    "image_data_param": (
        "batch_size:size=1 new_height:size=0 new_width:size=0 is_color:bool=true crop_size:size=0"
        " source:skip rand_skip:skip shuffle:skip scale:skip mean_file:skip mirror:skip"
        " root_folder:skip"
    ),
    "inner_product_param": (
        "num_output:size=0 bias_term:bool=true weight_filler:skip bias_filler:skip axis:int=1 "
        "transpose:bool=false"
    ),
    "input_param": "shape:shape*",
    "interp_param": (
        "height:size width:size zoom_factor:size shrink_factor:size pad_beg:int=0 pad_end:int=0"
    ),
    "log_param": "base:float=-1 scale:float=1 shift:float=0",
    "lrn_param": (
        "local_size:size=5 alpha:float=1 beta:float=0.75 norm_region:word=ACROSS_CHANNELS k:float=1"
        " engine:skip"
    ),
    "memory_data_param": "batch_size:size=0 channels:size=0 height:size=0 width:size=0",
    "mvn_param": "normalize_variance:bool=true across_channels:bool=false eps:float=1e-9",
    "nms_param": "nms_threshold:float=0.3 top_k:int=-1 eta:float=1",
    "norm_param": (
        "across_spatial:bool=true scale_filler:skip channel_shared:bool=true eps:float=1e-10"
    ),
    "permute_param": "order:size*",
    "pooling_param": (
        f"{_POOL} stride_h:size stride_w:size engine:skip global_pooling:bool=false"
        " round_mode:word=CEIL ceil_mode:bool=true"
    ),
    "power_param": "power:float=1 scale:float=1 shift:float=0",
    "prelu_param": "filler:skip channel_shared:bool=false",
    "prior_box_param": (
        "min_size:float* max_size:float* aspect_ratio:float* flip:bool=true clip:bool=false"
        " variance:float* img_size:size=0 img_h:size=0 img_w:size=0 step:float=0 step_h:float=0"
        " step_w:float=0 offset:float=0.5"
    ),
    "recurrent_param": (
        "num_output:size=0 weight_filler:skip bias_filler:skip debug_info:skip"
        " expose_hidden:bool=false"
    ),
    "reduction_param": "operation:word=SUM axis:int=0 coeff:float=1",
    "relu_param": "negative_slope:float=0 engine:skip",
    "reorg_param": "stride:size reverse:bool=false",
    "roi_pooling_param": "pooled_h:size=0 pooled_w:size=0 spatial_scale:float=1",
    "shuffle_channel_param": "group:size=1",
    "reshape_param": "shape:shape axis:int=0 num_axes:int=-1",
    "scale_param": "axis:int=1 num_axes:int=1 filler:skip bias_term:bool=false bias_filler:skip",
    "sigmoid_param": "engine:skip",
    "slice_param": "axis:int=1 slice_point:size* slice_dim:int",
    "softmax_param": "engine:skip axis:int=1",
    "swish_param": "beta:float=1",
    "tanh_param": "engine:skip",
    "threshold_param": "threshold:float=0",
    "tile_param": "axis:int=1 tiles:size=0",
    "upsample_param": "scale:size=1",
    "transform_param": (
        "crop_size:size=0 scale:skip mirror:skip mean_file:skip mean_value:skip force_color:skip "
        "force_gray:skip"
    ),
    # The network and its layers; `V1` is `layers { type: CONVOLUTION }`, as Caffe wrote until 2014.
    "net": (
        "name:word= input:word* input_shape:shape* input_dim:int* layer:layer* layers:layer*"
        " state:skip force_backward:skip debug_info:skip"
    ),
    "rule": "phase:word min_level:skip max_level:skip stage:word* not_stage:word*",
    "layer": (
        "name:word= type:word= bottom:word* top:word* include:rule* exclude:rule* phase:word"
        " param:skip loss_weight:skip propagate_down:skip blobs_lr:skip weight_decay:skip"
        " blob_share_mode:skip loss_param:skip accuracy_param:skip hdf5_data_param:skip"
        " window_data_param:skip annotated_data_param:skip python_param:skip"
        " multibox_loss_param:skip softmax_loss_param:skip infogain_loss_param:skip"
        " hinge_loss_param:skip contrastive_loss_param:skip hdf5_output_param:skip"
    ),
}
_MESSAGES["layer"] += "".join(
    f" {name}:{name}" for name in _MESSAGES if name.endswith("_param") and name != "nms_param"
)


_BOOLS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}


def _parse_int(text: str) -> int:
    value = int(text, 0)
    if abs(value) >= 1 << 32:  # Caffe's are of 32 bits, but for the dimensions of a shape
        raise ValueError
    return value


def _parse_size(text: str) -> int:
    if text.startswith("-"):
        raise ValueError
    return _parse_int(text)


_SCALARS: Mapping[str, tuple[Callable[[str], Any], str]] = {
    "int": (_parse_int, "an integer of 32 bits"),
    "size": (_parse_size, "an integer of 32 bits, zero or more"),
    "float": (
        lambda text: float(text[:-1] if text[-1:] in "fF" and text[-3:].lower() != "inf" else text),
        "a number",
    ),
    "bool": (lambda text: _BOOLS[text.lower()], "true or false"),
    "word": (str, "a word"),
}


class Parameters:
    """The fields of one message as attributes.

    A repeated field is a list; an absent message is None, and so is a scalar without a
    default.

    Raises:
        ModelError: a field is unknown, or its value is not of its kind; names the line.
    """

    _values: Mapping[str, Any] = {}  # so that `__getattr__` ends before it is set

    def __init__(self, name: str, message: Message | None, where: str) -> None:
        kinds = _read_kinds(name)
        values: JsonObject = {}
        for key, (kind, repeated, default) in kinds.items():
            if repeated:
                values[key] = []
            elif kind != "skip":
                values[key] = _SCALARS[kind][0](default) if default or kind == "word" else None
        self.given = message or Message()
        # Errors about the layer's parameters name the prototxt and the layer.
        inside = where
        if name == "layer":
            texts = {key: v.text for key, v in self.given.fields if isinstance(v, Scalar)}
            inside += f": layer '{clean(texts.get('name', ''))}' ({clean(texts.get('type', ''))})"
        for key, value in self.given.fields:
            if key not in kinds:
                close = get_close_matches(key, kinds, 1)
                hint = f"did you mean '{close[0]}'? " if close else ""
                of = "" if name in ("net", "layer") else f" in {name}"
                raise ModelError(
                    f"{where}, line {value.line}: unknown field '{key}'{of}",
                    f"{hint}what subcut does not know may change the result",
                    code="caffe.unknown-field",
                )
            kind, repeated, _ = kinds[key]
            if kind == "skip":
                continue
            read = _parse_value(kind, value, where if kind in _SCALARS else inside, key)
            if repeated:
                values[key].append(read)
            else:
                values[key] = read
        self._values = values

    def __getattr__(self, name: str) -> Any:
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(name) from None


@cache
def _read_kinds(name: str) -> dict[str, tuple[str, bool, str]]:
    """Read the fields of a message: kind, whether it is repeated, default as text."""
    out = {}
    for entry in _MESSAGES[name].split():
        field, _, rest = entry.partition(":")
        kind, _, default = rest.partition("=")
        out[field] = kind.removesuffix("*"), kind.endswith("*"), default
    return out


def _parse_value(kind: str, value: Value, where: str, field: str) -> Any:
    convert, expected = _SCALARS.get(kind, (None, "a message in braces"))
    found = "a message"
    if isinstance(value, Scalar):
        found = f"'{value.text[:40]}'"
        with suppress(ValueError, KeyError):
            if convert:
                return convert(value.text)
    elif not convert:
        return Parameters(kind, value, where)
    raise ModelError(
        f"{where}, line {value.line}: '{field}' must be {expected}, not {found}",
        "correct that line",
        code="caffe.wrong-value",
    )
