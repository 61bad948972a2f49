"""One cell of a study in one process: begun, or gone on with, and what became of it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedsim.common import plugins
from fedsim.common.errors import Error, RunError
from fedsim.common.machine import forget_peak
from fedsim.common.signals import Interrupts
from fedsim.common.stopwatch import Stopwatch
from fedsim.common.threads import at_most
from fedsim.records.existing_run import State, run_in
from fedsim.records.run_folder import lock
from fedsim.runs.inputs import InputCache
from fedsim.runs.resources import Device, resources
from fedsim.runs.result import Progress, Result, share_done
from fedsim.runs.resume import resume
from fedsim.runs.session import Session
from fedsim.studies.grid import Cell

_TELL_EVERY_S = 0.25
_FREE_WITHIN_S = 10.0
"""How long a folder may be held by a process whose study was killed a moment ago."""


@dataclass(frozen=True, slots=True)
class CellStatus:
    """Where a running cell stands."""

    number: int
    step: int
    time_us: int
    share: float
    """How much of it is done, by steps or virtual time, from 0 to 1."""


@dataclass(frozen=True, slots=True)
class Ended:
    """What became of a cell."""

    number: int
    state: State
    wall_s: float
    accuracy: float
    """Mean over clients at the last evaluation in this process; NaN if there was none."""


class CellRunner:
    """Runs one cell after the other; those that follow each other share data and world where these are alike.

    Args:
        interrupts: what was heard outside of a run; it is passed on to the run that is under way.
    """

    def __init__(self, device: Device, interrupts: Interrupts, cache: InputCache | None = None) -> None:
        self._device, self._interrupts, self._cache = device, interrupts, cache or InputCache()

    def play(self, cell: Cell, folder: Path, tell: Callable[[CellStatus], None]) -> Ended:
        """Run a cell in `folder`, or let the run that is there go on; a run that fails is an answer, not an error.

        Raises KeyboardInterrupt at the second interrupt.
        """
        watch, began = _Watch(cell.number, self._interrupts, tell), time.monotonic()
        accuracy = float("nan")
        try:
            with at_most(1):  # the cores are for the processes
                state, accuracy = self._state(cell, folder, watch)
        except Error as error:
            state = State("failed", error=str(error))
        except Exception as error:  # of a plug-in, say: the other cells are not to blame
            state = State("failed", error=f"{type(error).__name__}: {error}{plugins.line_of(error)}")
        return Ended(cell.number, state, time.monotonic() - began, accuracy)

    def _state(self, cell: Cell, folder: Path, watch: _Watch) -> tuple[State, float]:
        """Return how the cell ended, and its mean accuracy at the end if it is known."""
        _wait_until_free(folder)
        existing = run_in(folder, cell.config)
        if existing.state.status == "done" and not existing.differences:
            return existing.state, float("nan")  # its process was killed before it could say so
        result = self._again(folder, watch) if existing.unfinished else self._anew(cell, folder, watch)
        return State(result.status, result.digest), result.accuracy

    def _again(self, folder: Path, watch: _Watch) -> Result:
        return resume(folder, workers=0, device=self._device, watch=watch)

    def _anew(self, cell: Cell, folder: Path, watch: _Watch) -> Result:
        forget_peak()
        clock = Stopwatch()
        with resources(cell.config, self._cache, device=self._device) as place:
            with clock.part("start"):
                session = Session.create(place.prepare(cell.config), folder, None, clock, force=True)
            return session.run(watch)


class _Watch:
    """Tells now and then where a run stands, and passes an interrupt on that came before the run listened."""

    def __init__(self, number: int, interrupts: Interrupts, tell: Callable[[CellStatus], None]) -> None:
        self.number, self.interrupts, self.tell = number, interrupts, tell
        self._told = 0.0
        self._passed = False

    def __call__(self, progress: Progress) -> None:
        if self.interrupts.asked and not self._passed:
            self._passed = True
            signal.raise_signal(signal.SIGTERM)
        now = time.monotonic()
        if now - self._told >= _TELL_EVERY_S:
            self._told = now
            run_state = progress.run_state
            self.tell(CellStatus(self.number, run_state.step, run_state.now_us, share_done(progress)))


def _wait_until_free(folder: Path) -> None:
    """Wait for another process to let go of a folder. Raises RunError if it does not."""
    until = time.monotonic() + _FREE_WITHIN_S
    while True:
        try:
            with lock(folder, create=False):
                return
        except RunError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
