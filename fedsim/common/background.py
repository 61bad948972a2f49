"""Making something in other processes: while this one is busy with something else, or part by part side by side."""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing
import os
import pickle
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Generic, NoReturn, TypeVar

from fedsim.common.machine import cores

S = TypeVar("S")
T = TypeVar("T")

_ALIGNED = 64
"""Bytes: where arrays may begin."""
_THREADED = {"torch", "ray"}
"""Modules that may have started threads, with locks that a forked process would find taken."""
_PR_SET_PDEATHSIG = 1


def pays() -> bool:
    """Whether a second process would be of use: it is forked, so that it need not import anything."""
    first = multiprocessing.current_process().name == "MainProcess"
    return first and sys.platform == "linux" and cores() > 1


def in_parts(make: Callable[[Sequence[S]], T], items: Sequence[S], least: int) -> list[T]:
    """Return what `make` makes of consecutive parts of `items`, in their order: together they are all items.

    The parts are made side by side in as many processes as there are cores, if each has at least `least` items and
    this process is free to fork; else there is one part, made here.
    """
    free = pays() and _THREADED.isdisjoint(sys.modules)
    parts = max(min(cores(), len(items) // least), 1) if free else 1
    ends = [len(items) * i // parts for i in range(parts + 1)]
    first, *others = [items[a:b] for a, b in pairwise(ends)]
    under_way = [Ahead(partial(make, part)) for part in others]
    try:
        found = [make(first)]
        for part in others:
            there = under_way.pop(0).result()
            found.append(make(part) if there is None else there)  # what failed there says here why
        return found
    finally:
        for ahead in under_way:
            ahead.stop()


class Ahead(Generic[T]):
    """What `make()` returns, under way in another process; arrays come back in shared memory and are not copied.

    To be used before this process has threads. The other process ends at the latest when this one does.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._memory = os.memfd_create("fedsim")
        self._here, there = multiprocessing.Pipe(duplex=False)
        sys.stdout.flush()  # or what waits there would be written by both
        sys.stderr.flush()
        parent, self._child = os.getpid(), os.fork()
        if self._child == 0:
            _serve(parent, there, self._memory, make)
        there.close()

    def result(self) -> T | None:
        """Wait for it; None if it could not be made there. To be asked for once."""
        found: T | None = None
        with suppress(EOFError, OSError):
            packed, places = self._here.recv()
            size = os.fstat(self._memory).st_size
            held = memoryview(mmap.mmap(self._memory, size) if size else b"")
            found = pickle.loads(packed, buffers=[held[start:end] for start, end in places])
        self._close()
        return found

    def stop(self) -> None:
        """Do without it."""
        os.kill(self._child, signal.SIGKILL)
        self._close()

    def _close(self) -> None:
        self._here.close()
        os.close(self._memory)
        os.waitpid(self._child, 0)


def _serve(parent: int, there: Connection, memory: int, make: Callable[[], object]) -> NoReturn:
    """Be the other process, from its beginning to its end."""
    with suppress(BaseException):  # whatever it is: nothing of the first process may go on in this one
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process hears it too, and says so
            _send(there, memory, make)
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)


def _send(there: Connection, memory: int, make: Callable[[], object]) -> None:
    arrays: list[pickle.PickleBuffer] = []
    packed, places = pickle.dumps(make(), protocol=5, buffer_callback=arrays.append), []
    with open(memory, "wb", closefd=False) as file:
        for array in arrays:
            start = file.tell()
            file.write(array.raw())
            places.append((start, file.tell()))
            file.write(bytes(-file.tell() % _ALIGNED))
    there.send((packed, places))
