"""TensorFlow Lite: each operator of a .tflite becomes one node of the domain `tflite`, and back.

ONNX's operators are not used, so nothing is translated and nothing can be lost: the attribute
`operator` of a node is a .tflite of that operator alone, with its tensors, their quantization and
its options, but without its weights, which are the model's initializers. Graph, cut, capture and
search need to know nothing of it; the backend `litert` runs it.
"""
