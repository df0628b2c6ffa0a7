"""Number of replies from outside of this process, of servers and worker processes: progress to the
watchdog."""

from __future__ import annotations

_num_replies = 0


def count_reply() -> None:
    """Count one reply. Threads may lose an increment to each other; the number still changes."""
    global _num_replies
    _num_replies += 1


def num_replies() -> int:
    """Return the number of replies so far."""
    return _num_replies
