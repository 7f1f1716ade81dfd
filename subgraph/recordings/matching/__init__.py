"""Matching of the entries of a recording to the tensors of a model, by name and by value."""
