"""Caffe: `net.prototxt` and `net.caffemodel` -> ONNX, a node per layer if ONNX can; and a region
back to Caffe.

The prototxt is read as a tree and checked against the fields that we know (`messages`), and walked
layer by layer (`onnx_model`); each type of layer is a function of `layers`, `shapes` or `windows`.
Weights stay where they are: the caffemodel holds them as contiguous floats (`caffemodel`), which
are copied from file to file.
"""
