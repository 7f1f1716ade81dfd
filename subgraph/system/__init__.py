"""All that operating systems do not do alike: groups of processes, limits, locks of folders, a few
calls on files.

Other packages use this one, which is one of two files with the same names. The means of each
system:

| | Linux | macOS | Windows |
|---|---|---|---|
| a group ends with this process | the kernel kills it | a shell waits for the end of a pipe | a job
object | | what left its group is found | by parent and by environment | by environment | nothing
can leave the job | | a limit of memory | `RLIMIT_DATA` | a thread looks at it | `JobMemoryLimit` |
| a limit of processor time | `RLIMIT_CPU` | a thread looks at it | `PerJobUserTimeLimit` |
| the lock of a folder | `flock` | `flock` | a file next to it, `LockFileEx` |
| a pipe is waited for | `poll` | `poll` | a thread per pipe |
| a request to end | SIGTERM | SIGTERM | Ctrl-Break |

psutil is imported inside the functions: its import takes 10 ms, which `subcut cut` and TAB need not
pay.
"""
# ruff: noqa: F403, F405

from __future__ import annotations

import sys

if sys.platform == "win32":
    from subgraph.system.windows import *
else:
    from subgraph.system.posix import *

__all__ = [
    "APART",
    "KILLED",
    "LONGEST_PATH",
    "PYTHON",
    "SPECIAL_NAMES",
    "TERMINATED",
    "WEAKER",
    "Lock",
    "Pipes",
    "ProcessGroup",
    "adopt_orphans",
    "buffer_lines",
    "call_at_termination",
    "count_cores",
    "delay_interrupts",
    "end_own_group",
    "find_cache_home",
    "find_config_home",
    "find_home_folder",
    "find_program",
    "flush",
    "flush_c",
    "interrupt",
    "interrupt_on_termination",
    "is_private",
    "join",
    "link_folder",
    "measure_free_memory",
    "move",
    "name_crash",
    "name_processor",
    "quote",
    "read_at",
    "read_nothing_ahead",
    "shorten_folder",
    "split",
]
