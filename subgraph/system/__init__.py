"""All that operating systems do not do alike: groups of processes, limits, locks of folders, a few calls on files.

The rest of subcut asks this package. A port is one file with the same names. What each system gives:

| | Linux | macOS | Windows |
|---|---|---|---|
| a group ends with this process | the kernel kills it | a worker sees the end of its input | a job object |
| what left its group is found | by parent and by environment | by environment | all that is in the job |
| a limit of memory | `RLIMIT_DATA` | none: the parent looks at it | `JobMemoryLimit` |
| a limit of processor time | `RLIMIT_CPU` | none: it cannot be set from outside | `PerJobUserTimeLimit` |
| the lock of a folder | `flock` | `flock` | a file in it, `msvcrt.locking` |
| a pipe is waited for | `poll` | `poll` | a thread per pipe |

psutil is imported inside the functions: its import takes 10 ms, which `subcut cut` and TAB need not pay.
"""

from __future__ import annotations

from subgraph.system.posix import (
    APART,
    KILLED,
    TERMINATED,
    Lock,
    ProcessGroup,
    adopt_orphans,
    at_termination,
    buffer_lines,
    cores,
    crash_name,
    end_own_group,
    flush,
    flush_c,
    free_memory,
    home_folder,
    interrupt,
    interrupts_delayed,
    limit,
    memory,
    processor,
    read_at,
    read_nothing_ahead,
    ready,
    termination_interrupts,
)

__all__ = [
    "APART",
    "KILLED",
    "TERMINATED",
    "Lock",
    "ProcessGroup",
    "adopt_orphans",
    "at_termination",
    "buffer_lines",
    "cores",
    "crash_name",
    "end_own_group",
    "flush",
    "flush_c",
    "free_memory",
    "home_folder",
    "interrupt",
    "interrupts_delayed",
    "limit",
    "memory",
    "processor",
    "read_at",
    "read_nothing_ahead",
    "ready",
    "termination_interrupts",
]
