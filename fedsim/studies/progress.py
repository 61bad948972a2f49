"""The progress of a study, recorded in `study.json` and shown: a table in a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from rich.console import Console, Group
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from fedsim.common.terminal import shown
from fedsim.common.units import show_us, show_wall
from fedsim.records.existing_run import State, run_in
from fedsim.studies.folder import StudyFolder
from fedsim.studies.grid import Cell, CellProgress, CellResult

_LEAST_WORK = 0.05
"""The remaining time is estimated once this many cells, or parts of cells, were run."""


class Board:
    """Records the progress of the cells in a study's folder, and shows it.

    Args:
        live: the display of a table that is kept up to date; None prints a line about each finished cell instead.
    """

    def __init__(self, folder: StudyFolder, console: Console, live: Live | None = None) -> None:
        self.folder, self._console, self._live = folder, console, live
        self.failed: list[tuple[Cell, str]] = []
        self.interrupted = False
        self._done_before = folder.count("done")
        self._running: dict[int, CellProgress] = {}
        self._share_at_start: dict[int, float] = {}
        """The share of a cell that was done at its first report: above 0 for a resumed run."""
        self._started = monotonic()

    def begin(self) -> None:
        """Start the clock, and show how many cells are done already, and what else is known about them."""
        self._started = monotonic()
        for note in self.folder.notes:
            self.print(note)
        if self._done_before and self._live is None:
            self.print(f"{self._done_before} of {len(self.folder.cells)} cells are done already")
        self._show()

    def start(self, cell: Cell) -> None:
        """Record that a cell runs."""
        self.folder.set(cell, State("running"))
        self._running[cell.number] = CellProgress(cell.number, 0, 0, 0.0)
        self._show()

    def update(self, progress: CellProgress) -> None:
        """Show the progress of a running cell."""
        if progress.number in self._running:
            self._running[progress.number] = progress
            self._share_at_start.setdefault(progress.number, progress.share if progress.step > 1 else 0.0)
            self._show()

    def finish(self, cell: Cell, result: CellResult) -> None:
        """Record the result of a cell."""
        state = result.state
        self._end(cell, state)
        self.interrupted |= state.status == "interrupted"
        if state.status == "failed":
            error = state.error or "no reason was given"
            self.failed.append((cell, error))
            outcome = f"failed: {error}"
        else:
            mean = "" if math.isnan(result.accuracy) else f", mean accuracy {result.accuracy:.1%}"
            outcome = f"{state.status} in {result.wall_s:.1f} s{mean}{self._to_go()}"
        if state.status == "failed" or self._live is None:
            self.print(f"[{self._ended()}/{len(self.folder.cells)}] {cell.title}: {outcome}")
        self._show()

    def lose(self, cell: Cell, cause: str, *, retry: bool, stopping: bool) -> None:
        """Record that a cell's process ended early; without a `cause` it was told to, before it began the cell.

        The cell has failed unless a new process resumes it (`retry`) or all processes were told to end (`stopping`).
        """
        if cause:
            resumed = "; a new process resumes the cell" if retry else ""
            self.print(f"{cell.title}: its process {cause}{resumed}")
        if retry or stopping:
            self._end(cell, run_in(self.folder.path / cell.folder, cell.config).state)
        else:
            error = f"its process {cause}, for the second time"
            self._end(cell, State("failed", error=error))
            self.failed.append((cell, error))
        self._show()

    def print(self, text: str) -> None:
        """Print a line."""
        self._console.print(text, highlight=False, soft_wrap=True)

    def table(self) -> Group:
        """Return the table of running cells, above a line with the numbers of done, failed, running and left cells."""
        numbers = (Column(heading, justify="right") for heading in ("", "step", "virtual time"))
        rows = Table("running", *numbers, box=None, pad_edge=False)
        for number, at in self._running.items():
            title = shown(self.folder.cells[number].title)
            rows.add_row(title, f"{at.share:.0%}", f"{at.step:,}", show_us(at.time_us))
        cells, running = len(self.folder.cells), len(self._running)
        done, failed = self.folder.count("done"), len(self.failed)
        line = (
            f"{done} of {cells} done, {failed} failed, {running} running, "
            f"{cells - done - failed - running} left{self._to_go()}"
        )
        return Group(rows, Text(line))

    def _end(self, cell: Cell, state: State) -> None:
        self._running.pop(cell.number, None)
        self.folder.set(cell, state)

    def _ended(self) -> int:
        """Return the number of cells that are done or failed."""
        return self.folder.count("done") + len(self.failed)

    def _to_go(self) -> str:
        """Return the estimated time until the end; empty before there is a speed to go by, and at the end."""
        shares = sum(progress.share for progress in self._running.values())
        left = len(self.folder.cells) - self._ended() - shares
        worked = self._ended() - self._done_before + shares - sum(self._share_at_start.values())
        if left <= 0 or worked < _LEAST_WORK:
            return ""
        return f", to go {show_wall((monotonic() - self._started) * left / worked)}"

    def _show(self) -> None:
        if self._live is not None:
            self._live.update(self.table())


@contextmanager
def board_on(folder: StudyFolder, console: Console, quiet: bool = False) -> Iterator[Board]:
    """Yield a board that shows a table if `console` is a terminal that can move its cursor; plain lines if `quiet`."""
    if quiet or not console.is_terminal or console.is_dumb_terminal:
        yield Board(folder, console)
        return
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        yield Board(folder, console, live)
