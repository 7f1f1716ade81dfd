"""Why a region is wrong: evidence for rounding or a bug, and the optimiser passes that it takes."""
