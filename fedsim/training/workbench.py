"""Local training and evaluation: pure functions of (parameters, a client's data, a job). No Ray, no wall clock."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from numpy.typing import NDArray

from fedsim.data.federated_data import FederatedData
from fedsim.training.attacked_jobs import Attackers
from fedsim.training.client_method import checked, checked_personal
from fedsim.training.job import Cohort, Job, Report, Reports
from fedsim.training.loaded_model import LoadedModel
from fedsim.training.local_sgd import ClientBench, Descent
from fedsim.training.minibatches import groups, mean_losses
from fedsim.training.precision import rounding
from fedsim.training.settings import WorkbenchSpec


class Workbench(LoadedModel):
    """One process's tools to train and evaluate any client.

    `work(job, params, out, kept)` depends on nothing but its arguments, the data and the spec: whoever else was
    trained before, here or elsewhere, does not change a bit of it.
    """

    def __init__(self, spec: WorkbenchSpec, data: FederatedData) -> None:
        super().__init__(spec, data)
        self.method = spec.method()
        self._attackers = (
            Attackers(spec.adversaries, spec.seed, self.y, data.n_classes) if spec.adversaries else None
        )

    def run(self, job: Job, params: torch.Tensor, out: torch.Tensor) -> Report:
        """Train `job` from `params` [P], write the row `start - end` into `out` [P] and report."""
        return self.work(job, params, out, None)[0]

    def work(
        self, job: Job, params: torch.Tensor, out: torch.Tensor, kept: torch.Tensor | None
    ) -> tuple[Report, torch.Tensor | None]:
        """As `run`, with what the client kept from its job before; also return what it keeps for the next, on the CPU.

        A job whose row is not finite leaves what was kept as it was.
        """
        local = ClientBench(self, job)
        self.flat.copy_(params)
        before, during, keep = math.nan, math.nan, None
        if self.spec.losses and not self.method.reports_loss:
            probed = self._probed(np.array([job.client]), job.version)
            before = float(self._mean_losses([params], probed, self.sgd.precision)[0])
        if self.method.train is None:
            during = local.descend(Descent(self.sgd))
        else:
            self.module.train()  # whatever the job or evaluation before left it in
            with self._alone(local):
                found = self.method.train(local, params, self._here(kept))
            trained = checked(found, len(self.flat), job.client)
            self.flat.copy_(trained.end)
            during, keep = trained.loss, trained.kept
            before = trained.loss_before if self.method.reports_loss else before
        after = accuracy = math.nan
        if self.spec.after:
            losses, correct = self._forward(local.rows, self.sgd.precision)
            after, accuracy = float(losses.mean()), float(correct.mean())
        torch.sub(params, self.flat, out=out)
        finite = bool(_finite(out[None])[0])
        report = Report(before, during, local.loss_rms, local.batch_rms, after, accuracy, finite)
        return report, keep.cpu() if finite and keep is not None else kept

    def train(
        self,
        cohort: Cohort,
        starts: Sequence[torch.Tensor],
        rows: torch.Tensor,
        kept: Sequence[torch.Tensor | None] | None = None,
    ) -> tuple[Reports, list[torch.Tensor | None]]:
        """Train each job from its start [P] into its row of `rows` [k, P]; `kept` is as in `work`.

        Rows and reports are what clients send: those of adversaries may differ from what they found.
        """
        with rounding(self.sgd.precision, self.device):
            if self._attackers is None:
                return self._honest(cohort, starts, rows, kept)
            return self._attackers.train(self._honest, self._relabel, cohort, starts, rows, kept)

    def _relabel(self, y: torch.Tensor) -> None:
        """Train on these labels [N] from now on."""
        self.y = y
        if self._side_by_side is not None:
            self._side_by_side.y = y

    def _honest(
        self,
        cohort: Cohort,
        starts: Sequence[torch.Tensor],
        rows: torch.Tensor,
        kept: Sequence[torch.Tensor | None] | None,
    ) -> tuple[Reports, list[torch.Tensor | None]]:
        if self._side_by_side is None:
            before = kept or [None] * len(cohort)
            done = [self.work(cohort.job(i), starts[i], rows[i], before[i]) for i in range(len(cohort))]
            return Reports.of([report for report, _ in done]), [after for _, after in done]
        reports, beside = Reports.nothing(len(cohort)), self._side_by_side
        sums = []
        for group in groups(cohort, self.splits["train"], self.sgd, self.seed, beside.most, even=beside.even):
            mine = [starts[job] for job in group.jobs.tolist()]
            losses = beside.train(group.on(self.device), mine, rows)
            sums.append((group.jobs, group.counts, losses))
        for jobs, counts, losses in sums:  # not before: a GPU has the next group to go on with meanwhile
            reports.loss_train[jobs], reports.loss_rms[jobs], reports.batch_rms[jobs] = mean_losses(
                counts, losses
            )
        if self.spec.losses:
            probed = self._probed(cohort.clients, cohort.versions)
            reports.loss_before[:] = self._mean_losses(starts, probed, self.sgd.precision)
        for i, client in enumerate(cohort.clients.tolist()):
            if self.spec.after:
                self.flat.copy_(starts[i] - rows[i])
                each, correct = self._forward(self._rows(client), self.sgd.precision)
                reports.loss_after[i], reports.accuracy_after[i] = each.mean(), correct.mean()
        reports.finite[:] = _finite(rows)
        return reports, [None] * len(cohort)

    def _alone(self, local: ClientBench) -> AbstractContextManager[None]:
        """Return what a method runs within: torch's generator is seeded if somebody may draw from it."""
        return self.seeded(local.draws("method")) if self.random or self.method.draws else nullcontext()

    def _here(self, kept: torch.Tensor | None) -> torch.Tensor | None:
        return None if kept is None else kept.to(self.device)

    def evaluate_personal(
        self, params: torch.Tensor, kept: Sequence[torch.Tensor | None], split: str, first: int
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """As `evaluate`, for the rows of the clients `first`, `first + 1`, ... each with the model it would use itself.

        `params` [P] is the global model, `kept` what each of the clients keeps.
        """
        found = [self._with_own_model(params, row, split, first + i) for i, row in enumerate(kept)]
        return np.concatenate([f[0] for f in found]), np.concatenate([f[1] for f in found])

    def _with_own_model(
        self, params: torch.Tensor, kept: torch.Tensor | None, split: str, client: int
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        rows = torch.from_numpy(self.splits[split].rows(client)).to(self.device)
        if not len(rows):
            return np.zeros(0), np.zeros(0, dtype=bool)
        model = params
        if self.method.personal:
            local = ClientBench(self, Job(-1, client, -1, 0))
            self.module.train()
            with self._alone(local), rounding(self.sgd.precision, self.device):
                found = self.method.personal(local, params, self._here(kept))
            model = checked_personal(found, len(self.flat), client)
        return self._evaluated(model, rows)


def _finite(rows: torch.Tensor) -> NDArray[np.bool_]:
    """Return [k] which rows [k, P] are finite: so is a sum only of such terms, and it takes a quarter of the time."""
    found: NDArray[np.bool_] = torch.isfinite(rows.sum(dim=1)).cpu().numpy()
    for i in np.flatnonzero(~found):
        found[i] = bool(torch.isfinite(rows[i]).all())
    return found
