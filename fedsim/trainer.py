"""Where jobs are trained. Submitted at virtual dispatch, collected at virtual arrival, computed anywhere in between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from fedsim.job import Job, Report, Update
from fedsim.local import Evaluation, Workbench, chunks_of, per_client
from fedsim.server import Arrivals, Server

Pending = Callable[[], Evaluation]
StepColumns = dict[str, Any]


class Trainer(Protocol):
    """Trains jobs, evaluates models and passes rows to the server, in this process or in others.

    The timeline calls it in virtual order and never sees a tensor. Equal calls give equal results whatever the number
    of workers and the order in which they finish.
    """

    def submit(self, jobs: Sequence[Job]) -> None:
        """Start training, each job from the version that is current now."""

    def results(self, jobs: Sequence[Job]) -> list[Update]:
        """Wait for submitted jobs and hand out what they report, once."""

    def forget(self, jobs: Sequence[Job]) -> None:
        """Drop submitted jobs that nobody will ask for."""

    def step(self, arrivals: Arrivals, updates: Sequence[Update]) -> Callable[[], StepColumns]:
        """Let the server take a step; later submissions start from its result. The columns may be asked for later."""

    def evaluate(self, split: str) -> Pending:
        """Start evaluating the current model on every client; the result may be asked for later."""

    def params(self) -> dict[str, torch.Tensor]:
        """Return copies on the CPU of the current parameters `params` [P], and their `average` if there is one."""

    def peak_bytes(self) -> int:
        """Return the highest resident memory of the processes that it uses besides the calling one."""

    def close(self) -> None:
        """Release everything. Safe to call twice."""


class InlineTrainer:
    """Trains in the calling process when a result is asked for, so that jobs nobody asks for cost nothing."""

    def __init__(self, bench: Workbench, server: Server) -> None:
        self.bench, self.server = bench, server
        self._waiting: dict[int, tuple[Job, torch.Tensor]] = {}

    def submit(self, jobs: Sequence[Job]) -> None:
        """Remember each job with its start parameters."""
        start = self.server.params
        self._waiting.update((job.id, (job, start)) for job in jobs)

    def results(self, jobs: Sequence[Job]) -> list[Update]:
        """Train the jobs one after the other."""
        rows = torch.empty(len(jobs), len(self.server.params), device=self.bench.device)
        updates = []
        for index, wanted in enumerate(jobs):
            job, start = self._waiting.pop(wanted.id)
            report = self.bench.run(job, start.to(self.bench.device), out=rows[index])
            updates.append(Update(report, rows, index))
        return updates

    def forget(self, jobs: Sequence[Job]) -> None:
        """Drop jobs and with them their hold on old parameters."""
        for job in jobs:
            self._waiting.pop(job.id, None)

    def step(self, arrivals: Arrivals, updates: Sequence[Update]) -> Callable[[], StepColumns]:
        """Take the step now."""
        columns = self.server.step(arrivals, [u.store[u.index] for u in updates])
        return lambda: columns

    def evaluate(self, split: str) -> Pending:
        """Evaluate now."""
        rows = self.bench.splits[split]
        params = (self.server.params if self.server.average is None else self.server.average).to(
            self.bench.device
        )
        result = per_client(rows, [self.bench.evaluate(params, split, a, b) for a, b in chunks_of(rows, 1)])
        return lambda: result

    def params(self) -> dict[str, torch.Tensor]:
        """Return copies on the CPU of the current parameters, and their average if there is one."""
        return named(self.server.params.cpu().clone(), self.server.average)

    def peak_bytes(self) -> int:
        """There is no other process."""
        return 0

    def close(self) -> None:
        """Forget all waiting jobs."""
        self._waiting.clear()


class PlanningTrainer:
    """Trains nothing: the same timeline without its computation, for planning and for tests of timing."""

    def submit(self, jobs: Sequence[Job]) -> None:
        """Do nothing."""

    def results(self, jobs: Sequence[Job]) -> list[Update]:
        """Report updates without content."""
        return [Update(Report(), None, 0) for _ in jobs]

    def forget(self, jobs: Sequence[Job]) -> None:
        """Do nothing."""

    def step(self, arrivals: Arrivals, updates: Sequence[Update]) -> Callable[[], StepColumns]:
        """Say whether there would have been anything to apply."""
        columns: StepColumns = {"status": "applied" if updates else "empty"}
        return lambda: columns

    def evaluate(self, split: str) -> Pending:
        """Report that no client was evaluated."""
        nobody = np.zeros(0, dtype=np.int64)
        return lambda: Evaluation(nobody, nobody, nobody, np.zeros(0))

    def params(self) -> dict[str, torch.Tensor]:
        """Return no parameters."""
        return {}

    def peak_bytes(self) -> int:
        """There is no other process."""
        return 0

    def close(self) -> None:
        """Do nothing."""


def named(params: torch.Tensor, average: torch.Tensor | None) -> dict[str, torch.Tensor]:
    """Name the tensors that make up a final model."""
    return {"params": params} if average is None else {"params": params, "average": average.cpu().clone()}
