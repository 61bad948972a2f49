"""Ctrl-C and SIGTERM stop a run at a point from which it can resume; the second Ctrl-C stops it at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""Schedulers of clusters send SIGTERM before they take a machine away, some to each process of a group."""


class Interrupts:
    """Records in `asked` whether a signal asked to stop, and then calls `on_asked`."""

    def __init__(self, on_asked: Callable[[], None] = lambda: None) -> None:
        self.asked, self._on_asked = False, on_asked

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Handle the signals while the body runs: the first sets `asked`, Ctrl-C after it raises KeyboardInterrupt.

        Does nothing outside of the main thread, which alone receives signals.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        handlers = {number: signal.getsignal(number) for number in _SIGNALS}
        before = {number: handler for number, handler in handlers.items() if handler is not signal.SIG_IGN}
        try:
            for number in before:
                signal.signal(number, self._handle)
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def renew(self) -> None:
        """Install the handlers of an open `handled` again, after other code than Python's has replaced them."""
        for number in _SIGNALS:
            if signal.getsignal(number) == self._handle:
                signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            return
        self.asked = True
        self._on_asked()
