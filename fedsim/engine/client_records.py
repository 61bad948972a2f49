"""Client records: what the server knows of each client from dispatches, arrivals, losses and reports."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.common.arrays import Floats, Ints
from fedsim.training.job import Cohort, Reports


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
    last_train_loss: Floats
    last_loss_rms: Floats
    last_batch_rms: Floats
    accuracy: Floats
    accuracy_step: Ints

    @staticmethod
    def of(n: int) -> ClientRecords:
        """Return the records of `n` clients before any dispatch."""
        columns: dict[str, NDArray[Any]] = {
            f.name: np.full(n, -1, dtype=np.int64) for f in fields(ClientRecords)
        }
        columns |= {name: np.zeros(n, dtype=np.int64) for name in ("dispatched", "received", "lost")}
        unknown = ("last_loss", "last_train_loss", "last_loss_rms", "last_batch_rms", "accuracy")
        columns |= {name: np.full(n, np.nan) for name in unknown}
        return ClientRecords(**columns | {"busy": np.zeros(n, dtype=bool)})

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return a read-only view of each column by name, as a selector's `View` shows them."""
        return {f.name: read_only(getattr(self, f.name)) for f in fields(self)}

    def received_versions(self, clients: Ints | slice = slice(None)) -> Ints:
        """Return the version [k] of the model that each of `clients` received last, if the server sends it after steps.

        A client receives the model after each step that used its update, and holds the initial model before.
        """
        return self.last_step[clients] + 1

    def dispatch(self, clients: Ints | int, step: int) -> None:
        """Record that the server dispatched a job to each of `clients`, or to one, after `step` steps."""
        self.dispatched[clients] += 1
        self.last_dispatch[clients] = step
        self.busy[clients] = True

    def land(self, client: int, duration_us: int) -> None:
        """Record that the client's update arrived `duration_us` after its dispatch."""
        self.busy[client] = False
        self.received[client] += 1
        self.last_duration_us[client] = duration_us

    def lose(self, client: int) -> None:
        """Record that the server noticed the loss of the client's job."""
        self.busy[client] = False
        self.lost[client] += 1

    def use(self, clients: Ints, step: int, staleness: Ints) -> None:
        """Record that server step `step` used updates of `clients`."""
        self.last_step[clients] = step
        self.last_staleness[clients] = staleness

    def hear(self, jobs: Cohort, reports: Reports) -> None:
        """Record what jobs reported; the client's last dispatched job with a loss counts."""
        loss = np.where(np.isnan(reports.loss_before), reports.loss_train, reports.loss_before)
        order = np.argsort(jobs.ids, kind="stable")
        reported = order[~np.isnan(loss[order])]
        clients = jobs.clients[reported]
        self.last_loss[clients] = loss[reported]
        self.last_train_loss[clients] = reports.loss_train[reported]
        self.last_loss_rms[clients] = reports.loss_rms[reported]
        self.last_batch_rms[clients] = reports.batch_rms[reported]


def read_only(array: Any) -> Any:
    """Return a view of the array that raises ValueError on writing."""
    view = array.view()
    view.flags.writeable = False
    return view
