"""Runs the cells of a study in one process."""

from __future__ import annotations

import math
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path

from fedsim import plugins
from fedsim.common.errors import Changed, Error
from fedsim.common.machine import forget_peak
from fedsim.common.signals import Interrupts
from fedsim.common.stopwatch import Stopwatch
from fedsim.common.threads import at_most
from fedsim.records.existing_run import State, run_in
from fedsim.records.run_folder import is_running
from fedsim.runs.inputs import InputCache
from fedsim.runs.progress import Progress, Watch, share_done
from fedsim.runs.resources import Device, resources
from fedsim.runs.result import Result
from fedsim.runs.resume import resume
from fedsim.runs.session import Session
from fedsim.studies.grid import Cell, CellProgress, CellResult

_REPORT_EVERY_S = 0.25
_FREE_WITHIN_S = 10.0
"""How long a process whose study was killed may still lock a folder."""


class CellRunner:
    """Runs one cell after the other; successive cells with equal data or world share it.

    Args:
        interrupts: the interrupts between runs, which are passed on to the current run.
    """

    def __init__(self, device: Device, interrupts: Interrupts, cache: InputCache | None = None) -> None:
        self._device, self._interrupts, self._cache = device, interrupts, cache or InputCache()

    def run(self, cell: Cell, folder: Path, report: Callable[[CellProgress], None]) -> CellResult:
        """Run a cell in `folder`, or resume its run there; if the run fails, the result holds the error.

        Raises KeyboardInterrupt at a Ctrl-C after an interrupt.
        """
        watch, started = _Watch(cell.number, self._interrupts, report), time.monotonic()
        accuracy = math.nan
        try:
            with at_most(1):  # the cores are for the processes
                state, accuracy = self._run(cell, folder, watch)
        except Error as error:
            state = State("failed", error=str(error))
        except Exception as error:  # such as an error of a plug-in: it concerns this cell alone
            state = State("failed", error=f"{type(error).__name__}: {error}{plugins.line_of(error)}")
        return CellResult(state, time.monotonic() - started, accuracy)

    def _run(self, cell: Cell, folder: Path, watch: Watch) -> tuple[State, float]:
        """Return the state of the cell at its end, and its mean accuracy; NaN if it ended in another process."""
        deadline = time.monotonic() + _FREE_WITHIN_S
        while is_running(folder) and time.monotonic() < deadline:
            time.sleep(0.1)
        existing = run_in(folder, cell.config)
        if existing.state.status == "done" and not existing.differences:
            return existing.state, math.nan  # its process was killed before it sent the result
        if existing.unfinished:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", Changed)  # the study's notes tell of it
                result = resume(folder, workers=0, device=self._device, watch=watch, progress=False)
        else:
            result = self._start(cell, folder, watch)
        self._interrupts.asked |= result.asked_to_stop
        return State(result.status, result.digest), result.accuracy

    def _start(self, cell: Cell, folder: Path, watch: Watch) -> Result:
        forget_peak()
        clock = Stopwatch()
        with resources(cell.config, self._cache, device=self._device) as place:
            with clock.part("start"):
                session = Session.create(place.prepare(cell.config), folder, None, clock, force=True)
            return session.run(watch)


class _Watch:
    """Reports the progress of a run, and passes on an interrupt that came before the run listened."""

    def __init__(self, number: int, interrupts: Interrupts, report: Callable[[CellProgress], None]) -> None:
        self.number, self.interrupts, self.report = number, interrupts, report
        self._reported_s = 0.0
        self._passed_on = False

    def __call__(self, progress: Progress) -> None:
        if self.interrupts.asked and not self._passed_on:
            self._passed_on = True
            signal.raise_signal(signal.SIGTERM)
        now = time.monotonic()
        if now - self._reported_s >= _REPORT_EVERY_S:
            self._reported_s = now
            run_state = progress.run_state
            self.report(CellProgress(self.number, run_state.step, run_state.now_us, share_done(progress)))
