"""The order in which the cells of a study run: cells with equal data and world follow each other in one process."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable

from fedsim.runs.inputs import alike
from fedsim.studies.grid import Cell


class Queue:
    """The waiting cells in groups of equal seed, data and world, seed by seed, so that early results are paired."""

    def __init__(self, cells: Iterable[Cell], seeds: tuple[int, ...]) -> None:
        place = {seed: n for n, seed in enumerate(seeds)}
        self._groups: list[deque[Cell]] = []
        for cell in sorted(cells, key=lambda c: (place[c.seed], c.number)):
            self._group_of(cell).append(cell)

    def _group_of(self, cell: Cell) -> deque[Cell]:
        """Return the group of a cell, which is a new one if none exists."""
        for group in reversed(self._groups):
            if group[0].seed == cell.seed and alike(group[0].config, cell.config):
                return group
        self._groups.append(deque())
        return self._groups[-1]

    def __len__(self) -> int:
        return sum(map(len, self._groups))

    def take(self, last: Cell | None = None, others: Collection[Cell] = ()) -> Cell | None:
        """Return the next cell for a process that ran `last` while others run `others`; None if no cell waits.

        It comes from the group of `last`, else from the first group that no process runs, else from the largest.
        """
        if not self._groups:
            return None
        free = [g for g in self._groups if not any(alike(g[0].config, other.config) for other in others)]
        own = [g for g in self._groups if last is not None and alike(g[0].config, last.config)]
        cell = (own or free or [max(self._groups, key=len)])[0].popleft()
        self._groups = [group for group in self._groups if group]
        return cell

    def put_back(self, cell: Cell) -> None:
        """Make a cell the next of its group."""
        self._group_of(cell).appendleft(cell)
