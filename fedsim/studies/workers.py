"""Processes that run cells of a study. Each runs several cells, and is replaced if it ends early."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection, forkserver, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from typing import TYPE_CHECKING, Any

from fedsim import plugins
from fedsim.common.errors import RunError
from fedsim.common.signals import Interrupts
from fedsim.studies.grid import Cell, CellProgress, CellResult
from fedsim.studies.queue import Queue

if TYPE_CHECKING:  # `fedsim study` calls `begin_imports` before it imports torch
    from fedsim.runs.resources import Device
    from fedsim.studies.progress import Board

_TRIES = 2
"""A cell fails when this many of its processes ended early."""
_LOOK_EVERY_S = 0.25
_SERVER_LOST = 255
"""The exit code that multiprocessing reports for a process if the fork server is gone."""
_SAFE_PATH = "PYTHONSAFEPATH"
_SIGNALS = {signal.SIGINT, signal.SIGTERM}
_CONTEXT = multiprocessing.get_context("forkserver")
"""Its processes inherit no threads, and no state of torch or Ray; the fork server imports their modules once."""


def begin_imports() -> None:
    """Start the fork server, which imports the modules of its processes while this process continues.

    It does not import from the working folder, where a user's `random.py` would stand in for Python's.
    """
    _CONTEXT.set_forkserver_preload(["fedsim.studies.cell"])
    before = os.environ.get(_SAFE_PATH)
    os.environ[_SAFE_PATH] = "1"
    try:
        resource_tracker.ensure_running()  # here, as its start unblocks signals
        with _signals_blocked():
            forkserver.ensure_running()
    finally:
        del os.environ[_SAFE_PATH]
        if before is not None:
            os.environ[_SAFE_PATH] = before


@dataclass(slots=True)
class _Worker:
    process: ForkServerProcess
    pipe: Connection
    cell: Cell | None = None
    last: Cell | None = None
    begun: bool = False
    """Whether it has imported what it needs, and can take a cell."""


class Pool:
    """Runs cells in processes, at most one in each; `files` are those of the cells' plug-ins."""

    def __init__(
        self,
        jobs: int,
        device: Device,
        board: Board,
        interrupts: Interrupts,
        files: Mapping[str, plugins.Source],
    ) -> None:
        self.jobs, self.device, self.board, self.interrupts = jobs, device, board, interrupts
        self._given, self._files = _pickled(plugins.all_given()), files
        self._workers: list[_Worker] = []
        self._tries: Counter[int] = Counter()
        self._stopping = False

    def run(self, queue: Queue) -> None:
        """Run all cells. After an interrupt it starts no further cell, and running cells are saved."""
        try:
            while self._assign(queue):
                if self.interrupts.asked and not self._stopping:
                    self._stop()
                self._receive(queue)
        finally:
            for worker in self._workers:
                worker.process.kill()
                worker.process.join()
                worker.pipe.close()

    def _assign(self, queue: Queue) -> bool:
        """Give idle workers a cell, unless there was an interrupt; return whether any cell runs."""
        running = [worker.cell for worker in self._workers if worker.cell is not None]
        if not self.interrupts.asked:
            while len(self._workers) < min(self.jobs, len(queue) + len(running)):
                self._workers.append(_started(self.device, self._given, self._files))
            for worker in self._workers:
                if worker.cell is None and (cell := queue.take(worker.last, running)) is not None:
                    worker.cell = worker.last = cell
                    running.append(cell)
                    self.board.start(cell)
                    with suppress(OSError):  # the worker has ended, which `_receive` handles
                        worker.pipe.send((cell, self.board.folder.path / cell.folder))
        return bool(running)

    def _stop(self) -> None:
        self._stopping = True
        self.board.print("stopping: running cells are saved; Ctrl-C again stops now")
        for worker in self._workers:
            worker.process.terminate()  # a run handles SIGTERM as an interrupt: it is saved and ends

    def _receive(self, queue: Queue) -> None:
        """Wait for messages and ends of workers, up to `_LOOK_EVERY_S`, and handle them."""
        sources = [source for w in self._workers for source in (w.pipe, w.process.sentinel)]
        ready = connection.wait(sources, _LOOK_EVERY_S)
        for worker in list(self._workers):
            if worker.pipe in ready or worker.process.sentinel in ready:
                try:
                    while worker.pipe.poll():
                        self._handle(worker, worker.pipe.recv())
                except (EOFError, OSError):
                    self._remove(worker, queue)

    def _handle(self, worker: _Worker, message: CellProgress | CellResult | None) -> None:
        if message is None:
            worker.begun = True
        elif isinstance(message, CellProgress):
            self.board.update(message)
        elif worker.cell is not None:
            cell, worker.cell = worker.cell, None
            self.board.finish(cell, message)

    def _remove(self, worker: _Worker, queue: Queue) -> None:
        """Remove a worker that has ended, and put its cell back into the queue for one more try.

        Raises RunError if it ended with an error before it could take a cell, as all others would.
        """
        process, cell, stopping = worker.process, worker.cell, self.interrupts.asked
        process.join()
        if not worker.begun and process.exitcode == 1 and not stopping:
            raise RunError(
                "a process of the study ended while it started, with the error above; a script that calls fedsim.study "
                'is imported by each of them: call it below `if __name__ == "__main__":`, or with jobs=1'
            )
        if process.exitcode == _SERVER_LOST and process.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)  # it may live, and its end would remain unnoticed
        worker.pipe.close()
        self._workers.remove(worker)
        if cell is None:
            return
        self._tries[cell.number] += 1
        retry = self._tries[cell.number] < _TRIES and not stopping
        if retry:
            queue.put_back(cell)
        told = stopping and process.exitcode == 0
        self.board.lose(cell, "" if told else _cause(process.exitcode), retry=retry, stopping=stopping)


