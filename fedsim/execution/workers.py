"""The objects in the processes of a pool: plain classes, which `ray_actors.py` puts into Ray actors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from fedsim import plugins
from fedsim.common.arrays import Floats, Ints
from fedsim.common.machine import peak_share
from fedsim.common.stopwatch import IDLE, Stopwatch, Times
from fedsim.data.federated_data import FederatedData
from fedsim.engine.trainer import Stepped
from fedsim.execution.serialization import packed, unpacked
from fedsim.server.audit_comparison import Audited
from fedsim.server.decision import Proposal
from fedsim.server.server import Server
from fedsim.server.spec import ServerSpec
from fedsim.server.step_input import StepInput
from fedsim.training.job import Cohort, Reports
from fedsim.training.loaded_model import Scores, shared_tensor
from fedsim.training.settings import WorkbenchSpec
from fedsim.training.workbench import Workbench

Array = NDArray[np.float32]
"""Parameters or an update [P], or several [k, P], as processes exchange them."""


def _tensor(kept: Array | None) -> torch.Tensor | None:
    return None if kept is None else torch.tensor(kept)


def _one_thread() -> None:
    """Use one thread: results must not depend on the number, and actors with more would compete for cores."""
    torch.set_num_threads(1)
    threadpool_limits(1)


@dataclass(frozen=True, slots=True)
class TrainerSpec:
    """Everything that a trainer needs for a run."""

    bench: WorkbenchSpec
    server: ServerSpec
    data: FederatedData
    initial: torch.Tensor
    """[P] Parameters."""
    spans: bool = False
    """Whether the stopwatches of the processes record when each part began and ended."""

    def plugin_files(self) -> dict[str, plugins.Source]:
        """Return by path each plug-in file that the run names: only the driver's node may have them."""
        names = [self.bench.model, self.bench.client, self.server.rule]
        names += [adversary.name for adversary in self.bench.adversaries]
        return plugins.sources([*names, *(str(wrapper["name"]) for wrapper in self.server.wrap)])

    def given(self) -> dict[str, Any]:
        """Return by name the factory of the model if Python code gave it: other processes have no file of it."""
        name = self.bench.model
        return {name: plugins.factory("model", name)} if name.startswith(plugins.GIVEN) else {}


class Actor:
    """The object of a process."""

    clock: Stopwatch
    """The times of this run, or since the process was restarted."""

    def ready(self) -> None:
        """Do nothing; the caller waits for the process and for what it builds."""

    def times(self, label: str) -> Times:
        """Return the times of the stopwatch."""
        return self.clock.dump(label)

    def peak_bytes(self) -> int:
        """Return the highest resident memory of this process so far."""
        return peak_share()


class ClientActor(Actor):
    """Trains and evaluates virtual clients, any of them in any process."""

    bench: Workbench

    def build(self, spec: WorkbenchSpec, data: FederatedData, spans: bool) -> None:
        """Build the workbench of a run; that of an earlier run is dropped."""
        _one_thread()
        self.clock = Stopwatch(IDLE, spans=spans)
        with self.clock.part("start"):
            self.bench = Workbench(spec, data)

    def train(self, cohort: Cohort, params: Array, *kept: Array | None) -> tuple[Reports | Array | None, ...]:
        """Train jobs from the same start; return their reports, their rows [k, columns] and what each client keeps.

        `params`: the model, and behind it the vectors that the rule sends, also for the other methods.
        `kept`: what each job's client kept from its previous job; empty, and not returned, if clients keep nothing.
        """
        start = shared_tensor(params).to(self.bench.device)
        rows = torch.empty(len(cohort), self.bench.columns, device=self.bench.device)
        with self.clock.part("train"):
            starts, before = [start] * len(cohort), [_tensor(k) for k in kept]
            reports, after = self.bench.train(cohort, starts, rows, before)
        keeps = [None if a is None else a.numpy() for a in after] if kept else []
        return reports, rows.cpu().numpy(), *keeps

    def train_one_by_one(
        self,
        guard: Callable[[str, int], AbstractContextManager[None]],
        cohort: Cohort,
        params: Array,
        *kept: Array | None,
    ) -> tuple[Reports | Array | None, ...]:
        """Train each job alone, within `guard(name, id)`; the results are bit-identical to those of `train`."""
        done: list[tuple[Any, ...]] = []
        for i, job in enumerate(map(cohort.job, range(len(cohort)))):
            name = (
                f"job {job.id}, number {job.nth} of client {job.client} (from 0), from version {job.version}, "
                f"seed {self.bench.seed},"
            )
            with guard(name, job.id):
                done.append(self.train(cohort.part(slice(i, i + 1)), params, *kept[i : i + 1]))
        reports, rows, *after = zip(*done, strict=True)
        return Reports.joined(reports), np.concatenate(rows), *(after[0] if after else ())

    def trial_losses(
        self, models: Array, clients: Ints, version: int | None, worker: int = 0, workers: int = 1
    ) -> Floats:
        """Return the mean training loss [T, k] of clients with each of `models` [T, P], or with one model [P].

        The clients are the share of `clients` that belongs to `worker` of `workers`.
        """
        share = np.array_split(clients, workers)[worker]
        with self.clock.part("evaluate"):
            models_here = self._model(np.atleast_2d(models))
            return self.bench.trial_losses(models_here, share, version)

    def evaluate(self, params: Array, average: Array | None, split: str, start: int, stop: int) -> Scores:
        """Evaluate the parameters, or their average if there is one, on a range of a split's rows."""
        model = self._model(params if average is None else average)
        with self.clock.part("evaluate"):
            return self.bench.evaluate(model, split, start, stop)

    def _model(self, params: Array) -> torch.Tensor:
        """Return models [..., P] on the device, without vectors that came with them."""
        return shared_tensor(params[..., : len(self.bench.flat)]).to(self.bench.device)

    def evaluate_personal(
        self, params: Array, average: Array | None, split: str, first: int, *kept: Array | None
    ) -> Scores:
        """Evaluate clients `first`, `first + 1`, ... each with its personal model."""
        model = self._model(params if average is None else average)
        with self.clock.part("evaluate"):
            return self.bench.evaluate_personal(model, [_tensor(k) for k in kept], split, first)


