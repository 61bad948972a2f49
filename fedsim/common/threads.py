"""A thread pool for work that releases the interpreter lock and writes to separate memory.

The number of threads changes no bit of a result. Libraries use one thread each in the meantime
(`fedsim.runs.resources.one_thread`), because their own threads change bits and wait for each other in busy loops. Modes
of torch, such as `inference_mode`, belong to a single thread.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import TypeVar

from fedsim.common.errors import ConfigError
from fedsim.common.machine import cores

Part = TypeVar("Part")
Result = TypeVar("Result")

VARIABLE = "FEDSIM_THREADS"
"""The environment variable for the most threads to use."""
MOST, _LIMIT = 8, 1024
"""The default limit, beyond which threads do not read memory faster, and the largest valid limit."""


_limits: list[int] = []
"""The limits of the open `at_most` blocks, the innermost last."""


def most() -> int:
    """Return the most threads that are used. Raises ConfigError for a bad environment variable."""
    return _limits[-1] if _limits else default_most()


def default_most() -> int:
    """Return the environment variable's number of threads, by default the number of cores, at most 8."""
    return _most_of(os.environ.get(VARIABLE))


@cache
def _most_of(text: str | None) -> int:
    if text is None:
        return min(cores(), MOST)
    if not (text.isascii() and text.isdecimal() and 0 < int(text) <= _LIMIT):
        raise ConfigError(f"{VARIABLE}: expected a number from 1 to {_LIMIT}, found {text!r}")
    return int(text)


@lru_cache(maxsize=1)
def _pool(process: int, count: int) -> ThreadPoolExecutor:
    """Return the thread pool of a process; a forked process and another limit need a new one."""
    return ThreadPoolExecutor(count, "fedsim")


def gain() -> float:
    """Return the estimated speed-up of long work: 1.5 with two threads, as measured, and 0.5 for each further one."""
    return 1.0 + 0.5 * (most() - 1)


@contextmanager
def at_most(count: int) -> Iterator[None]:
    """Use at most `count` threads in the body."""
    default_most()  # refuses a bad environment variable
    _limits.append(count)
    try:
        yield
    finally:
        _limits.pop()


def in_order(work: Callable[[Part], Result], parts: Iterable[Part], *, worth: bool) -> Iterator[Result]:
    """Yield the results of `work` for the parts, in their order; use several threads if that is `worth` it.

    Raises the error of the first part that fails. `work` must not call this function.
    """
    if not worth or most() < 2:
        yield from map(work, parts)
        return
    pool, ahead = _pool(os.getpid(), most()), 2 * most()
    submitted: deque[Future[Result]] = deque()
    try:
        for part in parts:
            submitted.append(pool.submit(work, part))
            if len(submitted) == ahead:
                yield submitted.popleft().result()
        while submitted:
            yield submitted.popleft().result()
    finally:  # also after an error, no thread may still write when this returns
        for future in submitted:
            future.cancel()
        wait(submitted)


def each(work: Callable[[Part], object], parts: Iterable[Part], *, worth: bool) -> None:
    """Call `work` for all parts; see `in_order`."""
    for _ in in_order(work, parts, worth=worth):
        pass
