"""Edits of a model: regions replaced, models merged, nodes removed, and their effect on outputs."""
