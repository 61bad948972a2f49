"""Attacks where jobs are trained: labels are changed before, what is sent after, on each row by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

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
"""As `fedsim.training.workbench.Workbench.train`."""
Relabel = Callable[[torch.Tensor], None]
"""Lets a workbench train on other labels [N] from now on."""


class Attackers:
    """The adversaries of a run, as one process carries out what they do.

    Args:
        adversaries: with their clients drawn, in the order in which they act on a job that several of them attack.
        seed: the run's.
        y: the true labels [N] of all samples.
        n_classes: number of classes.
    """

    def __init__(self, adversaries: Sequence[Adversary], seed: int, y: torch.Tensor, n_classes: int) -> None:
        self.adversaries, self.seed, self._n_classes = adversaries, seed, n_classes
        self.attacks = [adversary.attack() for adversary in adversaries]
        self._poisons = np.array([attack.labels is not None for attack in self.attacks])
        self._remember = rememberers(adversaries)
        self._true, self._labels = y, {bytes(len(adversaries)): y}
        """By poisoners that strike, a byte each, the labels [N] that a job trains on."""

    def train(
        self,
        honest: Train,
        relabel: Relabel,
        cohort: Cohort,
        starts: Sequence[torch.Tensor],
        rows: torch.Tensor,
        kept: Sequence[Row] | None,
    ) -> tuple[Reports, list[Row]]:
        """Train jobs as `fedsim.training.workbench.Workbench.train` does; rows and reports are what clients send.

        `honest` is that method without adversaries.
        """
        struck = np.array([a.strikes(self.seed, cohort) for a in self.adversaries])
        before = list(kept or [None] * len(cohort))
        reports, after = self._trained(honest, relabel, struck, cohort, starts, rows, before)
        for i, client in enumerate(cohort.clients.tolist()):
            if client in self._remember:
                after[i] = rows[i].cpu().clone() if reports.finite[i] else before[i]
        for i in np.flatnonzero(struck.any(axis=0)).tolist():
            row, report = self._sent(cohort.job(i), struck[:, i], rows[i], reports.report(i), before[i])
            rows[i] = row
            reports.enter(np.array([i]), Reports.of([report]))
        return reports, after

    def _trained(
        self,
        honest: Train,
        relabel: Relabel,
        struck: Flags,
        cohort: Cohort,
        starts: Sequence[torch.Tensor],
        rows: torch.Tensor,
        before: list[Row],
    ) -> tuple[Reports, list[Row]]:
        """Train jobs into `rows` [k, P], those together that train on the same labels."""
        poisoned = struck & self._poisons[:, None]
        if not poisoned.any():
            return honest(cohort, starts, rows, before)
        reports, after = Reports.nothing(len(cohort)), list(before)
        for some in _alike(poisoned):
            places = some.tolist()
            own = rows.new_empty(len(some), rows.shape[1])
            relabel(self._labels_of(poisoned[:, places[0]]))
            try:
                found, keep = honest(
                    cohort.part(some), [starts[i] for i in places], own, [before[i] for i in places]
                )
            finally:
                relabel(self._true)
            reports.enter(some, found)
            for i, row, keeps in zip(places, own, keep, strict=True):
                rows[i], after[i] = row, keeps
        return reports, after

    def _labels_of(self, struck: Flags) -> torch.Tensor:
        """Return the labels [N] that a job trains on which these adversaries [A] attack."""
        code = struck.tobytes()
        if code not in self._labels:
            y = self._true
            for adversary, attack, strikes in zip(
                self.adversaries, self.attacks, struck.tolist(), strict=True
            ):
                y = relabelled(adversary, attack, y, self._n_classes) if strikes else y
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
                with plugins.contained(f"adversary {name!r}, send"):
                    sent = send(
                        Message(row, report, memory, rng(self.seed, "attack", job.client, job.nth, number))
                    )
                row, report = _checked(sent, row, name, job).row, sent.report
        finite = bool(torch.isfinite(row).all())
        return row, replace(report, finite=finite)


def relabelled(adversary: Adversary, attack: Attack, y: torch.Tensor, n_classes: int) -> torch.Tensor:
    """Return the labels [N] that an attacker trains on in place of `y` [N]. Raises RunError if they are none."""
    if attack.labels is None:
        return y
    found: object = attack.labels(y, n_classes)
    what = ""
    if not isinstance(found, torch.Tensor):
        what = type(found).__name__
    elif found.shape != y.shape:
        what = f"shape {list(found.shape)}"
    elif found.dtype != y.dtype:
        what = str(found.dtype)
    elif len(wrong := found[(found < 0) | (found >= n_classes)]):
        what = str(int(wrong[0]))
    if what:
        raise RunError(
            f"adversary {adversary.name!r}: expected labels to return whole numbers {list(y.shape)} from 0 to "
            f"{n_classes - 1}, found {what}"
        )
    assert isinstance(found, torch.Tensor)
    return found


def _checked(sent: object, row: torch.Tensor, name: str, job: Job) -> Message:
    """Return what an attack sends if it is a Message with a row like the one that it was given, else raise RunError."""
    where = f"adversary {name!r}, client {job.client}"
    if not isinstance(sent, Message):
        raise RunError(f"{where}: expected send to return a Message, found {type(sent).__name__}")
    if not isinstance(sent.row, torch.Tensor) or sent.row.shape != row.shape:
        what = list(sent.row.shape) if isinstance(sent.row, torch.Tensor) else type(sent.row).__name__
        raise RunError(f"{where}: expected a row that is a tensor {list(row.shape)}, found {what}")
    return sent


def _alike(struck: Flags) -> list[Ints]:
    """Return the jobs [k] in groups that the same adversaries [A, k] attack."""
    group = np.unique(struck, axis=1, return_inverse=True)[1].reshape(-1)
    return [np.flatnonzero(group == g) for g in range(int(group.max()) + 1)]
