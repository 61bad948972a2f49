"""A process that imports torch and Ray once and forks the workers of a Ray of one's own, as its raylet asks for them.

Ray makes each worker a new program that imports Ray twice and torch once: seconds of a core, and 300 MB. Here the
raylet executes `ray_launch.py`, which passes on what it was given, and ends. A raylet knows a worker by a number in its
command, so it takes one for its own that has another parent.

Only a process without threads can be forked. Ray reads what a raylet says in the environment when it is imported: so it
is imported when there is a raylet.
"""

from __future__ import annotations

import fcntl
import gc
import importlib
import json
import os
import resource
import runpy
import secrets
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from fedsim.execution import ray_launch
from fedsim.execution.ray_launch import HEAD, MOST_FILES, OOM_SCORE, ours

VARIABLE = "FEDSIM_FORK_WORKERS"
"""0 in the environment has Ray start the workers."""
POSSIBLE = sys.platform == "linux" and os.environ.get(VARIABLE) != "0"
"""Whether the workers of a Ray of one's own are forked. Elsewhere libraries do not bear it."""
_LANGUAGE, _CONTEXT = "--language=", "--serialized-runtime-env-context="
"""What is said to the program that a raylet executes otherwise, and which then executes the worker."""
_ANY_JOB = 8 * "f"
"""What a raylet says to a worker of no job yet."""
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_PROGRAM = """\
import sys
sys.path[:] = sys.argv[2:]
from fedsim.execution.ray_forks import serve
serve(int(sys.argv[1]))
"""


class Forks:
    """The process, begun at once. It ends with the one that began it; workers stay as long as their raylet.

    Raises OSError or ValueError where it cannot be had.
    """

    def __init__(self) -> None:
        self._name = f"fedsim-{secrets.token_hex(16)}"
        places = [place for place in sys.path if isinstance(place, str)]  # imports pass over others
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(f"\0{self._name}")  # in no folder: there is nothing to clear away
            listener.listen(128)
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, str(listener.fileno()), *places],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                pass_fds=[listener.fileno()],
                env=os.environ | _ONE_THREAD,
                process_group=0,  # it does not hear Ctrl-C, not even before it says so
            )

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    def prepare(self, raylet: int) -> None:
        """Let it be ready for the workers of a raylet, which it has heard nothing of."""
        assert self._process.stdin is not None
        with suppress(OSError):  # it is gone; then nothing is forked
            self._process.stdin.write(f"{raylet}\n".encode())

    def command(self, worker: str) -> str:
        """Return the command that has a worker forked, of the one that starts it otherwise."""
        program = [sys.executable, "-I", "-S", str(Path(ray_launch.__file__)), self._name]
        return f"{subprocess.list2cmdline(program)} {worker}"

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()


def serve(number: int) -> None:
    """Fork a worker for each who asks at the socket with this number; ends with the process that began this one."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the workers
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # as Ray does for all of its processes
    importlib.import_module("fedsim.execution.workers")
    listener = socket.socket(fileno=number)
    while True:
        if sys.stdin in select.select([listener, sys.stdin], [], [])[0]:
            raylet = sys.stdin.readline()
            if not raylet:
                return
            _import_late(raylet.strip())
            continue
        peer, _ = listener.accept()
        if ours(peer) and not _forked():
            break
        peer.close()
    listener.close()
    _begin(peer)


def _import_late(raylet: str) -> None:
    os.environ.update(RAY_RAYLET_PID=raylet, RAY_JOB_ID=_ANY_JOB)
    importlib.import_module("fedsim.execution.ray_actors")
    gc.freeze()  # else a collection in a worker would write to all pages that it shares


def _forked() -> bool:
    """Return whether this process is not a new one; if none can be had now, who asked does without."""
    try:
        return os.fork() > 0
    except OSError:
        return True


def _begin(peer: socket.socket) -> None:
    """Go on as the program of who asks; one that cannot be gone on with is executed there."""
    head, files, _, _ = socket.recv_fds(peer, HEAD.size, MOST_FILES)
    with peer.makefile("rb") as stream:
        said = json.loads(stream.read(*HEAD.unpack(head)))
    sys.argv = program_of(said["command"])
    os.setpgid(0, 0)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_NOFILE, tuple(said["most_files"]))
    with suppress(OSError):
        OOM_SCORE.write_text(said["oom_score_adj"])
    os.environ.clear()
    os.environ.update(said["environment"])
    os.chdir(said["folder"])
    sys.path.insert(0, str(Path(sys.argv[0]).parent))
    numbers: list[int] = said["files"]
    with peer, _above(peer, max(*numbers, *files)) as there:
        peer.close()
        place(dict(zip(numbers, files, strict=True)))
        there.sendall(b"1")
    runpy.run_path(sys.argv[0], run_name="__main__")


def _above(peer: socket.socket, number: int) -> socket.socket:
    """Return a second socket of the same connection, whose number is larger than that."""
    return socket.socket(fileno=fcntl.fcntl(peer.fileno(), fcntl.F_DUPFD_CLOEXEC, number + 1))


def program_of(command: Sequence[str]) -> list[str]:
    """Return a worker's program and its arguments from the command of Ray, which sets up its environment first.

    Raises ValueError if there is something to set up.
    """
    words = [*command[2:]]
    context = [word.removeprefix(_CONTEXT) for word in words if word.startswith(_CONTEXT)]
    if any(any(json.loads(text or "{}").values()) for text in context):
        raise ValueError("the worker has an environment of its own")
    words = [word for word in words if not word.startswith((_LANGUAGE, _CONTEXT))]
    while words[0].startswith("-"):  # flags of Python
        words.pop(0)
    return words


def place(files: Mapping[int, int]) -> None:
    """Give each open file, by its new number, that number instead of its own."""
    above = max(*files, *files.values()) + 1
    high = {number: fcntl.fcntl(file, fcntl.F_DUPFD, above) for number, file in files.items()}
    for file in files.values():
        os.close(file)
    for number, file in high.items():
        os.dup2(file, number)
        os.close(file)
