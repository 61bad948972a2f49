"""Work in several threads: parts that release the interpreter's lock and write to places of their own.

The number of threads changes no bit of the work. Libraries have one thread each all the while
(`fedsim.runs.simulate.one_thread`): theirs wait for one another in a loop and change bits. Modes of torch, such as
`inference_mode`, are each thread's own.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TypeVar

from fedsim.common.errors import ConfigError
from fedsim.common.machine import cores

Part = TypeVar("Part")
Done = TypeVar("Done")

VARIABLE = "FEDSIM_THREADS"
"""The variable of the environment that says how many threads to use at most."""
MOST, _LIMIT = 8, 1024
"""More threads than these do not read memory faster; more than those are a slip."""


class _Threads:
    """The threads of this process, started when they are first needed, and anew in a process that was forked."""

    def __init__(self) -> None:
        self._most: int | None = None
        self._pool: tuple[int, int, ThreadPoolExecutor] | None = None

    @property
    def most(self) -> int:
        """How many there are at most. Raises ConfigError."""
        if self._most is None:
            self._most = _allowed()
        return self._most

    @most.setter
    def most(self, count: int) -> None:
        self._most = count

    def pool(self) -> ThreadPoolExecutor:
        """Return the threads."""
        wanted = (os.getpid(), self.most)
        if self._pool is None or self._pool[:2] != wanted:
            self._pool = (*wanted, ThreadPoolExecutor(self.most, "fedsim"))
        return self._pool[2]


def _allowed() -> int:
    """Return how many threads to use: as many as there are cores, or as the environment says."""
    text = os.environ.get(VARIABLE)
    if text is None:
        return min(cores(), MOST)
    if not (text.isascii() and text.isdecimal() and 0 < int(text) <= _LIMIT):
        raise ConfigError(f"{VARIABLE}: expected a number from 1 to {_LIMIT}, found {text!r}")
    return int(text)


_threads = _Threads()


def most() -> int:
    """Return how many threads are used at most."""
    return _threads.most


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
    if not worth or _threads.most < 2:
        yield from map(work, parts)
        return
    pool, ahead = _threads.pool(), 2 * _threads.most
    under_way: deque[Future[Done]] = deque()
    try:
        for part in parts:
            under_way.append(pool.submit(work, part))
            if len(under_way) == ahead:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()
    finally:  # nobody writes any more when this returns, whatever happened
        for future in under_way:
            future.cancel()
        wait(under_way)


def each(work: Callable[[Part], object], parts: Iterable[Part], *, worth: bool) -> None:
    """Do `work` on all parts; see `in_order`."""
    for _ in in_order(work, parts, worth=worth):
        pass
