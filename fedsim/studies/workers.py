"""Processes that run cells of a study: long-lived, each with its own data and world, replaced when they are killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection, forkserver, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from fedsim.common.signals import Interrupts
from fedsim.studies.grid import Cell
from fedsim.studies.queue import Queue

if TYPE_CHECKING:  # it imports torch, which a process needs only once it has work
    from fedsim.runs.resources import Device
    from fedsim.studies.cell import CellStatus, Ended

_TRIES = 2
"""How often a cell is tried whose process is killed."""
_LOOK_EVERY_S = 0.25
_SERVER_LOST = 255
"""The exit code that multiprocessing gives to a process if the one that forked it is gone."""
_CONTEXT = multiprocessing.get_context("forkserver")
"""Processes have nothing of this one, neither threads nor what torch and Ray have set up, and import once for all."""


def begin_imports() -> None:
    """Let the process from which others are forked begin to import what they need; this one goes on meanwhile."""
    _CONTEXT.set_forkserver_preload(["fedsim.studies.cell"])
    resource_tracker.ensure_running()  # begun later, it would let interrupts through
    with _deaf():
        forkserver.ensure_running()


class Listener(Protocol):
    """Who wants to know what happens to cells."""

    def begun(self, cell: Cell) -> None:
        """A process was given the cell."""

    def told(self, standing: CellStatus) -> None:
        """A cell stands there."""

    def ended(self, cell: Cell, ended: Ended) -> None:
        """A cell came to an end, or stopped where it can go on."""

    def killed(self, cell: Cell, how: str, *, again: bool, stopping: bool) -> None:
        """The cell's process is gone; `again`: another one goes on with it; `stopping`: all were asked to end."""

    def stopping(self) -> None:
        """Somebody asked to stop."""


@dataclass(slots=True)
class _Worker:
    process: ForkServerProcess
    here: Connection
    cell: Cell | None = None
    last: Cell | None = None


class Pool:
    """Runs cells in processes of their own, at most one in each.

    Args:
        folder: of the study.
    """

    def __init__(
        self, jobs: int, folder: Path, device: Device, listener: Listener, interrupts: Interrupts
    ) -> None:
        self.jobs, self.folder, self.device = jobs, folder, device
        self.listener, self.interrupts = listener, interrupts
        self._workers: list[_Worker] = []
        self._tries: Counter[int] = Counter()
        self._asked_to_stop = False

    def run(self, queue: Queue) -> None:
        """Run all cells, or until somebody asks to stop; then the cells that are under way are saved and stop."""
        try:
            while self._busy(queue):
                self._stop_if_asked()
                self._hear(queue)
        finally:
            for worker in self._workers:
                worker.process.kill()
                worker.process.join()
                worker.here.close()

    def _busy(self, queue: Queue) -> bool:
        """Hand out work; return whether any is under way."""
        if not self.interrupts.asked:
            while len(self._workers) < min(
                self.jobs, len(queue) + sum(w.cell is not None for w in self._workers)
            ):
                self._workers.append(_started(self.device))
            for worker in self._workers:
                if worker.cell is None:
                    self._hand_out(worker, queue)
        return any(worker.cell is not None for worker in self._workers)

    def _hand_out(self, worker: _Worker, queue: Queue) -> None:
        others = [w.cell for w in self._workers if w.cell is not None]
        cell = queue.take(worker.last, others)
        if cell is not None:
            worker.cell = worker.last = cell
            self.listener.begun(cell)
            with suppress(OSError):  # it is gone, and that will be heard
                worker.here.send((cell, self.folder / cell.folder))

    def _stop_if_asked(self) -> None:
        if self.interrupts.asked and not self._asked_to_stop:
            self._asked_to_stop = True
            self.listener.stopping()
            for worker in self._workers:
                worker.process.terminate()  # which a run takes for an interrupt: it saves and ends

    def _hear(self, queue: Queue) -> None:
        ready = connection.wait(
            [w.here for w in self._workers] + [w.process.sentinel for w in self._workers], _LOOK_EVERY_S
        )
        for worker in list(self._workers):
            if worker.here in ready or worker.process.sentinel in ready:
                self._read(worker, queue)

    def _read(self, worker: _Worker, queue: Queue) -> None:
        from fedsim.studies.cell import Ended

        try:
            while worker.here.poll():
                said = worker.here.recv()
                if not isinstance(said, Ended):
                    self.listener.told(said)
                elif worker.cell is not None:
                    cell, worker.cell = worker.cell, None
                    self.listener.ended(cell, said)
        except (EOFError, OSError):
            self._bury(worker, queue)

    def _bury(self, worker: _Worker, queue: Queue) -> None:
        """Let go of a process that died; its cell is tried once more."""
        worker.process.join()
        if worker.process.exitcode == _SERVER_LOST and worker.process.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(worker.process.pid, signal.SIGKILL)  # it lives, but nobody would know when it ends
        worker.here.close()
        self._workers.remove(worker)
        cell, stopping = worker.cell, self.interrupts.asked
        if cell is None:
            return
        self._tries[cell.number] += 1
        again = self._tries[cell.number] < _TRIES and not stopping
        if again:
            queue.put_back(cell)
        self.listener.killed(cell, _how(worker.process.exitcode), again=again, stopping=stopping)


def _how(code: int | None) -> str:
    if code is None or code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def _started(device: Device) -> _Worker:
    here, there = _CONTEXT.Pipe()
    process = _CONTEXT.Process(target=_serve, args=(there, device), daemon=True)
    with _deaf():
        process.start()
    there.close()
    return _Worker(process, here)


@contextmanager
def _deaf() -> Iterator[None]:
    """Start processes that do not hear Ctrl-C: the first one does, and says so in its own time."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(there: Connection, device: Device) -> None:
    """Run the cells that come through the pipe, until it is closed; ends at once with the process that began it."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_end_with, args=(parent.join,), name="parent", daemon=True).start()
    interrupts = Interrupts()
    with interrupts.handled(), suppress(EOFError, OSError, KeyboardInterrupt):
        from fedsim.studies.cell import CellRunner

        def tell(said: CellStatus | Ended) -> None:
            try:
                there.send(said)
            except OSError:  # nobody listens any more; the run goes on from its last checkpoint another time
                os._exit(1)

        runner = CellRunner(device, interrupts)
        while not interrupts.asked:
            cell, folder = there.recv()
            tell(runner.play(cell, folder, tell))


def _end_with(joined: Callable[[], None]) -> None:
    joined()
    os._exit(1)
