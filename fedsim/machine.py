"""What a process may use of its machine. It imports nothing that takes time."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def cores() -> int:
    """Return how many cores this process may use, at least one: as its affinity and the quota of its container say."""
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(there, _quota())))


def _quota() -> float:
    """Return how many cores' time the control group of this process gets; infinity if it says nothing."""
    with suppress(OSError, ValueError, ZeroDivisionError):
        quota, period = (_CGROUP / "cpu.max").read_text().split()
        return int(quota) / int(period)
    with suppress(OSError, ValueError, ZeroDivisionError):
        first = (_CGROUP / "cpu" / name for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us"))
        quota, period = (path.read_text() for path in first)
        return int(quota) / int(period) if int(quota) > 0 else math.inf
    return math.inf
