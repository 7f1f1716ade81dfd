"""For users of PyTorch: is the exported model what the module computes?

>>> import torch, subgraph.torch  # doctest: +SKIP
>>> torch.onnx.export(module, args, "model.onnx", dynamo=True)  # doctest: +SKIP
>>> subgraph.torch.record(module, args, "model.onnx", "dump")  # doctest: +SKIP

Then `subcut compare model.onnx --recorded dump`. PyTorch itself is the user's; `subcut` does not install it.
"""  # noqa: E501

from subgraph.origins.torch.record import TorchRecording as TorchRecording
from subgraph.origins.torch.record import record as record
