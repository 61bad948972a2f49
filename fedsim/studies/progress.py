"""How a study stands, for people: one table in a terminal, one line for each finished cell elsewhere."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fedsim.common.terminal import shown
from fedsim.common.units import show_us
from fedsim.studies.cell import CellStatus, Ended
from fedsim.studies.grid import Cell

_LEAST_WORKED = 0.05
"""Cells: from less than that no pace is told."""


class Board:
    """Counts cells and says what happens to them.

    Args:
        live: where the table is kept up to date; None writes a line about each finished cell instead.
    """

    def __init__(self, console: Console, live: Live | None = None) -> None:
        self._console, self._live = console, live
        self._cells = self._before = self._done = self._failed = 0
        self._running: dict[int, tuple[Cell, CellStatus]] = {}
        self._first: dict[int, float] = {}
        """How much of a cell was done when it was first heard of: it may go on from a checkpoint."""
        self._started = monotonic()

    def begin(self, cells: int, done: int) -> None:
        """Say how many cells there are, and how many were done before."""
        self._cells, self._before, self._started = cells, done, monotonic()
        if done and self._live is None:
            self.say(f"{done} of {cells} cells are done already")
        self._show()

    def begun(self, cell: Cell) -> None:
        """Show a cell as running."""
        self._running[cell.number] = (cell, CellStatus(cell.number, 0, 0, 0.0))
        self._show()

    def told(self, standing: CellStatus) -> None:
        """Show where a running cell stands."""
        if standing.number in self._running:
            self._running[standing.number] = (self._running[standing.number][0], standing)
            self._first.setdefault(standing.number, standing.share if standing.step > 1 else 0.0)
            self._show()

    def ended(self, cell: Cell, ended: Ended) -> None:
        """Count a cell; say why it failed."""
        self._running.pop(cell.number, None)
        self._done += ended.state.status == "done"
        self._failed += ended.state.status == "failed"
        if ended.state.status == "failed":
            self.say(f"{self._place()} {cell.title}: failed: {ended.state.error}")
        elif self._live is None:
            mean = "" if math.isnan(ended.accuracy) else f", mean accuracy {ended.accuracy:.1%}"
            self.say(
                f"{self._place()} {cell.title}: {ended.state.status} in {ended.wall_s:.1f} s{mean}{self._to_go()}"
            )
        self._show()

    def lost(self, cell: Cell, how: str, *, again: bool) -> None:
        """Say that a process was killed."""
        self._running.pop(cell.number, None)
        self.say(f"{cell.title}: its process {how}" + ("; another one goes on with it" if again else ""))
        self._show()

    def say(self, text: str) -> None:
        """Write a line."""
        self._console.print(text, highlight=False, soft_wrap=True)

    def table(self) -> Group:
        """Return the table: where each running cell stands, and below how many are done, failed, running and left."""
        rows = Table(box=None, pad_edge=False)
        for heading in ("running", "", "step", "virtual time"):
            rows.add_column(heading, justify="left" if heading == "running" else "right")
        for cell, at in self._running.values():
            rows.add_row(shown(cell.title), f"{at.share:.0%}", f"{at.step:,}", show_us(at.time_us))
        running, over = len(self._running), self._before + self._done
        line = (
            f"{over} of {self._cells} done, {self._failed} failed, {running} running, "
            f"{self._cells - over - self._failed - running} left{self._to_go()}"
        )
        return Group(rows, Text(line))

    def _place(self) -> str:
        return f"[{self._before + self._done + self._failed}/{self._cells}]"

    def _to_go(self) -> str:
        """Say how much longer it will take at the pace so far; nothing before there is one, or at the end."""
        shares = sum(at.share for _, at in self._running.values())
        left = self._cells - self._before - self._done - self._failed - shares
        worked = self._done + self._failed + shares - sum(self._first.values())
        if left <= 0 or worked < _LEAST_WORKED:
            return ""
        return f", to go {shown_duration((monotonic() - self._started) * left / worked)}"

    def _show(self) -> None:
        if self._live is not None:
            self._live.update(self.table())


def shown_duration(seconds: float) -> str:
    """Write a wall time for people: `40 s`, `12 min`, `3.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@contextmanager
def board_on(console: Console, quiet: bool = False) -> Iterator[Board]:
    """Yield the board of a study: a table where there is a terminal, plain lines elsewhere and if `quiet`."""
    if quiet or not console.is_terminal or console.is_dumb_terminal:
        yield Board(console)
        return
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        yield Board(console, live)
