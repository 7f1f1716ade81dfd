"""Which places of a model must stay in float, proven to be minimal: bisection turned round."""
