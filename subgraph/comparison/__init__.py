"""Two values of a tensor: metrics, criteria, rounding noise, similarity."""
