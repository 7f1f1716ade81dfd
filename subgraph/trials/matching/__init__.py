"""A pair of models: which tensor of one is which of the other."""
