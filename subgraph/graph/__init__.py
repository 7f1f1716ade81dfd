"""The ONNX model: file, graph, region, cut, types."""
