"""Making something in a second process while this one is busy with something else."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import pickle
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Generic, TypeVar

from fedsim.machine import cores

T = TypeVar("T")

_ALIGNED = 64
"""Bytes: where arrays may begin."""


def pays() -> bool:
    """Whether a second process would be of use: it is forked, so that it need not import anything."""
    first = multiprocessing.current_process().name == "MainProcess"
    return first and sys.platform == "linux" and cores() > 1


class Ahead(Generic[T]):
    """What `make()` returns, under way in another process; arrays come back in shared memory and are not copied.

    To be used before this process has threads.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        fork = multiprocessing.get_context("fork")
        self._memory = os.memfd_create("fedsim")
        self._here, there = fork.Pipe(duplex=False)
        self._process = fork.Process(target=_send, args=(there, self._memory, make), daemon=True)
        self._process.start()
        there.close()

    def result(self) -> T | None:
        """Wait for it; None if it could not be made there. To be asked for once."""
        found: T | None = None
        with suppress(EOFError, OSError):
            packed, places = self._here.recv()
            size = os.fstat(self._memory).st_size
            held = memoryview(mmap.mmap(self._memory, size) if size else b"")
            found = pickle.loads(packed, buffers=[held[start:end] for start, end in places])
        self._here.close()
        os.close(self._memory)
        self._process.join()
        return found


def _send(there: Connection, memory: int, make: Callable[[], T]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process hears it too, and says so
    with suppress(Exception):
        arrays: list[pickle.PickleBuffer] = []
        packed, places = pickle.dumps(make(), protocol=5, buffer_callback=arrays.append), []
        with open(memory, "wb", closefd=False) as file:
            for array in arrays:
                start = file.tell()
                file.write(array.raw())
                places.append((start, file.tell()))
                file.write(bytes(-file.tell() % _ALIGNED))
        there.send((packed, places))
    there.close()
