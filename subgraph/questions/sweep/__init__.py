"""onnx's operator tests through candidates."""