class ServerActor(Actor):
    """Holds the server of a run."""

    server: Server
    proposal: Proposal
    """The step that `accept` takes."""

    def build(self, spec: ServerSpec, initial: Array, spans: bool) -> None:
        """Build the server of a run, after dropping that of an earlier run with its history."""
        for name in ("server", "proposal"):
            self.__dict__.pop(name, None)
        self.clock = Stopwatch(IDLE, spans=spans)
        self.server = Server(spec, torch.tensor(initial), self.clock)
        _one_thread()  # after the rule is imported: its libraries may start threads

    def save(self) -> dict[str, Any]:
        """Return the server's state after the last step, `packed`."""
        return packed(self.server.save())

    def load(self, saved: Mapping[str, Any]) -> None:
        """Restore the server from a state that is `packed`."""
        self.server.load(unpacked(saved))

    def update_norms(self, clients: Ints) -> Floats:
        """Return the norms [c] of the last updates of clients; see `Server.update_norms`."""
        return self.server.update_norms(clients)

    def update_products(self, clients: Ints) -> Floats:
        """Return the inner products [c, c] of the last updates of clients; see `Server.update_products`."""
        return self.server.update_products(clients)

    def propose(
        self,
        arrivals: StepInput,
        takes: list[tuple[int, int]],
        versions: list[int],
        *stores: Reports | Array,
    ) -> tuple[Array, Ints, int]:
        """Compute the direction of a step; return the models to try, the clients to try them on, and the step.

        `stores` begins with the models of `versions`, which jobs started from; then it alternates between the reports
        and the updates [k, P] of each chunk. The step uses job `i` of chunk `c` for each `(c, i)` of `takes`.
        """
        reports = [store for store in stores if isinstance(store, Reports)]
        tensors = [shared_tensor(store) for store in stores if not isinstance(store, Reports)]
        starts, chunks = dict(zip(versions, tensors, strict=False)), tensors[len(versions) :]
        first = np.cumsum([0, *(len(r) for r in reports)])
        which = np.array([first[c] + i for c, i in takes], dtype=np.int64)
        rows = [chunks[c][i] for c, i in takes]
        arrivals = replace(arrivals, reports=Reports.joined(reports).part(which))
        self.proposal = self.server.propose(arrivals, rows, starts)
        return self.proposal.trials.cpu().numpy(), self.proposal.clients, arrivals.step

    def audit(self, step: int, clients: Ints, rows: Array) -> Audited | None:
        """Compare the updates that clients would send now with the history; see `Server.audit` and `accept`."""
        return self.server.audit(self.proposal, clients, shared_tensor(rows))

    def accept(self, step: int, *results: Floats | Audited | None) -> tuple[Stepped, Array, Array | None]:
        """Take the proposed step; return it, what jobs start from, and the average.

        `step` comes from `propose`: Ray passes its error on, and so those of `results`, which are the losses [T, k] by
        group, then what the audits returned.
        """
        losses = [result for result in results if isinstance(result, np.ndarray)]
        audited = [result for result in results if not isinstance(result, np.ndarray)]
        trial_losses = np.concatenate(losses, axis=1) if losses and len(losses[0]) else None
        columns = self.server.accept(self.proposal, trial_losses, audited)
        stepped = Stepped(columns, self.proposal.reports)
        del self.proposal
        average = self.server.average
        return stepped, self.server.sent.cpu().numpy(), None if average is None else average.cpu().numpy()

    def step(
        self,
        arrivals: StepInput,
        takes: list[tuple[int, int]],
        versions: list[int],
        *stores: Reports | Array,
    ) -> tuple[Stepped, Array, Array | None]:
        """Propose and accept in one call, for rules without trial models."""
        *_, step = self.propose(arrivals, takes, versions, *stores)
        return self.accept(step)
