"""Attacks carried out during training: labels change before a job, its message after it, each update by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from fedsim.common import plugins
from fedsim.common.errors import RunError
from fedsim.common.rng import rng
from fedsim.training.attack import Adversary, Attack, Message, rememberers
from fedsim.training.job import Cohort, Ints, Job, Report, Reports

Row = torch.Tensor | None
Flags = NDArray[np.bool_]
Train = Callable[
    [Cohort, Sequence[torch.Tensor], torch.Tensor, Sequence[Row] | None], tuple[Reports, list[Row]]
]
"""The signature of `fedsim.training.workbench.Workbench.train`."""
Relabel = Callable[[torch.Tensor], None]
"""Makes a workbench train on other labels [N] from now on."""


class Attackers:
    """Carries out the attacks of a run's adversaries in one process.

    Args:
        adversaries: with their clients drawn, in the order in which they act on a job that several of them attack.
        seed: the run's seed.
        y: the true labels [N] of all samples.
        n_classes: number of classes.
    """

    def __init__(self, adversaries: Sequence[Adversary], seed: int, y: torch.Tensor, n_classes: int) -> None:
        self.adversaries, self.seed, self._n_classes = adversaries, seed, n_classes
        self.attacks = [adversary.attack() for adversary in adversaries]
        self._poisons = np.array([attack.labels is not None for attack in self.attacks])
        self._rememberers = rememberers(adversaries)
        self._true_labels, self._labels = y, {bytes(len(adversaries)): y}
        """`_labels` caches the labels [N] that a job trains on; the key has one byte per adversary: does it strike?"""

    def train(
        self,
        honest: Train,
        relabel: Relabel,
        cohort: Cohort,
        starts: Sequence[torch.Tensor],
        rows: torch.Tensor,
        kept: Sequence[Row] | None,
    ) -> tuple[Reports, list[Row]]:
        """Train jobs as `fedsim.training.workbench.Workbench.train` does; return the messages that clients send.

        `honest` is that method without adversaries.
        """
        struck = np.array([a.strikes(self.seed, cohort) for a in self.adversaries])
        before = list(kept or [None] * len(cohort))
        jobs = _Jobs(cohort, starts, rows, before)
        reports, after = self._trained(honest, relabel, struck & self._poisons[:, None], jobs)
        for i, client in enumerate(cohort.clients.tolist()):
            if client in self._rememberers:
                after[i] = rows[i].cpu().clone() if reports.finite[i] else before[i]
        for i in np.flatnonzero(struck.any(axis=0)).tolist():
            row, report = self._sent(cohort.job(i), struck[:, i], rows[i], reports.report(i), before[i])
            rows[i] = row
            reports.enter(np.array([i]), Reports.of([report]))
        return reports, after

    def _trained(
        self, honest: Train, relabel: Relabel, poisoned: Flags, jobs: _Jobs
    ) -> tuple[Reports, list[Row]]:
        """Train jobs into their rows; jobs with equal labels, by `poisoned` [A, k], train together."""
        if not poisoned.any():
            return honest(jobs.cohort, jobs.starts, jobs.rows, jobs.before)
        reports, after = Reports.nothing(len(jobs.cohort)), list(jobs.before)
        for group in _with_equal_columns(poisoned):
            part = jobs.part(group)
            relabel(self._labels_of(poisoned[:, group[0]]))
            try:
                part_reports, part_after = honest(part.cohort, part.starts, part.rows, part.before)
            finally:
                relabel(self._true_labels)
            reports.enter(group, part_reports)
            for i, row, kept in zip(group.tolist(), part.rows, part_after, strict=True):
                jobs.rows[i], after[i] = row, kept
        return reports, after

    def _labels_of(self, struck: Flags) -> torch.Tensor:
        """Return the labels [N] of a job that the adversaries flagged in `struck` [A] attack."""
        code = struck.tobytes()
        if code not in self._labels:
            y = self._true_labels
            for number in np.flatnonzero(struck).tolist():
                y = relabelled(self.adversaries[number], self.attacks[number], y, self._n_classes)
            self._labels[code] = y
        return self._labels[code]

    def _sent(
        self, job: Job, struck: Flags, row: torch.Tensor, report: Report, before: Row
    ) -> tuple[torch.Tensor, Report]:
        memory = None if before is None else before.to(row.device)
        for number in np.flatnonzero(struck).tolist():
            send = self.attacks[number].send
            if send is not None:
                name = self.adversaries[number].name
                draws = rng(self.seed, "attack", job.client, job.nth, number)
                with plugins.contained(f"adversary {name!r}, send"):
                    sent = send(Message(row, report, memory, draws))
                row, report = _checked(sent, row, name, job).row, sent.report
        return row, replace(report, finite=bool(torch.isfinite(row).all()))


@dataclass(frozen=True, slots=True)
class _Jobs:
    """The arguments of `Train`."""

    cohort: Cohort
    starts: Sequence[torch.Tensor]
    rows: torch.Tensor
    before: list[Row]

    def part(self, which: Ints) -> _Jobs:
        """Return the jobs `which`, with new rows to train into."""
        places = which.tolist()
        starts, before = [self.starts[i] for i in places], [self.before[i] for i in places]
        return _Jobs(
            self.cohort.part(which), starts, self.rows.new_empty(len(places), self.rows.shape[1]), before
        )


def relabelled(adversary: Adversary, attack: Attack, y: torch.Tensor, n_classes: int) -> torch.Tensor:
    """Return the labels [N] that an attacker trains on in place of `y` [N].

    Raises RunError if the attack returns anything but such labels.
    """
    if attack.labels is None:
        return y
    labels: object = attack.labels(y, n_classes)
    fault = ""
    if not isinstance(labels, torch.Tensor):
        fault = type(labels).__name__
    elif labels.shape != y.shape:
        fault = f"shape {list(labels.shape)}"
    elif labels.dtype != y.dtype:
        fault = str(labels.dtype)
    elif len(wrong := labels[(labels < 0) | (labels >= n_classes)]):
        fault = str(int(wrong[0]))
    if fault:
        raise RunError(
            f"adversary {adversary.name!r}: expected labels to return whole numbers {list(y.shape)} from 0 to "
            f"{n_classes - 1}, found {fault}"
        )
    assert isinstance(labels, torch.Tensor)
    return labels


def _checked(sent: object, row: torch.Tensor, name: str, job: Job) -> Message:
    """Return `sent` if it is a Message with a row [P] like `row`. Raises RunError otherwise."""
    where = f"adversary {name!r}, client {job.client}"
    if not isinstance(sent, Message):
        raise RunError(f"{where}: expected send to return a Message, found {type(sent).__name__}")
    if not isinstance(sent.row, torch.Tensor) or sent.row.shape != row.shape:
        fault = list(sent.row.shape) if isinstance(sent.row, torch.Tensor) else type(sent.row).__name__
        raise RunError(f"{where}: expected a row that is a tensor {list(row.shape)}, found {fault}")
    return sent


def _with_equal_columns(struck: Flags) -> list[Ints]:
    """Return the positions [k] in groups whose columns of `struck` [A, k] are equal."""
    group = np.unique(struck, axis=1, return_inverse=True)[1].reshape(-1)
    return [np.flatnonzero(group == g) for g in range(int(group.max()) + 1)]
