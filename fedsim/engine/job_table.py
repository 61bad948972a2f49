"""Jobs as columns, from their dispatch until they are written: one row each, whose fate is known from the start.

A cohort enters and leaves as arrays. A single job is packed into its row in one go, because arrays of one would cost
ten times as much: asynchronous training hands out work one job at a time.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.engine.record_words import STATUSES
from fedsim.training.job import Cohort, Floats, Ints, Reports
from fedsim.worlds.job_outcomes import Outcomes

RUNNING, LANDED, FREE = -1, -2, -3
"""Values of `status` of a job in flight, of one that has arrived and waits for a step, and of a row without a job."""

_COLUMNS = (
    ("id", "q"),
    ("client", "q"),
    ("nth", "q"),
    ("version", "q"),
    ("share", "d"),
    ("attempt", "q"),
    ("dispatch_us", "q"),
    ("download_us", "q"),
    ("compute_us", "q"),
    ("end_us", "q"),
    ("ok", "q"),
    ("phase", "q"),
    ("downloaded_bytes", "q"),
    ("uploaded_bytes", "q"),
    ("status", "q"),
    ("step", "q"),
    ("loss_before", "d"),
    ("loss_train", "d"),
)
_FATE = ("download_us", "compute_us", "end_us", "ok", "phase", "downloaded_bytes", "uploaded_bytes")
"""Columns that are those of `Outcomes` as well."""
_OF_A_COHORT = ("id", "client", "nth", "version", "share", "dispatch_us")
_WHOLE = tuple(name for name, kind in _COLUMNS if kind == "q")
_KINDS = {"q": np.int64, "d": np.float64}
_ROW = struct.Struct("=" + "".join(kind for _, kind in _COLUMNS))
_NAN = float("nan")


class JobTable:
    """The jobs of a run that are not yet written.

    `ended` holds rows in order of their end. Whoever records a run takes them from there; then their rows are free.
    """

    def __init__(self, capacity: int = 1024) -> None:
        self.table = np.zeros(0, dtype=[(name, _KINDS[kind]) for name, kind in _COLUMNS])
        self.ended: list[int] = []
        self._free: list[int] = []
        self._grow(capacity)

    def _grow(self, capacity: int) -> None:
        before = self.table
        self.table = np.zeros(capacity, dtype=before.dtype)
        self.table[: len(before)] = before
        self.table["status"][len(before) :] = FREE
        self._free.extend(range(capacity - 1, len(before) - 1, -1))
        table: Any = self.table
        self._bytes = memoryview(table.view(np.uint8))
        self._numbers: dict[str, Any] = {name: memoryview(table[name]) for name in _WHOLE}

    def state(self) -> dict[str, Any]:
        """Return everything as plain arrays, for a checkpoint."""
        columns = {name: self.table[name] for name, _ in _COLUMNS}
        lists = {"ended": self.ended, "free": self._free}
        return columns | {name: np.array(rows, dtype=np.int64) for name, rows in lists.items()}

    @staticmethod
    def restored(state: Mapping[str, Any]) -> JobTable:
        """Return the job table whose state this is."""
        job_table = JobTable(len(state["id"]))
        for name, _ in _COLUMNS:
            job_table.table[name] = state[name]
        job_table.ended, job_table._free = state["ended"].tolist(), state["free"].tolist()
        return job_table

    def open(
        self,
        first_id: int,
        clients: Ints,
        nths: Ints,
        version: int,
        shares: Floats,
        attempt: int,
        dispatch_us: int,
        fates: Outcomes,
    ) -> Ints:
        """Enter jobs `first_id`, `first_id + 1`, ... that start together; returns their rows."""
        k = len(clients)
        while len(self._free) < k:
            self._grow(2 * len(self.table))
        rows = np.array(self._free[-k:][::-1], dtype=np.int64)
        del self._free[-k:]
        fresh = np.zeros(k, dtype=self.table.dtype)
        fresh["id"] = np.arange(first_id, first_id + k)
        fresh["client"], fresh["nth"], fresh["share"] = clients, nths, shares
        fresh["version"], fresh["attempt"], fresh["dispatch_us"] = version, attempt, dispatch_us
        for name in _FATE:
            fresh[name] = getattr(fates, name)
        fresh["status"], fresh["step"] = RUNNING, -1
        fresh["loss_before"] = fresh["loss_train"] = _NAN
        self.table[rows] = fresh
        return rows

    def open_one(
        self,
        job: tuple[int, int, int, int],
        attempt: int,
        dispatch_us: int,
        fate: tuple[int, int, int, bool, int, int, int],
    ) -> int:
        """Enter one whole job (id, client, nth, version); its `fate` is in the columns' order. Returns its row."""
        if not self._free:
            self._grow(2 * len(self.table))
        row = self._free.pop()
        values = (*job, 1.0, attempt, dispatch_us, *fate, RUNNING, -1, _NAN, _NAN)
        _ROW.pack_into(self._bytes, row * _ROW.size, *values)
        return row

    def number(self, name: str, row: int) -> int:
        """Return one entry of a column of whole numbers."""
        found: int = self._numbers[name][row]
        return found

    def land(self, row: int) -> None:
        """Note that a running job has arrived."""
        self._numbers["status"][row] = LANDED

    def running(self) -> Ints:
        """Return the rows of jobs in flight, in order of dispatch."""
        rows = np.flatnonzero(self.table["status"] == RUNNING)
        found: Ints = rows[np.argsort(self.table["id"][rows], kind="stable")]
        return found

    def cut(self, rows: Ints, fates: Outcomes) -> None:
        """Replace what becomes of jobs by what they had done when they were stopped."""
        for name in _FATE:
            self.table[name][rows] = getattr(fates, name)

    def end(self, rows: Ints | Sequence[int], status: str, step: int = -1) -> int:
        """End jobs, in this order; `step` used them. Returns the bytes that they moved."""
        if len(rows) == 1:
            return self._end_one(int(rows[0]), status, step)
        at = np.asarray(rows, dtype=np.int64)
        self.table["status"][at], self.table["step"][at] = STATUSES.index(status), step
        self.ended.extend(at.tolist())
        return int(self.table["downloaded_bytes"][at].sum() + self.table["uploaded_bytes"][at].sum())

    def _end_one(self, row: int, status: str, step: int) -> int:
        numbers = self._numbers
        numbers["status"][row], numbers["step"][row] = STATUSES.index(status), step
        self.ended.append(row)
        moved: int = numbers["downloaded_bytes"][row] + numbers["uploaded_bytes"][row]
        return moved

    def amend(self, rows: Ints, status: str) -> None:
        """Say of jobs that have ended how they really did; no step used them."""
        self.table["status"][rows], self.table["step"][rows] = STATUSES.index(status), -1

    def hear(self, rows: Ints, reports: Reports) -> None:
        """Enter what jobs reported; those whose rows are not finite were used by no step."""
        self.table["loss_before"][rows] = reports.loss_before
        self.table["loss_train"][rows] = reports.loss_train
        self.amend(rows[~reports.finite], "nonfinite")

    def cohort(self, rows: Ints) -> Cohort:
        """Return jobs as a cohort."""
        some = self.table[rows]
        return Cohort(*(some[name] for name in _OF_A_COHORT))

    def take(self, count: int | None = None) -> NDArray[Any]:
        """Return the first `count` jobs that ended, all by default, as a structured array; their rows are free then."""
        rows = self.ended[:count]
        found: NDArray[Any] = self.table[rows] if rows else self.table[:0].copy()
        del self.ended[: len(rows)]
        self.table["status"][rows] = FREE
        self._free.extend(rows)
        return found
