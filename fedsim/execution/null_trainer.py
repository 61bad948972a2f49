"""An event loop without training: for `fedsim plan`, and for tests of timing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedsim.common.stopwatch import Times
from fedsim.engine.trainer import Pending, StepColumns, Stepped
from fedsim.server.step_input import StepInput
from fedsim.training.evaluation import Evaluation
from fedsim.training.job import Cohort, Reports


class NullTrainer:
    """Trains nothing: the same event loop without its computation, for planning and for tests of timing."""

    def submit(self, cohort: Cohort) -> None:
        """Do nothing."""

    def forget(self, cohort: Cohort) -> None:
        """Do nothing."""

    def reports(self, cohort: Cohort) -> Reports:
        """Know none."""
        return Reports.nothing(len(cohort))

    def losses(self, clients: NDArray[np.int64], version: int) -> NDArray[np.float64]:
        """Know none."""
        return np.full(len(clients), np.nan)

    def step(self, arrivals: StepInput, cohort: Cohort) -> Pending[Stepped]:
        """Say what the server would have been given."""
        columns: StepColumns = {"status": "applied" if arrivals.m else "empty"} | arrivals.columns(arrivals.m)
        stepped = Stepped(columns, Reports.nothing(len(cohort)))
        return lambda: stepped

    def evaluate(self, split: str, *, personal: bool = False) -> Pending[Evaluation]:
        """Report that no client was evaluated."""
        nobody = np.zeros(0, dtype=np.int64)
        return lambda: Evaluation(nobody, nobody, nobody, np.zeros(0))

    def save(self) -> dict[str, Any]:
        """Have nothing to save."""
        return {}

    def load(self, saved: Mapping[str, Any], open_jobs: Iterable[Cohort]) -> None:
        """Take over nothing."""

    def params(self) -> dict[str, torch.Tensor]:
        """Return no parameters."""
        return {}

    def peak_bytes(self) -> int:
        """There is no other process."""
        return 0

    def times(self) -> list[Times]:
        """There is no other process."""
        return []

    def close(self) -> None:
        """Do nothing."""
