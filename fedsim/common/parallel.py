"""Divides work among forked processes, which need not import anything again."""

from __future__ import annotations

import multiprocessing
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import TypeVar

from fedsim.common.machine import cores

S = TypeVar("S")
T = TypeVar("T")


def in_parts(make: Callable[[Sequence[S]], T], items: Sequence[S], least: int) -> list[T]:
    """Divide `items` into consecutive parts, and return the results of `make` for the parts, in their order.

    As many processes as there are cores make the parts, if each has at least `least` items and this process may fork:
    it is the first one, on Linux, without Ray and without another thread of Python, which might hold a lock that the
    forked process would wait for. Else there is one part, made here. `make` must not use torch.
    """
    parts = max(min(cores(), len(items) // least), 1) if _may_fork() else 1
    ends = [len(items) * i // parts for i in range(parts + 1)]
    first, *others = [items[a:b] for a, b in pairwise(ends)]
    context = multiprocessing.get_context("fork")
    started = []
    try:
        for part in others:
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=_send, args=(sender, make, part), daemon=True)
            process.start()
            sender.close()
            started.append((process, receiver, part))
        return [make(first), *(_received(receiver, make, part) for _, receiver, part in started)]
    finally:
        for process, receiver, _ in started:
            receiver.close()
            process.kill()
            process.join()


def _may_fork() -> bool:
    first = multiprocessing.current_process().name == "MainProcess"
    alone = threading.active_count() == 1 and "ray" not in sys.modules
    return first and alone and sys.platform == "linux" and cores() > 1


def _send(sender: Connection, make: Callable[[Sequence[S]], T], part: Sequence[S]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process receives Ctrl-C too
    with suppress(Exception):  # the first process makes this part itself, and raises the error
        sender.send(make(part))


def _received(receiver: Connection, make: Callable[[Sequence[S]], T], part: Sequence[S]) -> T:
    try:
        received: T = receiver.recv()
    except EOFError:
        return make(part)
    return received
