"""Counts the events of a planned run: jobs, remembered updates, samples of training and of evaluations."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedsim.common.arrays import Ints
from fedsim.data.federated_data import UNSEEN
from fedsim.engine.record_words import STATUSES
from fedsim.engine.remembered import Memory
from fedsim.engine.state import RunState
from fedsim.engine.trainer import Pending, Stepped
from fedsim.execution.null_trainer import NullTrainer
from fedsim.records.recorder import Recorder
from fedsim.runs.spec import RunSpec
from fedsim.server.step_input import StepInput
from fedsim.training.evaluation import Evaluation
from fedsim.training.job import Cohort

_LOSSES = 2 / 3
"""What an audit's two forward passes over a client's samples cost, in passes of training."""


@dataclass
class Tally:
    """Counts the events of a run, and passes them on to a Recorder if it has one."""

    run_state: RunState
    memory: Memory
    recorder: Recorder | None = None
    staleness: list[Ints] = field(default_factory=list)
    step_us: list[int] = field(default_factory=list)
    remembered: list[int] = field(default_factory=list)
    """Remembered updates of absent clients at each step."""
    jobs: dict[str, int] = field(default_factory=dict)
    waits: int = 0
    evaluated: set[tuple[int, int, str]] = field(default_factory=set)
    """Step, time and split of each evaluation."""

    def step(self, result: Pending[Stepped], rows: Ints) -> None:
        """Count a step and the jobs that ended with it."""
        columns = result().columns
        self.step_us.append(columns["time_us"])
        self.waits += columns["waits"]
        ended = self.run_state.job_table.table[rows]
        used = ended["step"] >= 0
        self.staleness.append((ended["step"] - ended["version"])[used])
        self.remembered.append(self._absent(columns["step"], columns["time_us"], ended["client"][used]))
        if self.recorder is None:
            self.crowded()
        else:
            self.recorder.step(result, rows)

    def _absent(self, step: int, now_us: int, present: Ints) -> int:
        """Return how many updates of absent clients the server remembers at a step."""
        if not self.memory.steps:
            return 0
        held = self.run_state.remembered.held(self.memory, step, now_us)
        held[present] = False
        return int(held.sum())

    def crowded(self) -> None:
        """Count the jobs that ended."""
        if self.recorder is not None:
            self.recorder.crowded()
            return
        codes, counts = np.unique(self.run_state.job_table.take()["status"], return_counts=True)
        for status, n in zip(codes.tolist(), counts.tolist(), strict=True):
            self.jobs[STATUSES[status]] = self.jobs.get(STATUSES[status], 0) + n

    def evaluation(self, step: int, time_us: int, split: str, result: Pending[Evaluation]) -> None:
        """Count an evaluation; one of the same step, time and split replaces the previous one, as in the table."""
        self.evaluated.add((step, time_us, split))


class CountingTrainer(NullTrainer):
    """Trains nothing, and counts the passes of a run; with `ahead` (as in actors) also those of unused jobs."""

    def __init__(self, spec: RunSpec, *, ahead: bool) -> None:
        self.sizes, self.ahead = spec.plan.facts.n_samples, ahead
        self.passes_each = spec.bench.method().passes(spec.bench.sgd.epochs)
        self.passes = self.audited = 0.0
        most = spec.bench.sgd.loss_samples
        self.loss_samples = self.sizes if most is None else np.minimum(self.sizes, most)
        splits = spec.data.splits(spec.bench.some)
        self.rows = {name: len(split.indices) for name, split in splits.items()}
        self.holders = {name: int((split.sizes > 0).sum()) for name, split in splits.items()}
        self.evaluated = self.measured = self.adapted = 0
        """Of all evaluations together: samples (with those of losses that the selector asks for), clients, and among
        these the unseen ones that adapt the model."""

    def submit(self, cohort: Cohort) -> None:
        """Count the samples of jobs that train at dispatch."""
        if self.ahead:
            self._count(cohort)

    def step(self, arrivals: StepInput, cohort: Cohort) -> Pending[Stepped]:
        """Count the samples of jobs that train when a step needs them."""
        if not self.ahead:
            self._count(cohort)
        if arrivals.audit is not None and arrivals.m:
            audited = self.sizes[arrivals.audit.clients]
            self.audited += (
                float(audited @ arrivals.audit.shares) * self.passes_each + float(audited.sum()) * _LOSSES
            )
        return super().step(arrivals, cohort)

    def losses(self, clients: Ints, version: int) -> NDArray[np.float64]:
        """Count the samples of losses that the selector asks for."""
        self.evaluated += int(self.loss_samples[clients].sum())
        return super().losses(clients, version)

    def evaluate(self, split: str, *, personal: bool = False) -> Pending[Evaluation]:
        """Count the samples and the clients of an evaluation."""
        self.evaluated += self.rows[split]
        self.measured += self.holders[split]
        self.adapted += self.holders[split] if personal and split.startswith(UNSEEN) else 0
        return super().evaluate(split, personal=personal)

    def _count(self, cohort: Cohort) -> None:
        self.passes += float((self.sizes[cohort.clients] * cohort.shares).sum()) * self.passes_each
