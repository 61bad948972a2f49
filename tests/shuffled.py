"""A trainer whose jobs finish in any order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedsim.job import Job, Update
from fedsim.local import Workbench
from fedsim.server import Server
from fedsim.trainer import InlineTrainer


class ShuffledTrainer(InlineTrainer):
    """Finishes jobs in random order, long before or after they are asked for, as a pool of real workers may."""

    def __init__(self, bench: Workbench, server: Server, seed: int) -> None:
        super().__init__(bench, server)
        self._done: dict[int, Update] = {}
        self._noise = np.random.default_rng(seed)

    def submit(self, jobs: Sequence[Job]) -> None:
        super().submit(jobs)
        waiting = [job for job, _ in self._waiting.values()]
        some = [job for job in waiting if self._noise.random() < 0.5]
        self._noise.shuffle(some)  # type: ignore[arg-type]
        self._finish(some)

    def results(self, jobs: Sequence[Job]) -> list[Update]:
        left = [job for job in jobs if job.id not in self._done]
        self._noise.shuffle(left)  # type: ignore[arg-type]
        self._finish(left)
        return [self._done.pop(job.id) for job in jobs]

    def _finish(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self._done[job.id] = super().results([job])[0]
