"""Work on NumPy arrays in several threads: parts that release the interpreter's lock and write to places of their own.

How a piece of work is cut depends on its shape alone, so the number of threads changes no bit of it. Libraries have one
thread each all the while (`fedsim.simulation.one_thread`): theirs wait for one another in a loop and change bits. It is
not for torch, whose modes and numbers of threads are each thread's own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from typing import TypeVar

from fedsim.machine import cores

Part = TypeVar("Part")
Done = TypeVar("Done")

_MOST = 8
"""More threads than these do not read memory faster."""


class _Threads:
    """The threads of this process, started when they are first needed, and anew in a process that was forked."""

    def __init__(self) -> None:
        self.most = min(cores(), _MOST)
        self._pool: tuple[int, int, ThreadPoolExecutor] | None = None

    def pool(self) -> ThreadPoolExecutor:
        """Return the threads."""
        wanted = (os.getpid(), self.most)
        if self._pool is None or self._pool[:2] != wanted:
            self._pool = (*wanted, ThreadPoolExecutor(self.most, "fedsim-rows"))
        return self._pool[2]


_threads = _Threads()


def gain() -> float:
    """Return how many times as fast much work is: 1.5 was measured with two threads; more are taken to add as much."""
    return 1.0 + 0.5 * (_threads.most - 1)


@contextmanager
def at_most(count: int) -> Iterator[None]:
    """Use so many threads at most meanwhile."""
    before, _threads.most = _threads.most, count
    try:
        yield
    finally:
        _threads.most = before


def in_order(work: Callable[[Part], Done], parts: Iterable[Part], *, worth: bool) -> Iterator[Done]:
    """Yield what `work` makes of each part, in their order; a few at a time in several threads if it is `worth` it.

    Not from within such work. Raises what the first part that fails raises.
    """
    left = iter(parts)
    if not worth or _threads.most < 2:
        yield from map(work, left)
        return
    while some := list(islice(left, 2 * _threads.most)):
        yield from _threads.pool().map(work, some)


def each(work: Callable[[Part], object], parts: Iterable[Part], *, worth: bool) -> None:
    """Do `work` on all parts; see `in_order`."""
    for _ in in_order(work, parts, worth=worth):
        pass
