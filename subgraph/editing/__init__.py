"""A model changed: a region replaced, two models merged, nodes removed; and what that does to the
outputs."""
