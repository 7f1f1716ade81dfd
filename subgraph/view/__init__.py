"""`subcut view`: a local page that shows a model, and runs cut, compare and bisect as child
processes.

The page has no rights of its own: a run is a command line, and what that would refuse without
`--trust` is refused.
"""
