"""The comparison of an exported model with its PyTorch module.

>>> import torch, subgraph.torch  # doctest: +SKIP
>>> torch.onnx.export(module, args, "model.onnx", dynamo=True)  # doctest: +SKIP
>>> subgraph.torch.record(module, args, "model.onnx", "dump")  # doctest: +SKIP

Then run `subcut compare model.onnx --recorded dump`. The user installs PyTorch; `subcut` does not
bring it.
"""

from subgraph.origins.torch.record import TorchRecording as TorchRecording, record as record
