"""One file per score of a task: its name is the word that the user types, its docstring's first
line the help.

    score(outputs, truth)     one number, higher is better

`outputs`: per sample, name → array. `truth`: per sample {"label": array} where labels are given,
else the float model's own outputs. A file runs in a process of its own and imports numpy alone,
besides what stands here. `TEXT`: labels may be text.
"""
