"""One file per candidate runtime; its name is what the user types, its docstring's first line its help.

A backend is a module with `load(model, options) -> run`, which converts and builds, and `run(feeds) -> outputs`: both
map tensor names to values (numpy arrays; lists of them for sequences). It runs in a process of its own, so it may crash
and print. Optional: `MULTI` (it takes several disconnected pieces in one model), `version()`, `precision(options)`
(what it computes in: fp32, fp16, bf16, int8), `caveat(options)` (what a user must know of that before anything runs,
"" if nothing), `exact(options)` (the options with which it computes in full precision, or without optimisations; None
where these do), `warm()` (imports the runtime ahead of the first model), `missing()` (what it lacks here, "" if
nothing), and, on a run, `outputs`: the type of each output as onnx writes it, where an empty sequence must not lose it.

What it raises: `Refused` while loading (any other exception counts as that), anything while running (a crash), and
`BackendError` or `ImportError` where it cannot be used at all.
"""
