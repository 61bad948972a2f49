"""A trainer whose jobs finish in any order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from fedsim.job import Job, Update
from fedsim.local import Workbench
from fedsim.server import Server
from fedsim.trainer import InlineTrainer, Work


class ShuffledTrainer(InlineTrainer):
    """Finishes jobs in random order, long before or after they are asked for, as a pool of real workers may."""

    def __init__(self, bench: Workbench, server: Server, seed: int) -> None:
        super().__init__(bench, server)
        self._noise = np.random.default_rng(seed)

    def submit(self, jobs: Sequence[Job]) -> None:
        super().submit(jobs)
        self._train_shuffled([work for work in self._waiting.values() if self._noise.random() < 0.5])

    def results(self, jobs: Sequence[Job]) -> list[Update]:
        self._train_shuffled([self._waiting[job.id] for job in jobs])
        return super().results(jobs)

    def _train_shuffled(self, some: list[Work]) -> None:
        for place in self._noise.permutation(len(some)):
            work = some[place]
            work.update = self._finish(work, torch.empty(1, len(self.server.params)), 0)
