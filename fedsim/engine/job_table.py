"""The job table: one row per job from its dispatch until it is recorded, with its outcome known from the start.

A cohort enters and leaves as arrays. A single job is packed into its row at once, because arrays of one are slow and
asynchronous training dispatches one job at a time.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.common.arrays import Floats, Ints
from fedsim.engine.record_words import STATUSES
from fedsim.training.job import Cohort, Reports
from fedsim.worlds.interval_index import NEVER
from fedsim.worlds.job_outcomes import Outcomes

RUNNING, LANDED, FREE = -1, -2, -3
"""Values of `status` for a job in flight, a job that arrived and waits for a step, and a row without a job."""

_COLUMNS = (
    ("id", "q"),
    ("client", "q"),
    ("nth", "q"),
    ("version", "q"),
    ("start", "q"),
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
    ("inclusion", "d"),
)
_FATE = ("download_us", "compute_us", "end_us", "ok", "phase", "downloaded_bytes", "uploaded_bytes")
"""Columns that `Outcomes` has as well."""
_OF_A_COHORT = ("id", "client", "nth", "version", "share", "dispatch_us", "start")
_WHOLE = tuple(name for name, kind in _COLUMNS if kind == "q")
_KINDS = {"q": np.int64, "d": np.float64}
_ROW = struct.Struct("=" + "".join(kind for _, kind in _COLUMNS))
_NAN = float("nan")


class JobTable:
    """The jobs of a run that are not recorded yet.

    `ended` lists the rows of ended jobs in order of their end. The recorder removes them with `take`, which frees the
    rows.
    """

    def __init__(self, capacity: int = 1024) -> None:
        self.table = np.zeros(0, dtype=[(name, _KINDS[kind]) for name, kind in _COLUMNS])
        self.ended: list[int] = []
        self._taken = 0
        """Number of jobs that `take` has removed."""
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
        """Return the table as plain arrays, for a checkpoint."""
        columns = {name: self.table[name] for name, _ in _COLUMNS}
        lists = {"ended": self.ended, "free": self._free}
        return columns | {name: np.array(rows, dtype=np.int64) for name, rows in lists.items()}

    @staticmethod
    def restored(state: Mapping[str, Any]) -> JobTable:
        """Return the job table with this `state()`."""
        job_table = JobTable(len(state["id"]))
        for name, _ in _COLUMNS:
            job_table.table[name] = state[name]
        job_table.ended, job_table._free = state["ended"].tolist(), state["free"].tolist()
        return job_table

    def open(self, jobs: Cohort, attempt: int, fates: Outcomes, inclusion: Floats | float = _NAN) -> Ints:
        """Enter jobs that were dispatched together, with their outcomes; return their rows.

        inclusion: [k] the probability with which each client was chosen, NaN if unknown.
        """
        rows = self._take_free(len(jobs))
        fresh = np.zeros(len(jobs), dtype=self.table.dtype)
        fresh["id"], fresh["client"], fresh["nth"], fresh["share"] = (
            jobs.ids,
            jobs.clients,
            jobs.nths,
            jobs.shares,
        )
        fresh["version"], fresh["attempt"], fresh["dispatch_us"] = jobs.versions, attempt, jobs.dispatch_us
        fresh["start"] = jobs.start_versions
        for name in _FATE:
            fresh[name] = getattr(fates, name)
        fresh["status"], fresh["step"] = RUNNING, -1
        fresh["loss_before"] = fresh["loss_train"] = _NAN
        fresh["inclusion"] = inclusion
        self.table[rows] = fresh
        return rows

    def _take_free(self, k: int) -> Ints:
        while len(self._free) < k:
            self._grow(2 * len(self.table))
        rows = np.array(self._free[-k:][::-1], dtype=np.int64)
        del self._free[-k:]
        return rows

    def open_one(
        self,
        job: tuple[int, int, int, int],
        attempt: int,
        dispatch_us: int,
        fate: tuple[int, int, int, bool, int, int, int],
        inclusion: float = _NAN,
    ) -> int:
        """Enter one whole job (id, client, nth, version) with its outcome in the order of `_FATE`; return its row.

        The job starts from the parameters of its version.
        """
        if not self._free:
            self._grow(2 * len(self.table))
        row = self._free.pop()
        values = (*job, job[3], 1.0, attempt, dispatch_us, *fate, RUNNING, -1, _NAN, _NAN, inclusion)
        _ROW.pack_into(self._bytes, row * _ROW.size, *values)
        return row

    def number(self, name: str, row: int) -> int:
        """Return the entry of integer column `name` in a row."""
        number: int = self._numbers[name][row]
        return number

    def land(self, row: int) -> None:
        """Mark a running job as arrived."""
        self._numbers["status"][row] = LANDED

    def running(self) -> Ints:
        """Return the rows of jobs in flight, in order of dispatch."""
        rows: Ints = np.flatnonzero(self.table["status"] == RUNNING)
        return rows[np.argsort(self.table["id"][rows], kind="stable")]

    def cut(self, rows: Ints, fates: Outcomes) -> None:
        """Replace the outcomes of jobs by those at the time when they were stopped."""
        for name in _FATE:
            self.table[name][rows] = getattr(fates, name)

    def end(self, rows: Ints | Sequence[int], status: str, step: int = -1) -> int:
        """End jobs in this order; `step` used them, -1 if none did. Return the bytes that they moved."""
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

    def mark(self) -> int:
        """Return the number of jobs that have ended so far, for `go_back`."""
        return self._taken + len(self.ended)

    def go_back(self, mark: int, version: int) -> None:
        """Let jobs run again that ended after `mark` or wait for a step, and remove jobs of versions after `version`.

        Outcomes of jobs that were cut are gone: they end at NEVER, until they are cut again.
        """
        rows, table = np.array(self.ended[mark - self._taken :], dtype=np.int64), self.table
        del self.ended[mark - self._taken :]
        cut = (table["status"][rows] == STATUSES.index("late")) & (table["ok"][rows] == 0)
        table["end_us"][rows[cut]] = NEVER
        table["status"][rows], table["step"][rows] = RUNNING, -1
        table["status"][table["status"] == LANDED] = RUNNING
        fresh = np.flatnonzero((table["status"] == RUNNING) & (table["version"] > version))
        table["status"][fresh] = FREE
        self._free.extend(fresh.tolist())

    def amend(self, rows: Ints, status: str) -> None:
        """Correct the status of ended jobs that no step used."""
        self.table["status"][rows], self.table["step"][rows] = STATUSES.index(status), -1

    def hear(self, rows: Ints, reports: Reports) -> None:
        """Enter the losses that jobs reported; jobs whose updates are not finite become `nonfinite`."""
        self.table["loss_before"][rows] = reports.loss_before
        self.table["loss_train"][rows] = reports.loss_train
        self.amend(rows[~reports.finite], "nonfinite")

    def cohort(self, rows: Ints) -> Cohort:
        """Return the jobs in `rows` as a cohort."""
        jobs = self.table[rows]
        return Cohort(*(jobs[name] for name in _OF_A_COHORT))

    def take(self, count: int | None = None) -> NDArray[Any]:
        """Remove the first `count` ended jobs, all by default, and return them as a structured array."""
        rows = self.ended[:count]
        jobs: NDArray[Any] = self.table[rows] if rows else self.table[:0].copy()
        del self.ended[: len(rows)]
        self._taken += len(rows)
        self.table["status"][rows] = FREE
        self._free.extend(rows)
        return jobs
