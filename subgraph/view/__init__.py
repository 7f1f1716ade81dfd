"""`subcut view`: a local page that shows a model, and runs cut, compare and bisect as child
processes.

The page has no further rights: a run is a command line, which refuses the same without `--trust`.
"""
