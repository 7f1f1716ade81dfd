"""Bodies of If, Loop and Scan, and called local functions, as standalone models to cut and search.

`model` builds the model of a body, `iterations` and `truncated` compute its inputs in an iteration,
`descend` finds the body that a user's selector names.
"""
