"""The rounding noise of a region: the movement of its outputs by a perturbation of one rounding."""
