"""What a process may use of its machine. It imports nothing that takes time."""

from __future__ import annotations

import os


def cores() -> int:
    """Return how many cores this process may use, at least one."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
