"""A job is one client training one model once; a cohort is several jobs as columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedsim.common.arrays import Floats, Ints

if TYPE_CHECKING:
    import torch  # a configuration is read without it


@dataclass(frozen=True, slots=True)
class Job:
    """Everything that determines the result of a client's training, besides its data and the start parameters."""

    id: int
    """Number of the job in order of dispatch, from 0."""
    client: int
    nth: int
    """Number of earlier jobs of the client. Minibatches are drawn from (seed, client, nth), so two runs that choose
    clients differently still give a client the same minibatches in its n-th job."""
    version: int
    """Number of server steps before the dispatch. The job starts from their parameters, unless its cohort has other
    `starts`."""
    share: float = 1.0
    """Share of the configured local steps that the client takes, rounded down to at least one step."""
    dispatch_us: int = 0
    """Virtual time of the dispatch. Training ignores it; adversaries may use it."""


@dataclass(frozen=True, slots=True)
class Report:
    """The few numbers that a client sends beside its update."""

    loss_before: float = math.nan
    """Mean loss over the client's training samples at the start parameters; NaN unless the rule asks for it."""
    loss_train: float = math.nan
    """Mean loss over the samples of all minibatches of the job, each taken before its gradient step."""
    loss_rms: float = math.nan
    """Root mean square of the losses of the same samples, each counted as often as the client trained on it."""
    batch_rms: float = math.nan
    """Root mean square of the losses of the samples of the last minibatch."""
    loss_after: float = math.nan
    """Mean loss over the client's training samples at its own end parameters; NaN unless the rule asks for it."""
    accuracy_after: float = math.nan
    """Accuracy on the client's training samples at its own end parameters; NaN unless the rule asks for it."""
    finite: bool = True
    """Whether every entry of the update is finite."""


@dataclass(frozen=True, slots=True)
class Cohort:
    """k jobs as columns: arrays [k], in the order of dispatch or of arrival."""

    ids: Ints
    clients: Ints
    nths: Ints
    versions: Ints
    shares: Floats
    dispatch_us: Ints
    starts: Ints | None = None
    """Server step whose parameters each job starts from, at most its version; None: the versions."""

    def __len__(self) -> int:
        return len(self.ids)

    @staticmethod
    def of(jobs: Sequence[Job]) -> Cohort:
        """Return the jobs as columns."""
        columns = [(j.id, j.client, j.nth, j.version, j.dispatch_us) for j in jobs]
        ids, clients, nths, versions, times = np.array(columns, dtype=np.int64).reshape(len(jobs), 5).T
        shares = np.array([j.share for j in jobs], dtype=np.float64)
        return Cohort(ids, clients, nths, versions, shares, times)

    def job(self, i: int) -> Job:
        """Return the i-th job."""
        numbers = self.ids.item(i), self.clients.item(i), self.nths.item(i), self.versions.item(i)
        return Job(*numbers, self.shares.item(i), self.dispatch_us.item(i))

    def part(self, which: slice | NDArray[np.generic]) -> Cohort:
        """Return the jobs `which`."""
        columns = {f.name: getattr(self, f.name) for f in fields(self)}
        return replace(
            self, **{name: column[which] for name, column in columns.items() if column is not None}
        )

    @property
    def start_versions(self) -> Ints:
        """[k] Server step whose parameters each job starts from."""
        return self.versions if self.starts is None else self.starts


def nth_jobs(ids: Ints, clients: Ints) -> Ints:
    """Return [J] how many earlier jobs each job's client has."""
    order = np.lexsort((ids, clients))
    ordered, nths = clients[order], np.empty(len(ids), dtype=np.int64)
    nths[order] = np.arange(len(ids)) - np.searchsorted(ordered, ordered)
    return nths


@dataclass(frozen=True, slots=True)
class Reports:
    """The reports of k jobs as columns [k]; see `Report` for their meaning."""

    loss_before: Floats
    loss_train: Floats
    loss_rms: Floats
    batch_rms: Floats
    loss_after: Floats
    accuracy_after: Floats
    finite: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.finite)

    @staticmethod
    def nothing(k: int) -> Reports:
        """Return k reports with all losses NaN and `finite` true."""
        numbers = {f.name: np.full(k, math.nan) for f in fields(Reports) if f.name != "finite"}
        return Reports(**numbers, finite=np.ones(k, dtype=bool))

    @staticmethod
    def of(reports: Sequence[Report]) -> Reports:
        """Return the reports as columns."""
        columns = {f.name: np.array([getattr(r, f.name) for r in reports]) for f in fields(Reports)}
        finite = columns.pop("finite").astype(bool)
        return Reports(**{name: c.astype(np.float64) for name, c in columns.items()}, finite=finite)

    @staticmethod
    def joined(parts: Sequence[Reports]) -> Reports:
        """Return the reports of all parts, in order."""
        parts = parts or [Reports.nothing(0)]
        return Reports(*(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Reports)))

    def report(self, i: int) -> Report:
        """Return the i-th report."""
        return Report(**{f.name: getattr(self, f.name).item(i) for f in fields(self)})

    def enter(self, which: Ints, reports: Reports) -> None:
        """Write `reports` to the positions `which`."""
        for f in fields(self):
            getattr(self, f.name)[which] = getattr(reports, f.name)

    def part(self, which: slice | NDArray[np.generic]) -> Reports:
        """Return the reports `which`."""
        return Reports(*(getattr(self, f.name)[which] for f in fields(self)))


def update_norm(row: torch.Tensor) -> float:
    """Return the norm of an update [P], in float64, with which a limit on updates is compared."""
    # A new tensor: neither overflow nor the row's alignment in memory changes the last bit.
    return float(row.double().norm())
