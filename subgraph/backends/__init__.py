"""One file per candidate runtime.

A backend is a module with `load(model, options) -> run`, and `run(feeds, outputs) -> {name: (type text, value)}`.
"""
