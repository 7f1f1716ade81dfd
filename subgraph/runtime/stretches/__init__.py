"""A model that is larger than memory, run in stretches: ranges of its nodes, each fed by what the
last left on disk."""
