"""The protocol of what trains: submitted at virtual dispatch, collected at virtual arrival, computed in between."""

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
"""What may still be under way; asking for it waits."""
StepColumns = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Stepped:
    """What a server step was."""

    columns: StepColumns
    """Those of `steps.parquet` that the server knows, under "each" those of `conflicts.parquet`, and under "audited"
    those of `audit.parquet`."""
    reports: Reports
    """What the jobs of the step reported, in order of arrival."""

    def known(self, columns: Mapping[str, Any]) -> Stepped:
        """Add what somebody else knows."""
        return Stepped(self.columns | dict(columns), self.reports)


class Trainer(Protocol):
    """Trains jobs, evaluates models and passes rows to the server, in this process or in others.

    The event loop calls it in virtual order and never sees a tensor or, unless it asks, what clients report. It may go
    on while workers work. Equal calls give equal results whatever the number of workers and the order in which they
    finish.
    """

    def submit(self, cohort: Cohort) -> None:
        """Start training, each job from the version that is current now."""

    def forget(self, cohort: Cohort) -> None:
        """Drop jobs that nobody will ask for, submitted or not, before their clients are given others."""

    def reports(self, cohort: Cohort) -> Reports:
        """Wait for submitted jobs and return what they report; they remain to be collected by a step."""

    def losses(self, clients: NDArray[np.int64], version: int) -> NDArray[np.float64]:
        """Return [k] the mean training loss of the current model, which is of this version, on each client's data."""

    def step(self, arrivals: StepInput, cohort: Cohort) -> Pending[Stepped]:
        """Let the server take a step with submitted jobs, in the order of `arrivals`, and only once with each.

        Later submissions start from its result.
        """

    def evaluate(self, split: str, *, personal: bool = False) -> Pending[Evaluation]:
        """Start evaluating the current model on every client.

        `personal`: each client with the model that it would use itself, after the last of its jobs that a step used.
        """

    def params(self) -> dict[str, torch.Tensor]:
        """Return copies on the CPU of the current parameters `params` [P], and their `average` if there is one.

        Where clients keep models of their own, also these, `personal` [n, P], and whose they are,
        `personal_clients` [n].
        """

    def save(self) -> dict[str, Any]:
        """Return what a checkpoint needs to know of the server, of the models under way, and of what clients keep.

        Waits for the steps under way, and for no job.
        """

    def load(self, saved: Mapping[str, Any], open_jobs: Iterable[Cohort]) -> None:
        """Go on where another trainer of the same run was saved, on any number of workers; before anything else.

        open_jobs: those whose updates may still arrive, and were neither used nor forgotten, one cohort for each of
        `versions`, in order of dispatch within each. They are trained again.
        """

    def peak_bytes(self) -> int:
        """Return the highest resident memory of the processes that it uses besides the calling one."""

    def times(self) -> list[Times]:
        """Return what the stopwatches of the other processes found: of the server, and of each worker."""

    def close(self) -> None:
        """Release everything. Safe to call twice."""
