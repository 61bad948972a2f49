"""A program that does nothing, for as long as the raylet that started it lives: see `lean_ray.py`."""

from __future__ import annotations

import os
import time


def lives(pid: int) -> bool:
    """Return whether there is such a process."""
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    parent = os.getppid()
    raylet = int(os.environ.get("RAY_RAYLET_PID", parent))  # it may be gone before this line is reached
    while os.getppid() == parent and lives(raylet):
        time.sleep(1)
