"""The reason why a region is wrong: evidence for rounding or a bug, and the optimizer passes that
it takes."""
