"""The cores that a process may use, and the memory that it has used. Imports nothing slow."""

from __future__ import annotations

import math
import os
import resource
import sys
from contextlib import suppress
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def cores() -> int:
    """Return the number of cores that this process may use by its affinity and its container's quota, at least 1."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(allowed, _quota())))


def _quota() -> float:
    """Return the CPU quota of this process's control group in cores; infinity without a quota."""
    with suppress(OSError, ValueError, ZeroDivisionError):
        quota, period = (_CGROUP / "cpu.max").read_text().split()
        return int(quota) / int(period)
    with suppress(OSError, ValueError, ZeroDivisionError):
        version_1 = (_CGROUP / "cpu" / name for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us"))
        quota, period = (path.read_text() for path in version_1)
        return int(quota) / int(period) if int(quota) > 0 else math.inf
    return math.inf


def forget_peak() -> None:
    """Reset `peak_bytes`, if the system can, so that earlier runs of this process do not count."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_bytes() -> int:
    """Return the peak resident memory of this process in bytes."""
    with suppress(OSError, ValueError, KeyError):
        return _sizes("status")["VmHWM"]
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def peak_share() -> int:
    """Return the peak memory of this process in bytes, where a page counts 1/n if n processes share it at present."""
    with suppress(OSError, ValueError, KeyError):
        resident = _sizes("status")
        return _sizes("smaps_rollup")["Pss"] + resident["VmHWM"] - resident["VmRSS"]
    return peak_bytes()


def _sizes(file: str) -> dict[str, int]:
    """Return the sizes in bytes from a file of this process in /proc. Raises OSError if there is no such file."""
    lines = [line.split() for line in Path("/proc/self", file).read_text().splitlines()]
    return {words[0].rstrip(":"): 1024 * int(words[1]) for words in lines if words[-1:] == ["kB"]}
