"""The places of a model that must stay in float, proven to be minimal: bisection turned round."""
