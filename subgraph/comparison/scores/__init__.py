"""One file per score of a task: its name is the word that the user types, its docstring's first
line the help.

    score(outputs, truth)     one number, higher is better

`outputs`: per sample, name → array. `truth`: per sample {"label": array} if labels are given, else
the float model's own outputs. A file runs in a separate process, and imports only numpy and the
modules of this folder. `TEXT`: labels can be text.
"""
