"""A trainer in the calling process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsim.common.arrays import Floats, Ints
from fedsim.common.stopwatch import Stopwatch, Times
from fedsim.engine.audit import LOSSES, parts_of
from fedsim.engine.trainer import Pending, Stepped
from fedsim.execution.client_state import ClientStates
from fedsim.server.audit_comparison import Audited
from fedsim.server.decision import Proposal
from fedsim.server.server import Server
from fedsim.server.step_input import StepInput
from fedsim.training.evaluation import Evaluation, chunks_of, per_client
from fedsim.training.job import Cohort, Job, Reports
from fedsim.training.threaded_workbench import ThreadedWorkbench
from fedsim.training.workbench import Workbench


@dataclass(slots=True, eq=False)
class Work:
    """A submitted job whose client keeps state; `start` and `before` become None once it is trained."""

    job: Job
    start: Tensor | None
    before: Work | None
    """The job whose kept state this one continues, if any."""
    row: Tensor | None = None
    reports: Reports | None = None
    kept: Tensor | None = None

    def untrained(self) -> Iterator[Work]:
        """Yield this job and the jobs that it continues, those that are not trained yet."""
        work: Work | None = self
        while work is not None and work.start is not None:
            yield work
            work = work.before

    def taken(self) -> Tensor:
        """Return the update of a trained job, and let go of it."""
        row, self.row = self.row, None
        assert row is not None
        return row


class InlineTrainer:
    """Trains jobs in the calling process when a step collects them, so that unused jobs cost nothing."""

    def __init__(
        self, bench: Workbench | ThreadedWorkbench, server: Server, clock: Stopwatch | None = None
    ) -> None:
        self.bench, self.server, self.clock = bench, server, clock or Stopwatch()
        self._starts: dict[int, Tensor] = {}
        """By version, the parameters that jobs start from, now or later, including jobs that are not trained."""
        self._early: dict[int, tuple[Reports, Tensor]] = {}
        """By job, the reports and the update of jobs that were trained before their step."""
        self._waiting: dict[int, Work] = {}
        self._memories: ClientStates[Work] = ClientStates()

    def submit(self, cohort: Cohort) -> None:
        """Keep the current model, which jobs start from now or later."""
        self._starts[int(cohort.versions[0])] = self.server.sent
        self._submit(cohort)

    def _submit(self, cohort: Cohort) -> None:
        if self.bench.method.keeps:
            for i, start in enumerate(cohort.start_versions.tolist()):
                job = cohort.job(i)
                before = self._memories.of(job.client)
                work = self._waiting[job.id] = Work(job, self._starts[start], before)
                self._memories.submit(job.id, job.client, work)

    def forget(self, cohort: Cohort) -> None:
        """Drop jobs, and restore what their clients kept before."""
        for job, client in zip(cohort.ids.tolist(), cohort.clients.tolist(), strict=True):
            self._early.pop(job, None)
            self._waiting.pop(job, None)
            self._memories.forget(job, client)

    def reports(self, cohort: Cohort) -> Reports:
        """Train the jobs now."""
        self._ahead(cohort)
        return Reports.joined([self._early[job][0] for job in cohort.ids.tolist()])

    def _ahead(self, cohort: Cohort) -> None:
        """Train the jobs that are not trained yet, before the step that uses them."""
        missing = [i for i, job in enumerate(cohort.ids.tolist()) if job not in self._early]
        if missing:
            jobs = cohort.part(np.array(missing))
            reports, rows = self._trained(jobs)
            for i, job in enumerate(jobs.ids.tolist()):
                self._early[job] = reports.part(slice(i, i + 1)), rows[i]

    def _rows(self, k: int) -> Tensor:
        return torch.empty(k, self.bench.columns, device=self.bench.device)

    def _trained(self, cohort: Cohort) -> tuple[Reports, Tensor]:
        """Train jobs, each from its own start; return their reports and updates [k, P]."""
        rows = self._rows(len(cohort))
        if self.bench.method.keeps:
            works = [self._waiting.pop(job) for job in cohort.ids.tolist()]
            self._train_in_order(works, rows)
            for work, row in zip(works, rows, strict=True):
                row.copy_(work.taken())
            return Reports.joined([work.reports for work in works if work.reports is not None]), rows
        starts = [self._starts[version].to(self.bench.device) for version in cohort.start_versions.tolist()]
        reports = self.bench.train(cohort, starts, rows)[0] if starts else Reports.nothing(0)
        return reports, rows

    def _train_in_order(self, works: Sequence[Work], rows: Tensor) -> None:
        """Train jobs, after any untrained jobs that they continue, those that wait for no other together.

        Jobs that all train together train into `rows` [k, columns]: no second copy of large updates is needed.
        """
        untrained = {id(work): work for one in works for work in one.untrained()}
        while untrained:
            ready = [work for work in untrained.values() if work.before is None or work.before.start is None]
            self._train_together(ready, rows if ready == works else self._rows(len(ready)))
            for work in ready:
                del untrained[id(work)]

    def _train_together(self, works: Sequence[Work], rows: Tensor) -> None:
        """Train jobs, whose clients have finished the jobs before, into `rows` [k, columns]."""
        starts = [work.start.to(self.bench.device) for work in works if work.start is not None]
        kept = [None if work.before is None else work.before.kept for work in works]
        reports, after = self.bench.train(Cohort.of([work.job for work in works]), starts, rows, kept)
        for i, (work, row, keeps) in enumerate(zip(works, rows, after, strict=True)):
            work.reports, work.row, work.kept = reports.part(slice(i, i + 1)), row, keeps
            work.start = work.before = None

    def _collected(self, cohort: Cohort) -> tuple[Reports, Tensor]:
        """Return the reports and updates [k, P] of jobs of which some were trained early; train the others."""
        self._ahead(cohort)
        early = [self._early.pop(job) for job in cohort.ids.tolist()]
        return Reports.joined([reports for reports, _ in early]), torch.stack([row for _, row in early])

    def losses(self, clients: Ints, version: int) -> Floats:
        """Compute the losses now."""
        models = self.server.params[None].to(self.bench.device)
        return np.asarray(self.bench.trial_losses(models, clients, version)[0])

    def update_norms(self, clients: Ints) -> Floats:
        """Ask the server now."""
        return self.server.update_norms(clients)

    def update_products(self, clients: Ints) -> Floats:
        """Ask the server now."""
        return self.server.update_products(clients)

    def step(self, arrivals: StepInput, cohort: Cohort) -> Pending[Stepped]:
        """Train the jobs and take the step now."""
        with self.clock.part("train"):
            early = any(job in self._early for job in cohort.ids.tolist())
            reports, rows = self._collected(cohort) if early else self._trained(cohort)
        if self.bench.method.keeps:
            for job, client in zip(cohort.ids.tolist(), cohort.clients.tolist(), strict=True):
                self._memories.settle(job, client)
        arrivals = replace(arrivals, reports=reports)
        before = self.server.params
        self._starts[arrivals.step] = self.server.sent
        proposal = self.server.propose(arrivals, rows, self._starts)
        losses = self._tried(proposal, arrivals.step)
        audited = [] if arrivals.audit is None else self._audit(proposal, arrivals.audit)
        stepped = Stepped(self.server.accept(proposal, losses, audited), proposal.reports)
        if "audited" in stepped.columns:
            models, clients = torch.stack([before, self.server.params]), stepped.columns["audited"]["client"]
            with self.clock.part("audit"):
                losses = self.bench.trial_losses(models.to(self.bench.device), clients, None)
            stepped.columns["audited"] |= dict(zip(LOSSES, losses, strict=True))
        self._starts = arrivals.still_needed(self._starts)
        return lambda: stepped

    def _tried(self, proposal: Proposal, version: int) -> Floats | None:
        """Return the losses [t, m] after trials, up to the first that the rule accepts; None without trials."""
        tried: list[Floats] = []
        for position, model in enumerate(proposal.trials):
            tried.append(self.bench.trial_losses(model[None], proposal.clients, version)[0])
            if proposal.accepts(position, tried[-1]):
                break
        return np.stack(tried) if tried else None

    def _audit(self, proposal: Proposal, cohort: Cohort) -> list[Audited | None]:
        audited = []
        start = self.server.sent.to(self.bench.device)
        with self.clock.part("audit"):
            for part in parts_of(cohort, 4 * self.bench.columns):
                rows = self._rows(len(part))
                self.bench.train(part, [start] * len(part), rows)
                audited.append(self.server.audit(proposal, part.clients, rows))
        return audited

    def evaluate(self, split: str, *, personal: bool = False) -> Pending[Evaluation]:
        """Evaluate now."""
        rows, average = self.bench.splits[split], self.server.average
        params = (self.server.params if average is None else average).to(self.bench.device)
        if personal:
            kept = list(map(self._kept().get, range(len(rows.sizes))))
            parts = [self.bench.evaluate_personal(params, kept, split, 0)]
        else:
            parts = [self.bench.evaluate(params, split, a, b) for a, b in chunks_of(rows, 1)]
        result = per_client(rows, parts)
        return lambda: result

    def _kept(self) -> dict[int, Tensor]:
        """Return by client what clients keep [P], in order of client."""
        settled = sorted(self._memories.settled.items())
        return {client: work.kept for client, work in settled if work.kept is not None}

    def save(self) -> dict[str, Any]:
        """Return the server's state, the start models of open jobs, and what clients keep."""
        return saved_parts(self.server.save(), self._starts, self._kept())

    def load(self, saved: Mapping[str, Any], open_jobs: Iterable[Cohort]) -> None:
        """Restore the saved state, and submit the open jobs."""
        self.server.load(saved["server"])
        for client, row in zip(saved["keepers"], saved["kept"], strict=True):
            job = Job(-1, client, -1, -1)
            self._memories.begin(client, Work(job, None, None, kept=row.cpu()))
        self._starts = {version: start.to(self.server.device) for version, start in starts_of(saved).items()}
        for cohort in open_jobs:
            self._submit(cohort)

    def params(self) -> dict[str, Tensor]:
        """Return copies on the CPU of the current parameters, of their average and of the clients' personal models."""
        kept = self._kept() if self.bench.method.personal else {}
        return final_models(self.server.params, self.server.average, kept)

    def peak_bytes(self) -> int:
        """Return 0: there is no other process."""
        return 0

    def times(self) -> list[Times]:
        """Return an empty list: there is no other process."""
        return []

    def close(self) -> None:
        """Drop all waiting jobs and what clients keep."""
        self._waiting.clear()
        self._early.clear()
        self._starts.clear()
        self._memories = ClientStates()


def saved_parts(server: dict[str, Any], starts: dict[int, Tensor], kept: dict[int, Tensor]) -> dict[str, Any]:
    """Return the result of `Trainer.save` from the start models by version and what clients keep [P] by client."""
    return {
        "server": server,
        "versions": sorted(starts),
        "starts": [starts[version] for version in sorted(starts)],
        "keepers": sorted(kept),
        "kept": [kept[client] for client in sorted(kept)],
    }


def starts_of(saved: Mapping[str, Any]) -> dict[int, Tensor]:
    """Return the saved start models by version."""
    return dict(zip(saved["versions"], saved["starts"], strict=True))


def final_models(params: Tensor, average: Tensor | None, personal: Mapping[int, Tensor]) -> dict[str, Tensor]:
    """Return the result of `Trainer.params` from the global model, its average, and personal models by client."""
    models = {"params": params.cpu().clone()}
    if average is not None:
        models["average"] = average.cpu().clone()
    if personal:
        models["personal"] = torch.stack(list(personal.values()))
        models["personal_clients"] = torch.tensor(list(personal))
    return models
