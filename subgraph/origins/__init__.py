"""Models that were not born as ONNX: the files of another framework -> a model file that everything
else reads."""
