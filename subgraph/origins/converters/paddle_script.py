"""A Paddle model -> ONNX by paddle2onnx, and its outputs by Paddle. A script: see `converters`."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


def find_files(model: Path) -> tuple[Path, Path]:
    """Return (program, parameters) of a folder, or of one of the two files.

    Raises:
        FileNotFoundError: one is missing.
    """
    if model.is_dir():
        model = next(iter(sorted([*model.glob("*.pdiparams"), *model.glob("__model__")])), model)
    if model.name == "__model__":
        return model, model.with_name("__params__")
    parameters = model.with_suffix(".pdiparams")
    programs = [
        p for p in (model.with_suffix(".json"), model.with_suffix(".pdmodel")) if p.is_file()
    ]
    if not programs:
        raise FileNotFoundError(
            f"no program next to {parameters}: expected .json or .pdmodel of the same name"
        )
    return programs[0], parameters


def convert(model: Path, target: str) -> None:
    """Call paddle2onnx as its command line does."""
    from paddle2onnx import command

    program, parameters = find_files(model)
    words = ["--model_dir", str(program.parent), "--model_filename", program.name]
    sys.argv = ["paddle2onnx", *words, "--params_filename", parameters.name, "--save_file", target]
    command.main()


@contextlib.contextmanager
def open_original(
    model: Path, _: list[str]
) -> Iterator[tuple[dict[str, Any], Callable[[dict[str, Any]], Any]]]:
    """Yield its predictor, without optimizations; paddle2onnx renames intermediate tensors."""
    from paddle import inference

    config = inference.Config(*map(str, find_files(model)))
    config.disable_gpu()
    config.disable_glog_info()
    config.switch_ir_optim(False)
    predictor = inference.create_predictor(config)

    def compute(fed: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        for name, value in fed.items():
            predictor.get_input_handle(name).copy_from_cpu(value)
        predictor.run()
        return {
            name: predictor.get_output_handle(name).copy_to_cpu()
            for name in predictor.get_output_names()
        }, {}

    handles = {name: predictor.get_input_handle(name) for name in predictor.get_input_names()}
    yield (
        {
            name: (str(h.type()).rpartition(".")[2].lower(), h.shape())
            for name, h in handles.items()
        },
        compute,
    )
