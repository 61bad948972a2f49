"""What the server knows of its clients: from what they declared, from what it saw of them, and from their reports."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.training.job import Cohort, Reports

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(slots=True)
class ClientRecords:
    """Arrays [K], one entry per client; see `fedsim.engine.selector.View` for their meaning."""

    busy: NDArray[np.bool_]
    """Whether the client has a job, as far as the server knows."""
    dispatched: Ints
    received: Ints
    lost: Ints
    last_step: Ints
    last_dispatch: Ints
    last_duration_us: Ints
    last_staleness: Ints
    last_loss: Floats
    last_loss_rms: Floats
    last_batch_rms: Floats
    accuracy: Floats

    @staticmethod
    def of(n: int) -> ClientRecords:
        """Nothing is known yet of `n` clients."""
        columns: dict[str, NDArray[Any]] = {
            f.name: np.full(n, -1, dtype=np.int64) for f in fields(ClientRecords)
        }
        columns |= {name: np.zeros(n, dtype=np.int64) for name in ("dispatched", "received", "lost")}
        unknown = ("last_loss", "last_loss_rms", "last_batch_rms", "accuracy")
        columns |= {name: np.full(n, np.nan) for name in unknown}
        return ClientRecords(**columns | {"busy": np.zeros(n, dtype=bool)})

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return read-only views of the columns of a View, by name."""
        return {f.name: read_only(getattr(self, f.name)) for f in fields(self)}

    def dispatch(self, clients: Ints, step: int) -> None:
        """Note that each client was given a job by a server that had taken `step` steps."""
        self.dispatched[clients] += 1
        self.last_dispatch[clients] = step
        self.busy[clients] = True

    def dispatch_one(self, client: int, step: int) -> None:
        """The same for a single client: one number is written sooner than an array of one."""
        self.dispatched[client] += 1
        self.last_dispatch[client] = step
        self.busy[client] = True

    def land(self, client: int, duration_us: int) -> None:
        """Note an arrival."""
        self.busy[client] = False
        self.received[client] += 1
        self.last_duration_us[client] = duration_us

    def lose(self, client: int) -> None:
        """Note that a job is lost."""
        self.busy[client] = False
        self.lost[client] += 1

    def use(self, clients: Ints, step: int, staleness: Ints) -> None:
        """Note whose updates a step used."""
        self.last_step[clients] = step
        self.last_staleness[clients] = staleness

    def hear(self, jobs: Cohort, reports: Reports) -> None:
        """Note what jobs reported; of several jobs of a client the last one that says a loss counts."""
        loss = np.where(np.isnan(reports.loss_before), reports.loss_train, reports.loss_before)
        order = np.argsort(jobs.ids, kind="stable")
        said = order[~np.isnan(loss[order])]
        self.last_loss[jobs.clients[said]] = loss[said]
        self.last_loss_rms[jobs.clients[said]] = reports.loss_rms[said]
        self.last_batch_rms[jobs.clients[said]] = reports.batch_rms[said]


def read_only(array: Any) -> Any:
    """Return a view that refuses to be written to."""
    view = array.view()
    view.flags.writeable = False
    return view