def _cause(exit_code: int | None) -> str:
    if exit_code is None or exit_code >= 0:
        return f"ended with exit code {exit_code}"
    try:
        return f"was ended by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"was ended by signal {-exit_code}"


def _pickled(given: Mapping[str, Any]) -> bytes:
    """Return the factories that Python code passed, which may be of a notebook; b"" if there are none."""
    if not given:
        return b""
    import cloudpickle  # few studies need it

    from fedsim.training.given_model import GivenModel

    whole = {name: f.starting_runs() if isinstance(f, GivenModel) else f for name, f in given.items()}
    return bytes(cloudpickle.dumps(whole))


def _started(device: Device, given: bytes, files: Mapping[str, plugins.Source]) -> _Worker:
    pipe, end_of_worker = _CONTEXT.Pipe()
    args = end_of_worker, device, given, files, dict(os.environ)
    process = _CONTEXT.Process(target=_serve, args=args, daemon=True)
    with _signals_blocked():
        process.start()
    end_of_worker.close()
    return _Worker(process, pipe)


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block signals in processes that start in the body: the command stops them, also if its whole group gets one."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _serve(
    pipe: Connection,
    device: Device,
    given: bytes,
    files: Mapping[str, plugins.Source],
    environment: Mapping[str, str],
) -> None:
    """Run the cells that come through the pipe until it is closed. Exits with the process that started this one.

    The plug-in files and the environment are those of that process now, not those at the start of the fork server.
    """
    os.environ.clear()
    os.environ.update(environment)
    plugins.provide(files)
    threading.Thread(target=_exit_with_parent, name="parent", daemon=True).start()
    interrupts = Interrupts()
    with interrupts.handled(), suppress(EOFError, OSError):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        from fedsim.studies.cell import CellRunner

        def send(message: CellProgress | CellResult) -> None:
            try:
                pipe.send(message)
            except OSError:  # the parent is gone; the next command resumes the run from its last checkpoint
                os._exit(1)

        if given:
            plugins.keep_given(pickle.loads(given))
        runner = CellRunner(device, interrupts)
        pipe.send(None)  # it has begun
        while not interrupts.asked:
            cell, folder = pipe.recv()
            send(runner.run(cell, folder, send))
