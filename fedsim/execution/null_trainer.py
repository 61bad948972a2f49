"""A trainer that computes nothing, for `fedsim plan` and for tests of the event loop."""

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
    """Trains nothing, so that the event loop runs without computation."""

    def submit(self, cohort: Cohort) -> None:
        """Do nothing."""

    def forget(self, cohort: Cohort) -> None:
        """Do nothing."""

    def reports(self, cohort: Cohort) -> Reports:
        """Return empty reports."""
        return Reports.nothing(len(cohort))

    def losses(self, clients: NDArray[np.int64], version: int) -> NDArray[np.float64]:
        """Return NaN for each client."""
        return np.full(len(clients), np.nan)

    def update_norms(self, clients: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return NaN for each client."""
        return np.full(len(clients), np.nan)

    def update_products(self, clients: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return NaN for each pair of clients."""
        return np.full((len(clients), len(clients)), np.nan)

    def step(self, arrivals: StepInput, cohort: Cohort) -> Pending[Stepped]:
        """Return the columns that describe the step's input."""
        columns: StepColumns = {"status": "applied" if arrivals.m else "empty"} | arrivals.columns(arrivals.m)
        stepped = Stepped(columns, Reports.nothing(len(cohort)))
        return lambda: stepped

    def evaluate(self, split: str, *, personal: bool = False) -> Pending[Evaluation]:
        """Return an evaluation of no clients."""
        nobody = np.zeros(0, dtype=np.int64)
        return lambda: Evaluation(nobody, nobody, nobody, np.zeros(0))

    def save(self) -> dict[str, Any]:
        """Return an empty dict."""
        return {}

    def load(self, saved: Mapping[str, Any], open_jobs: Iterable[Cohort]) -> None:
        """Do nothing."""

    def params(self) -> dict[str, torch.Tensor]:
        """Return no parameters."""
        return {}

    def peak_bytes(self) -> int:
        """Return 0: there is no other process."""
        return 0

    def times(self) -> list[Times]:
        """Return an empty list: there is no other process."""
        return []

    def close(self) -> None:
        """Do nothing."""
