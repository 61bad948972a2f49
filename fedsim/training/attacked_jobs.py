"""Attacks carried out during training: labels change before a job, its message after it, each update by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedsim import plugins
from fedsim.common.arrays import Ints
from fedsim.common.errors import RunError
from fedsim.common.rng import rng
from fedsim.training.attack import Adversary, Attack, Flags, Message, rememberers
from fedsim.training.job import Cohort, Job, Report, Reports

Kept = Tensor | None
"""The vector [P] that a client keeps from job to job; None if it keeps nothing."""
Results = tuple[Reports, list[Kept]]
"""The reports of k jobs, and what the client of each keeps."""


@dataclass(frozen=True, slots=True)
class Jobs:
    """k jobs to train, and where their updates go."""

    cohort: Cohort
    starts: Sequence[Tensor]
    """[k] The parameters [P] that each job starts from."""
    rows: Tensor
    """[k, P] Training writes the update of each job into its row."""
    kept: Sequence[Kept]
    """[k] What each client kept from its previous job."""

    def part(self, which: Ints) -> Jobs:
        """Return the jobs `which`, with new rows to train into."""
        places = which.tolist()
        rows = self.rows.new_empty(len(places), self.rows.shape[1])
        starts, kept = [self.starts[i] for i in places], [self.kept[i] for i in places]
        return Jobs(self.cohort.part(which), starts, rows, kept)


Train = Callable[[Jobs], Results]
"""Trains jobs into their rows."""
Relabel = Callable[[Tensor], None]
"""Makes a workbench train on other labels [N] from now on."""


class Attackers:
    """Carries out the attacks of a run's adversaries in one process.

    Args:
        adversaries: with their clients drawn, in the order in which they act on a job that several of them attack.
        seed: the run's `seeds.world`.
        y: the true labels [N] of all samples.
        n_classes: number of classes.
        columns: P, the length of an update; attacks change nothing that the client method sends beside it.
    """

    def __init__(
        self, adversaries: Sequence[Adversary], seed: int, y: Tensor, n_classes: int, columns: int
    ) -> None:
        self.adversaries, self.seed, self._n_classes, self._columns = adversaries, seed, n_classes, columns
        self.attacks = [adversary.attack() for adversary in adversaries]
        self._poisons = np.array([attack.labels is not None for attack in self.attacks])
        self._rememberers = rememberers(adversaries)
        self._true_labels, self._labels = y, {bytes(len(adversaries)): y}
        """`_labels` caches the labels [N] that a job trains on; the key has one byte per adversary: does it strike?"""

    def train(self, honest: Train, relabel: Relabel, jobs: Jobs) -> Results:
        """Train jobs with `honest`, which knows no adversaries; return and write into the rows what clients send."""
        cohort, rows, before = jobs.cohort, jobs.rows, jobs.kept
        struck = np.array([a.strikes(self.seed, cohort) for a in self.adversaries])
        reports, after = self._trained(honest, relabel, struck & self._poisons[:, None], jobs)
        for i, client in enumerate(cohort.clients.tolist()):
            if client in self._rememberers:
                after[i] = rows[i, : self._columns].cpu().clone() if reports.finite[i] else before[i]
        for i in np.flatnonzero(struck.any(axis=0)).tolist():
            update = rows[i, : self._columns]
            update[:], report = self._sent(cohort.job(i), struck[:, i], update, reports.report(i), before[i])
            finite = bool(torch.isfinite(rows[i]).all())  # with the vectors beside the update
            reports.enter(np.array([i]), Reports.of([replace(report, finite=finite)]))
        return reports, after

    def _trained(self, honest: Train, relabel: Relabel, poisoned: Flags, jobs: Jobs) -> Results:
        """Train jobs into their rows; jobs with equal labels, by `poisoned` [A, k], train together."""
        if not poisoned.any():
            return honest(jobs)
        reports, after = Reports.nothing(len(jobs.cohort)), list(jobs.kept)
        group = np.unique(poisoned, axis=1, return_inverse=True)[1].reshape(-1)
        for number in range(int(group.max()) + 1):
            which = np.flatnonzero(group == number)
            part = jobs.part(which)
            relabel(self._labels_of(poisoned[:, which[0]]))
            try:
                part_reports, part_after = honest(part)
            finally:
                relabel(self._true_labels)
            reports.enter(which, part_reports)
            for i, row, kept in zip(which.tolist(), part.rows, part_after, strict=True):
                jobs.rows[i], after[i] = row, kept
        return reports, after

    def _labels_of(self, struck: Flags) -> Tensor:
        """Return the labels [N] of a job that the adversaries flagged in `struck` [A] attack."""
        code = struck.tobytes()
        if code not in self._labels:
            y = self._true_labels
            for number in np.flatnonzero(struck).tolist():
                y = relabelled(self.adversaries[number], self.attacks[number], y, self._n_classes)
            self._labels[code] = y
        return self._labels[code]

    def _sent(
        self, job: Job, struck: Flags, row: Tensor, report: Report, before: Kept
    ) -> tuple[Tensor, Report]:
        memory = None if before is None else before.to(row.device)
        for number in np.flatnonzero(struck).tolist():
            send = self.attacks[number].send
            if send is not None:
                name = self.adversaries[number].name
                draws = rng(self.seed, "attack", job.client, job.nth, number)
                with plugins.contained(f"adversary {name!r}, send"):
                    sent = send(Message(row, report, memory, draws))
                row, report = _checked(sent, row, name, job).row, sent.report
        return row, report


def relabelled(adversary: Adversary, attack: Attack, y: Tensor, n_classes: int) -> Tensor:
    """Return the labels [N] that an attacker trains on in place of `y` [N].

    Raises RunError if the attack returns anything but such labels.
    """
    if attack.labels is None:
        return y
    labels: object = attack.labels(y.clone(), n_classes)  # evaluations and other clients need the true ones
    if not isinstance(labels, Tensor):
        fault = type(labels).__name__
    elif labels.shape != y.shape:
        fault = f"shape {list(labels.shape)}"
    elif labels.dtype != y.dtype:
        fault = str(labels.dtype)
    elif len(wrong := labels[(labels < 0) | (labels >= n_classes)]):
        fault = str(int(wrong[0]))
    else:
        return labels
    raise RunError(
        f"adversary {adversary.name!r}: expected labels to return whole numbers {list(y.shape)} from 0 to "
        f"{n_classes - 1}, found {fault}"
    )


def _checked(sent: object, row: Tensor, name: str, job: Job) -> Message:
    """Return `sent` if it is a Message with a row [P] like `row`. Raises RunError otherwise."""
    where = f"adversary {name!r}, client {job.client}"
    if not isinstance(sent, Message):
        raise RunError(f"{where}: expected send to return a Message, found {type(sent).__name__}")
    if not isinstance(sent.row, Tensor) or sent.row.shape != row.shape:
        fault = list(sent.row.shape) if isinstance(sent.row, Tensor) else type(sent.row).__name__
        raise RunError(f"{where}: expected a row that is a tensor {list(row.shape)}, found {fault}")
    return sent
