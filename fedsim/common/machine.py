"""What a process may use of its machine, and what it has used. It imports nothing that takes time."""

from __future__ import annotations

import math
import os
import resource
import sys
from contextlib import suppress
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_PROCESSES = Path("/proc")


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


def forget_peak() -> None:
    """Let `peak_bytes` begin anew, where the system can: what runs before took does not count for the next."""
    with suppress(OSError):
        (_PROCESSES / "self" / "clear_refs").write_text("5")


def peak_bytes() -> int:
    """Return the highest resident memory of this process so far."""
    with suppress(OSError, ValueError, KeyError):
        return _sizes("self", "status")["VmHWM"]
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def peak_share(process: int | None = None) -> int:
    """Return the same of this or another process, where pages that others have too count by its share of them now."""
    name = "self" if process is None else str(process)
    with suppress(OSError, ValueError, KeyError):
        resident = _sizes(name, "status")
        return _sizes(name, "smaps_rollup")["Pss"] + resident["VmHWM"] - resident["VmRSS"]
    return peak_bytes() if process is None else 0


def _sizes(process: str, file: str) -> dict[str, int]:
    """Return the bytes that the system says of a process. Raises OSError where there is none, or no such file."""
    lines = [line.split() for line in (_PROCESSES / process / file).read_text().splitlines()]
    return {words[0].rstrip(":"): 1024 * int(words[1]) for words in lines if words[-1:] == ["kB"]}
