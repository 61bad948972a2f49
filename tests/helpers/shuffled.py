"""A trainer whose jobs finish in any order."""

from __future__ import annotations

import numpy as np

from fedsim.engine.trainer import Pending, Stepped
from fedsim.execution.inline_trainer import InlineTrainer
from fedsim.server.server import Server
from fedsim.server.step_input import StepInput
from fedsim.training.job import Cohort
from fedsim.training.workbench import Workbench


class ShuffledTrainer(InlineTrainer):
    """Finishes jobs in random order, long before or after they are asked for, as a pool of real workers may."""

    def __init__(self, bench: Workbench, server: Server, seed: int) -> None:
        super().__init__(bench, server)
        self._noise = np.random.default_rng(seed)
        self._open: dict[int, Cohort] = {}

    def submit(self, cohort: Cohort) -> None:
        super().submit(cohort)
        self._open |= {int(cohort.ids[i]): cohort.part(slice(i, i + 1)) for i in range(len(cohort))}
        self._finish([job for job in self._open.values() if self._noise.random() < 0.5])

    def forget(self, cohort: Cohort) -> None:
        super().forget(cohort)
        self._drop(cohort)

    def step(self, arrivals: StepInput, cohort: Cohort) -> Pending[Stepped]:
        if self._noise.random() < 0.5:
            self._finish([self._open[job] for job in cohort.ids.tolist()])
        self._drop(cohort)
        return super().step(arrivals, cohort)

    def _finish(self, some: list[Cohort]) -> None:
        for place in self._noise.permutation(len(some)):
            self._ahead(some[place])

    def _drop(self, cohort: Cohort) -> None:
        for job in cohort.ids.tolist():
            self._open.pop(job, None)
