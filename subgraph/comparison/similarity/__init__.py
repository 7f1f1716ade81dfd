"""Under which transformation two values of a tensor would be equal."""
