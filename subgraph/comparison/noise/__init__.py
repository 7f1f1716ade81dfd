"""How far perturbation by one rounding moves the outputs of a region."""
