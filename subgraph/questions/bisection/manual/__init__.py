"""A bisection of a device that cannot be called from here: tasks out, results in, state on disk."""

MAX_BATCH = 64  # tasks at once
