"""Two values of a tensor: how far apart (`pair`, `metrics/`), do they agree (`judge`, `criteria/`),
how far rounding alone moves an output (`noise/`), what would make them equal (`similarity/`).

A new criterion is one file in `criteria/`, a new metric one file in `metrics/`; their `__init__.py`
show what to write.
"""

# Of the scale, in fp32: what approximate kernels can change; MNN's healthy ones reach 1.6e-3.
MAX_KERNEL_ERROR = 2e-3
MAX_HEALTHY_ERROR = 1e-5  # of the scale: healthy kernels are within, also if the noise is not known
# The criterion if no approximate kernel may explain an error.
ROUNDING_ALONE = "noise:floor=1e-5"
RANKS = "ranks"  # label of an output whose rows rounding exchanges, as after TopK
JUMPS = "jumps"  # label of an output that agrees because single elements jump after a choice
STEPS = "steps"  # label of an output whose error a model's own quantization explains
# A label of a failure: the quantizer of the candidate's model clips values, and does nothing else.
CLIPPED = "clipped"
MIN_REL_TOL = 1e-6  # of a tensor's scale: the default criterion holds nothing to less
