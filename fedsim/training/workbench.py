"""Local training and evaluation as pure functions of (parameters, a client's data, a job), without Ray or clocks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsim.common.errors import Error
from fedsim.data.federated_data import FederatedData
from fedsim.training.attack import rememberers
from fedsim.training.attacked_jobs import Attackers, Jobs, Kept, Results
from fedsim.training.client_method import OwnModel, Trained, checked, checked_vector, pull
from fedsim.training.job import Cohort, Job, Report, Reports, update_norm
from fedsim.training.loaded_model import LoadedModel, Scores, joined
from fedsim.training.local_sgd import ClientTools, Descent
from fedsim.training.minibatches import Group, Terms, groups, job_losses
from fedsim.training.modes.dense import Dense
from fedsim.training.modes.vmap import Vmap
from fedsim.training.precision import rounding
from fedsim.training.settings import WorkbenchSpec

Given = tuple[Tensor, Mapping[str, Tensor], int]
"""What an offset depends on: the vector that the client kept, 0 at first, those that it received, and the client."""


class Workbench(LoadedModel):
    """Trains and evaluates any client in one process.

    The bits of a result depend on the arguments of a call, the data and the spec alone, never on what this or another
    process trained before.
    """

    def __init__(self, spec: WorkbenchSpec, data: FederatedData) -> None:
        super().__init__(spec, data)
        self._keeps = self.method.keeps and not rememberers(spec.adversaries)
        """Whether the method keeps state; a memory for an attack holds what the client meant to send, used or not."""
        sgd = spec.sgd
        samples = sgd.batch_size, sgd.augment, sgd.loss_samples
        self._before_is_training = (
            not any(samples) and sgd.epochs == 1 and self.method.train is None and not self.random
        )
        """Whether the only minibatch of a job of at most the configured epochs holds all samples, so that its training
        loss is the loss before training."""
        attack_seed = spec.seed if spec.attack_seed is None else spec.attack_seed
        self._attackers = (
            Attackers(spec.adversaries, attack_seed, self.y, data.n_classes, len(self.flat))
            if spec.adversaries
            else None
        )

    @property
    def columns(self) -> int:
        """Entries of a row that a client sends: the update, and behind it each vector that the method sends."""
        return (1 + len(self.method.sends)) * len(self.flat)

    def work(self, job: Job, start: Tensor, out: Tensor, kept: Kept = None) -> tuple[Report, Kept]:
        """Train `job` from `start`, write what the client sends into `out` [columns] and return the report.

        `start` holds the parameters [P] and behind them each vector that the method receives; `out` the update
        `start - end` [P] and behind it each vector that the method sends. `kept` [P] is the vector from the client's
        previous job. Also returns the one to keep, on the CPU: the previous one if what is sent is not finite.
        """
        local, P = ClientTools(self, job), len(self.flat)
        params, local.received = self._divided(start)
        self.flat.copy_(params)
        before, before_is_training = math.nan, self._before_is_training and job.share <= 1
        if self.spec.losses and not self.method.reports_loss and not before_is_training:
            loss_rows = self._loss_rows(np.array([job.client]), job.version)
            before = float(self._mean_losses([params], loss_rows, self.sgd.precision)[0])
        trained = self._trained(local, params, kept)
        after = accuracy = math.nan
        if self.spec.after:
            losses, correct = self._forward(local.rows, self.sgd.precision)
            after, accuracy = float(losses.mean()), float(correct.mean())
        torch.sub(params, self.flat, out=out[:P])
        self._write_sent(out, trained.sent)
        finite = bool(_finite(out[None])[0])
        if self.method.reports_loss:
            before = trained.loss_before
        elif self.spec.losses and before_is_training:
            before = trained.loss
        report = Report(before, trained.loss, local.loss_rms, local.batch_rms, after, accuracy, finite)
        return report, trained.kept.cpu() if finite and trained.kept is not None else kept

    def _trained(self, local: ClientTools, params: Tensor, kept: Kept) -> Trained:
        """Train with the client method from `params` [P], which `flat` holds too; then `flat` holds the end."""
        if self.method.train is None:
            return self._descended(local, params, kept)
        local.received = {name: vector.clone() for name, vector in local.received.items()}
        result = self._called(self.method.train, local, params, kept)
        trained = checked(result, len(self.flat), local.job.client, self.method.sends, self.method.keeps)
        self.flat.copy_(trained.end)
        return trained

    def _descended(self, local: ClientTools, params: Tensor, kept: Kept) -> Trained:
        """Run plain local SGD with the terms that the client method declares."""
        method, client, anchor = self.method, local.job.client, local.views(params)
        if method.offset is None:
            loss = local.descend(Descent(self.sgd, correct=method.correction(anchor)))
            if method.own is None:
                return Trained(self.flat, loss)
            end = self.flat.clone()
            own = self._own_model(method.own, local, params, kept)
            return Trained(self.flat.copy_(end), loss, kept=own)
        own = self._own(kept)
        offset = local.views(method.offset.checked(own, local.received, client))
        loss = local.descend(Descent(self.sgd, correct=method.correction(anchor, offset)))
        rate = self.sgd.rate(local.job.version) * local.steps
        kept, sent = method.finished(params - self.flat, own, local.received, rate, client)
        return Trained(self.flat, loss, kept=kept, sent=sent)

    def _own_model(self, own: OwnModel, local: ClientTools, params: Tensor, kept: Kept) -> Tensor:
        """Return the client's own model [P] after its steps of a job that received `params` [P]."""
        start = params if kept is None else kept.to(self.device)
        towards = pull(own.proximal, local.views(params)) if own.proximal else None
        return local.sgd(start, purpose="personal", epochs=own.epochs, lr=own.lr, correct=towards)[0]

    def _own(self, kept: Kept) -> Tensor:
        """Return the vector [P] that a client kept, 0 before its first job."""
        return torch.zeros_like(self.flat) if kept is None else kept.to(self.device, copy=True)

    def _divided(self, start: Tensor) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return the parameters [P] that a job starts from, and by name the vectors [P] that came with them."""
        params, *received = torch.split(start, len(self.flat))
        return params, dict(zip(self.method.receives, received, strict=True))

    def train(
        self, cohort: Cohort, starts: Sequence[Tensor], rows: Tensor, kept: Sequence[Kept] | None = None
    ) -> Results:
        """Train each job from its start [P] into its row of `rows` [k, P]; `kept` is as in `work`.

        Rows and reports are the ones that clients send, after the attacks of adversaries. Clients keep what they kept
        before where the server leaves the update out, as not finite or too long.
        """
        jobs = Jobs(cohort, starts, rows, kept or [None] * len(cohort))
        train = self._one_by_one if self._side_by_side is None else self._in_groups
        with rounding(self.sgd.precision, self.device):
            if self._attackers is None:
                reports, after = train(jobs)
            else:
                reports, after = self._attackers.train(train, self._relabel, jobs)
        if self._keeps:
            used = [self._is_used(*sent) for sent in zip(rows, reports.finite.tolist(), strict=True)]
            after = [new if use else old for new, old, use in zip(after, jobs.kept, used, strict=True)]
        return reports, after

    def _is_used(self, row: Tensor, finite: bool) -> bool:
        """Return whether the server can use what a client sends, [columns]."""
        longest = self.spec.longest
        return finite and (longest is None or update_norm(row[: len(self.flat)]) <= longest)

    def _relabel(self, y: Tensor) -> None:
        """Train on the labels `y` [N] from now on."""
        self.y = y
        if self._side_by_side is not None:
            self._side_by_side.y = y

    def _one_by_one(self, jobs: Jobs) -> Results:
        """Train the jobs one after the other, without the attacks of adversaries."""
        each = zip(jobs.starts, jobs.rows, jobs.kept, strict=True)
        results = [self.work(jobs.cohort.job(i), *given) for i, given in enumerate(each)]
        return Reports.of([report for report, _ in results]), [after for _, after in results]

    def _in_groups(self, jobs: Jobs) -> Results:
        """Train the jobs in groups, whose clients train side by side, without the attacks of adversaries."""
        mode, reports, trained = self._side_by_side, Reports.nothing(len(jobs.cohort)), []
        assert mode is not None
        divided = {id(start): self._divided(start) for start in jobs.starts}
        starts = [divided[id(start)][0] for start in jobs.starts]
        updates, after, offset = jobs.rows[:, : len(self.flat)], list(jobs.kept), self.method.offset
        for group in groups(jobs.cohort, self.splits["train"], self.sgd, self.seed, mode.limits):
            which = group.jobs.tolist()
            given, offsets = list[Given](), None
            if offset is not None:
                for i in which:
                    received, client = divided[id(jobs.starts[i])][1], jobs.cohort.clients.item(i)
                    given.append((self._own(jobs.kept[i]), received, client))
                offsets = torch.stack([offset.checked(*one) for one in given])
            terms = Terms(self.method.gradient_factor(group.lr), self.method.proximal, offsets=offsets)
            losses = mode.train(group.on(self.device), [starts[i] for i in which], updates, terms)
            trained.append((group.jobs, group.counts, losses))
            if offset is not None:
                self._finish(jobs, group, given, after)
        if self.method.own is not None:
            self._train_own(mode, self.method.own, jobs, starts, after)
        for who, counts, losses in trained:  # after the last group: reading losses waits for the GPU
            means = job_losses(counts, losses)
            reports.loss_train[who], reports.loss_rms[who], reports.batch_rms[who] = means
        self._measure(jobs, starts, reports)
        return reports, after

    def _train_own(
        self, mode: Dense | Vmap, own: OwnModel, jobs: Jobs, received: Sequence[Tensor], after: list[Kept]
    ) -> None:
        """Train the own models of clients that `received` models [P], and write into `after` what they keep."""
        sgd = replace(self.sgd, epochs=own.epochs or self.sgd.epochs, lr=own.lr or self.sgd.lr)
        each = groups(jobs.cohort, self.splits["train"], sgd, self.seed, mode.limits, "personal")
        for group in each:
            which = group.jobs.tolist()
            near, kept = [received[i] for i in which], [jobs.kept[i] for i in which]
            pairs = zip(near, kept, strict=True)
            starts = [w if k is None else k.to(self.device) for w, k in pairs]
            moved = torch.empty(len(which), len(self.flat), device=self.device)
            placed = replace(group, jobs=np.arange(len(which))).on(self.device)
            mode.train(placed, starts, moved, Terms(proximal=own.proximal, anchors=near))
            for i, start, row in zip(which, starts, moved, strict=True):
                after[i] = (start - row).cpu()

    def _finish(self, jobs: Jobs, group: Group, given: Sequence[Given], after: list[Kept]) -> None:
        """Write what the clients of a trained group send beside their updates, and into `after` what they keep."""
        P = len(self.flat)
        for place, (i, (own, received, client)) in enumerate(zip(group.jobs.tolist(), given, strict=True)):
            row, rate = jobs.rows[i], group.lr * int(np.count_nonzero(group.counts[:, place]))
            kept, sent = self.method.finished(row[:P].clone(), own, received, rate, client)
            self._write_sent(row, sent)
            after[i] = kept.cpu()

    def _write_sent(self, row: Tensor, sent: Mapping[str, Tensor]) -> None:
        """Write the vectors [P] that a client sends beside its update into its row [columns]."""
        P = len(self.flat)
        for name, into in zip(self.method.sends, torch.split(row[P:], P), strict=False):
            into.copy_(sent[name])

    def _measure(self, jobs: Jobs, starts: Sequence[Tensor], reports: Reports) -> None:
        """Fill in the losses and accuracies that the spec asks for, and which rows are finite."""
        cohort, rows = jobs.cohort, jobs.rows
        if self.spec.losses:
            known = (cohort.shares <= 1) & self._before_is_training
            reports.loss_before[known] = reports.loss_train[known]
            if len(others := np.flatnonzero(~known)):
                loss_rows = self._loss_rows(cohort.clients[others], cohort.versions[others])
                of_others = [starts[i] for i in others.tolist()]
                reports.loss_before[others] = self._mean_losses(of_others, loss_rows, self.sgd.precision)
        if self.spec.after:
            for i, client in enumerate(cohort.clients.tolist()):
                self.flat.copy_(starts[i] - rows[i, : len(self.flat)])
                losses, correct = self._forward(self.training_rows(client), self.sgd.precision)
                reports.loss_after[i], reports.accuracy_after[i] = losses.mean(), correct.mean()
        reports.finite[:] = _finite(rows)

    def _called(self, function: Callable[..., Any], local: ClientTools, params: Tensor, kept: Kept) -> Any:
        """Call a client method's function with copies of vectors and rows, which other jobs and evaluations share.

        Seed torch's generators if the model or the method may draw from them. What it raises is noted to be of the
        client.
        """
        self.module.train()  # the previous job or evaluation may have left another mode
        local.rows = local.rows.clone()
        with self.seeded(local.draws("method")) if self.random or self.method.draws else nullcontext():
            try:
                return function(
                    local, params.clone(), None if kept is None else kept.to(self.device, copy=True)
                )
            except Exception as error:
                if not isinstance(error, Error):  # whose message names the client
                    job = f" in job {local.job.id}" if local.job.id >= 0 else ""
                    error.add_note(f"The client method raised this for client {local.job.client}{job}.")
                raise

    def evaluate_personal(self, params: Tensor, kept: Sequence[Kept], split: str, first: int) -> Scores:
        """As `evaluate`, for the samples of the clients `first`, `first + 1`, ... with their personal models.

        `params` [P] is the global model, `kept` the vectors that these clients keep. Unseen clients adapt the model.
        """
        return joined(self._with_personal_model(params, row, split, first + i) for i, row in enumerate(kept))

    def _with_personal_model(self, params: Tensor, kept: Kept, split: str, client: int) -> Scores:
        rows = self.rows(client, split)
        if not len(rows):
            return np.zeros(0), np.zeros(0, dtype=bool)
        model, name, function = params, "personal", self.method.personal
        if client >= self.data.n_clients:
            name, function = "adapt", self.method.adapt
        if function:
            local = ClientTools(self, Job(-1, client, -1, 0))
            with rounding(self.sgd.precision, self.device):
                personal = self._called(function, local, params, kept)
            must = f"client {client}: the client method's {name} must return"
            model = checked_vector(personal, len(self.flat), must)
        return self._evaluated(model, rows)


def _finite(rows: Tensor) -> NDArray[np.bool_]:
    """Return [k] which rows [k, P] are finite.

    A finite sum has finite terms alone, and is faster to compute; only other rows are checked entry by entry.
    """
    finite: NDArray[np.bool_] = torch.isfinite(rows.sum(dim=1)).cpu().numpy()
    for i in np.flatnonzero(~finite):
        finite[i] = bool(torch.isfinite(rows[i]).all())
    return finite
