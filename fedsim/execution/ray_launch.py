"""A program that a raylet starts for a new worker: it has `ray_forks.py` fork the worker, and hands all of itself over.

    python -I -S ray_launch.py NAME PYTHON SETUP WORKER ARGUMENT...

NAME is of the socket of `ray_forks.py`; the rest is the command of Ray, which is executed instead if nobody answers
and the raylet is still there.
It imports little: it is there for some milliseconds only.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import struct
import sys
from pathlib import Path

HEAD = struct.Struct("!Q")
"""What stands before a message: how many bytes it has."""
CREDENTIALS = struct.Struct("3i")
"""Process, user and group at the other end of a socket."""
MOST_FILES = 250
"""The kernel passes on no more at once."""
_PATIENCE_S = 30.0
"""For who imports torch from a slow disk, and not for one that hangs."""
OOM_SCORE = Path("/proc/self/oom_score_adj")


def ours(peer: socket.socket) -> bool:
    """Return whether the process at the other end belongs to this user: any may have taken the name."""
    found = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    return int(CREDENTIALS.unpack(found)[1]) == os.geteuid()


def _open_files() -> list[int]:
    with os.scandir("/proc/self/fd") as found:
        numbers = sorted(int(entry.name) for entry in found)
    return [number for number in numbers if _is_open(number)]  # the one that listed them is closed again


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def handed_over(name: str, command: list[str]) -> bool:
    """Ask for a worker that goes on in the place of this process; return whether there is one."""
    try:
        files = _open_files()
        said = {
            "command": command,
            "environment": dict(os.environ),
            "folder": os.getcwd(),
            "files": files,
            "most_files": resource.getrlimit(resource.RLIMIT_NOFILE),
            "oom_score_adj": OOM_SCORE.read_text(),
        }
        text = json.dumps(said).encode()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as there:
            there.settimeout(_PATIENCE_S)
            there.connect(f"\0{name}")
            if len(files) > MOST_FILES or not ours(there):
                return False
            socket.send_fds(there, [HEAD.pack(len(text))], files)
            there.sendall(text)
            return there.recv(1) == b"1"
    except OSError:
        return False


if __name__ == "__main__":
    raylet = int(os.environ.get("RAY_RAYLET_PID", os.getppid()))
    if not handed_over(sys.argv[1], sys.argv[2:]) and os.getppid() == raylet:
        os.execv(sys.argv[2], sys.argv[2:])
