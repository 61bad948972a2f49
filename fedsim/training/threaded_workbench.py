"""A thread pool of workbenches: several threads of one process train and evaluate clients.

torch releases the interpreter lock while it computes, so threads are faster where its operations are long. A client's
bits depend on its own job alone, so that it may train on any workbench beside any other client.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from fedsim.common import threads
from fedsim.common.arrays import Floats, Ints
from fedsim.data.federated_data import FederatedData
from fedsim.training.attacked_jobs import Kept, Results
from fedsim.training.client_method import ClientMethod
from fedsim.training.evaluation import EVAL_ROWS
from fedsim.training.job import Cohort, Reports
from fedsim.training.loaded_model import Scores, joined
from fedsim.training.modes import may_draw
from fedsim.training.modes.vmap import WIDTH
from fedsim.training.network import Network
from fedsim.training.settings import WorkbenchSpec
from fedsim.training.workbench import Workbench

Result = TypeVar("Result")

_LEAST_OPERATIONS = 2**21
"""Fewest operations in the forward pass of one client's minibatch with which threads are faster. With fewer, the time
between torch's operations dominates, in which threads wait for the interpreter lock."""


def worth(spec: WorkbenchSpec, network: Network, method: ClientMethod, sizes: Ints) -> bool:
    """Return whether several threads are faster than one, by a rule of the work and never by a timing.

    One thread is faster on a GPU and for small models. It is required if training may draw from torch's generator, of
    which a process has one. `sizes` [K] are the clients' training samples.
    """
    return is_large(spec, network, sizes) and not is_serial(spec, network, method)


def is_large(spec: WorkbenchSpec, network: Network, sizes: Ints) -> bool:
    """Return whether a forward pass over one client's minibatch is long enough for several threads or processes.

    `sizes` [K] are the clients' training samples.
    """
    mean = float(sizes.mean()) if len(sizes) else 0.0
    return min(spec.sgd.batch_size or mean, mean) * network.flops >= _LEAST_OPERATIONS


def is_serial(spec: WorkbenchSpec, network: Network, method: ClientMethod) -> bool:
    """Return whether one process trains in one thread only: on a GPU, or with draws."""
    own = method.train is not None or method.personal is not None
    drawn = bool(may_draw(network.module)) or (own and method.draws)
    return spec.device.startswith("cuda") or drawn


class ThreadedWorkbench:
    """Workbenches that share a run's data, one per thread. Its methods give the same bits as those of `Workbench`.

    Several threads must be `worth` it for the spec.
    """

    def __init__(self, spec: WorkbenchSpec, data: FederatedData) -> None:
        self.first = Workbench(spec, data)
        self.spec, self.method, self.device = spec, self.first.method, self.first.device
        self.splits, self.mode = self.first.splits, self.first.mode
        self.columns = self.first.columns
        self._data, self._idle, self._count = data, deque([self.first]), 1

    def train(
        self, cohort: Cohort, starts: Sequence[Tensor], rows: Tensor, kept: Sequence[Kept] | None = None
    ) -> Results:
        """Train each job from its start [P] into its row of `rows` [k, P]."""
        k = len(cohort)
        shares = self._shares(k, {"loop": 1, "vmap": WIDTH, "dense": -(-k // threads.most())}[self.mode])
        if len(shares) < 2:
            return self.first.train(cohort, starts, rows, kept)

        before = [None] * k if kept is None else kept

        def work(bench: Workbench, share: slice) -> Results:
            return bench.train(cohort.part(share), starts[share], rows[share], before[share])

        reports, after = Reports.nothing(k), list(before)
        for share, (part, keeps) in zip(shares, self._in_threads(work, shares), strict=True):
            reports.enter(np.arange(k)[share], part)
            after[share] = keeps
        return reports, after

    def trial_losses(self, models: Tensor, clients: Ints, version: int | None) -> Floats:
        """Return the mean training loss [T, k] of each of `clients` [k] with each of `models` [T, P]."""
        shares = self._shares(len(clients), -(-len(clients) // threads.most()))
        if len(shares) < 2:
            return self.first.trial_losses(models, clients, version)

        def work(bench: Workbench, share: slice) -> Floats:
            return bench.trial_losses(models, clients[share], version)

        losses = np.empty((len(models), len(clients)))
        for share, part in zip(shares, self._in_threads(work, shares), strict=True):
            losses[:, share] = part
        return losses

    def evaluate(self, params: Tensor, split: str, start: int, stop: int) -> Scores:
        """Return per-sample losses and correctness of entries `start` to `stop` of a split."""
        if threads.most() < 2 or stop - start <= EVAL_ROWS:
            return self.first.evaluate(params, split, start, stop)

        def work(bench: Workbench, at: int) -> Scores:
            return bench.evaluate(params, split, at, min(at + EVAL_ROWS, stop))

        return joined(self._in_threads(work, range(start, stop, EVAL_ROWS)))

    def evaluate_personal(self, params: Tensor, kept: Sequence[Kept], split: str, first: int) -> Scores:
        """As `evaluate`, for the samples of the clients `first`, `first + 1`, ... with their personal models."""
        if threads.most() < 2 or len(kept) < 2:
            return self.first.evaluate_personal(params, kept, split, first)

        def work(bench: Workbench, i: int) -> Scores:
            return bench.evaluate_personal(params, kept[i : i + 1], split, first + i)

        return joined(self._in_threads(work, range(len(kept))))

    def _shares(self, k: int, most: int) -> list[slice]:
        """Divide `k` clients into shares of at most `most` clients; return one share if there is one thread."""
        shares = min(k, -(-k // max(most, 1))) if threads.most() > 1 else 1
        return [slice(i, None, shares) for i in range(shares)]

    def _in_threads(
        self, work: Callable[[Workbench, threads.Part], Result], parts: Sequence[threads.Part]
    ) -> list[Result]:
        """Return the results of `work` for each part, each computed with a workbench that no other thread uses."""
        for _ in range(min(threads.most(), len(parts)) - self._count):
            self._idle.append(Workbench(self.spec, self._data))
            self._count += 1

        def run(part: threads.Part) -> Result:
            torch.set_num_threads(1)  # per thread: a new thread starts with the process's initial number
            bench = self._idle.popleft()
            try:
                return work(bench, part)
            finally:
                self._idle.append(bench)

        return list(threads.in_order(run, parts, worth=True))
