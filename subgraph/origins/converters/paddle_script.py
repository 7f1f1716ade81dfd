"""A Paddle model -> ONNX by paddle2onnx, and its outputs by Paddle. A script: see `converters`."""

import json
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    """Do what the command line says."""
    what, model, *rest = sys.argv[1:]
    program, parameters = files(Path(model))
    if what == "convert":
        convert(program, parameters, rest[0])
    else:
        run(program, parameters, json.loads(Path(rest[0]).read_text(encoding="utf-8")), rest[1])


def files(model: Path) -> tuple[Path, Path]:
    """(program, parameters) of a folder, or of one of the two files.

    Raises:
        FileNotFoundError: one is missing.
    """
    if model.is_dir():
        model = next(iter(sorted([*model.glob("*.pdiparams"), *model.glob("__model__")])), model)
    if model.name == "__model__":
        return model, model.with_name("__params__")
    parameters = model.with_suffix(".pdiparams")
    programs = [p for p in (model.with_suffix(".json"), model.with_suffix(".pdmodel")) if p.is_file()]
    if not programs:
        raise FileNotFoundError(f"no program beside {parameters}: expected .json or .pdmodel of the same name")
    return programs[0], parameters


def convert(program: Path, parameters: Path, target: str) -> None:
    """Call paddle2onnx as its command line does."""
    from paddle2onnx import command

    words = ["--model_dir", str(program.parent), "--model_filename", program.name]
    sys.argv = ["paddle2onnx", *words, "--params_filename", parameters.name, "--save_file", target]
    command.main()


def run(program: Path, parameters: Path, asked: dict[str, Any], target: str) -> None:
    """Write the outputs, by the names of the ONNX model's."""
    import numpy as np
    from paddle import inference

    config = inference.Config(str(program), str(parameters))
    config.disable_gpu()
    config.disable_glog_info()
    config.switch_ir_optim(False)
    predictor = inference.create_predictor(config)
    fed = {name: np.load(file, allow_pickle=False) for name, file in asked["files"].items()}
    names = predictor.get_input_names()
    for name, value in fed.items() if set(names) == set(fed) else zip(names, fed.values(), strict=True):
        predictor.get_input_handle(name).copy_from_cpu(value)
    predictor.run()
    values = [predictor.get_output_handle(name).copy_to_cpu() for name in predictor.get_output_names()]
    np.savez(target, **dict(zip(asked["outputs"], values, strict=True)))


if __name__ == "__main__":
    main()
