"""Ctrl-C once asks a run to stop where it can go on later; twice, it stops now."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""SIGTERM is what schedulers of clusters send before they take a machine away."""


class Interrupts:
    """Whether somebody asked to stop."""

    def __init__(self, told: Callable[[], None] = lambda: None) -> None:
        self.asked, self._told = False, told

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Listen to the signals while the body runs; the first sets `asked`, the second raises KeyboardInterrupt.

        In another thread than the main one nothing is heard: signals end up there.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in _SIGNALS}
        try:
            for number in _SIGNALS:
                if before[number] is not signal.SIG_IGN:
                    signal.signal(number, self._hear)
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        self._told()
