"""The protocol of trainers: the event loop submits jobs at dispatch, and a server step collects them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedsim.common.stopwatch import Times
from fedsim.server.step_input import StepInput
from fedsim.training.evaluation import Evaluation
from fedsim.training.job import Cohort, Reports

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
Pending = Callable[[], T]
"""A result that may still be computed; the call waits for it."""
StepColumns = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Stepped:
    """The result of a server step."""

    columns: StepColumns
    """The server's columns of `steps.parquet`; under "each" those of `conflicts.parquet`, under "audited" those of
    `audit.parquet`."""
    reports: Reports
    """Reports of the step's jobs, in order of arrival."""

    def known(self, columns: Mapping[str, Any]) -> Stepped:
        """Return a copy with further columns."""
        return Stepped(self.columns | dict(columns), self.reports)


class Trainer(Protocol):
    """Trains jobs, evaluates models and passes updates to the server, in this process or in others.

    The event loop calls it in the order of virtual time. It never sees a tensor, and sees reports only if it asks. It
    may continue while workers compute. Equal calls give equal results, whatever the number of workers and the order in
    which they finish.
    """

    def submit(self, cohort: Cohort) -> None:
        """Start training the jobs of a cohort, whose version is the current one, each from the model of its start."""

    def forget(self, cohort: Cohort) -> None:
        """Drop jobs that no step will use, submitted or not, before their clients receive further jobs."""

    def reports(self, cohort: Cohort) -> Reports:
        """Wait for submitted jobs and return their reports; a step collects the jobs later."""

    def losses(self, clients: NDArray[np.int64], version: int) -> NDArray[np.float64]:
        """Return the mean training loss [k] of the current model, whose version is `version`, on each client's data."""

    def update_norms(self, clients: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the norms [c] of the last updates of clients that a step received, NaN without one.

        Waits for pending steps. Asked only for a selector that declares `norms` or `updates`.
        """

    def update_products(self, clients: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the inner products [c, c] of the same updates, NaN without one.

        Asked only for a selector that declares `updates`.
        """

    def step(self, arrivals: StepInput, cohort: Cohort) -> Pending[Stepped]:
        """Let the server take a step with submitted jobs, in the order of `arrivals`; each job is used only once.

        Later submissions start from the resulting model.
        """

    def evaluate(self, split: str, *, personal: bool = False) -> Pending[Evaluation]:
        """Start evaluating the current model on every client.

        `personal`: each client with its personal model, after the last of its jobs that a step used.
        """

    def params(self) -> dict[str, torch.Tensor]:
        """Return copies on the CPU of the current parameters `params` [P], and of their `average` if there is one.

        If clients keep personal models, return these as well, `personal` [n, P], and their clients,
        `personal_clients` [n].
        """

    def save(self) -> dict[str, Any]:
        """Return what a checkpoint stores: the server's state, the start models of open jobs, and what clients keep.

        Waits for pending steps, but not for jobs.
        """

    def load(self, saved: Mapping[str, Any], open_jobs: Iterable[Cohort]) -> None:
        """Resume from what another trainer of the same run saved, on any number of workers; call it first.

        open_jobs: jobs whose updates may still arrive, neither used nor forgotten: one cohort for each of `versions`
        that jobs started from, in order of dispatch within each. They are trained again.
        """

    def peak_bytes(self) -> int:
        """Return the peak resident memory, in bytes, of the trainer's processes without the calling one."""

    def times(self) -> list[Times]:
        """Return the stopwatch times of the other processes: the server and each worker."""

    def close(self) -> None:
        """Release all resources. Safe to call twice."""
