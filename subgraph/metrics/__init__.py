"""One file per metric: `measure(reference, candidate) -> float`.

Both are one-dimensional float64 arrays of equal length, at least one element, all finite. NaN means: not defined here.
"""
