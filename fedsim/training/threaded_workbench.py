"""Several workbenches of one process, each in a thread of its own: what workers are to a run of many processes.

torch gives up the interpreter's lock while it computes, so threads pay where its operations are long. A client's bits
depend on nothing but its own job, so it does not matter on which bench it trains, nor beside whom.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from fedsim.common import threads
from fedsim.data.federated_data import FederatedData
from fedsim.training.client_method import ClientMethod
from fedsim.training.evaluation import EVAL_ROWS
from fedsim.training.job import Cohort, Ints, Reports
from fedsim.training.modes import may_draw
from fedsim.training.modes.vmap import WIDTH
from fedsim.training.network import Network
from fedsim.training.settings import WorkbenchSpec
from fedsim.training.workbench import Workbench

Done = TypeVar("Done")
Evaluated = tuple[NDArray[np.float64], NDArray[np.bool_]]

_WORTH = 2**21
"""Operations of a forward pass over one client's minibatch from which on threads pay. Below, the interpreter's own work
between the operations weighs as much as they do, and threads wait for each other: twice as slow at 2**14."""


def worth(spec: WorkbenchSpec, network: Network, method: ClientMethod, sizes: Ints) -> bool:
    """Return whether several benches are faster than one, by what the work is and not by a timing.

    They are not on a GPU and for small models, and cannot be where training may draw from torch's generator, of which a
    process has one. Where clients keep something from job to job they train one after the other.

    Args:
        sizes: [K] training samples of the clients.
    """
    return is_large(spec, network, sizes) and not is_serial(spec, network, method)


def is_large(spec: WorkbenchSpec, network: Network, sizes: Ints) -> bool:
    """Return whether a forward pass over one client's minibatch is long enough for several threads or processes.

    Args:
        sizes: [K] training samples of the clients.
    """
    mean = float(sizes.mean()) if len(sizes) else 0.0
    return min(spec.sgd.batch_size or mean, mean) * network.flops >= _WORTH


def is_serial(spec: WorkbenchSpec, network: Network, method: ClientMethod) -> bool:
    """Return whether one process trains in one thread only: on a GPU, with draws, or if clients keep something."""
    own = method.train is not None or method.personal is not None
    drawn = bool(may_draw(network.module)) or (own and method.draws)
    return spec.device.startswith("cuda") or method.keeps or drawn


class ThreadedWorkbench:
    """Benches that share a run's data. Each of its methods is that of a `Workbench`, and gives the same bits."""

    def __init__(self, spec: WorkbenchSpec, data: FederatedData) -> None:
        self.first = Workbench(spec, data)
        self.spec, self.method, self.device = spec, self.first.method, self.first.device
        self.splits, self.mode = self.first.splits, self.first.mode
        self._data, self._idle = data, deque([self.first])
        self._benches = 1
        self._worth = worth(spec, self.first.network, self.method, self.splits["train"].sizes)

    def train(
        self,
        cohort: Cohort,
        starts: Sequence[torch.Tensor],
        rows: torch.Tensor,
        kept: Sequence[torch.Tensor | None] | None = None,
    ) -> tuple[Reports, list[torch.Tensor | None]]:
        """Train each job from its start [P] into its row of `rows` [k, P]."""
        k = len(cohort)
        shares = self._dealt(k, {"loop": 1, "vmap": WIDTH, "dense": -(-k // self._members())}[self.mode])
        if len(shares) < 2:
            return self.first.train(cohort, starts, rows, kept)

        def work(bench: Workbench, share: slice) -> Reports:
            return bench.train(cohort.part(share), starts[share], rows[share])[0]

        reports = Reports.nothing(k)
        for share, found in zip(shares, self._together(work, shares), strict=True):
            reports.enter(np.arange(k)[share], found)
        return reports, [None] * k

    def trial_losses(self, models: torch.Tensor, clients: Ints, version: int | None) -> NDArray[np.float64]:
        """Return the mean training loss [T, k] of each of `clients` [k] with each of `models` [T, P]."""
        shares = self._dealt(len(clients), -(-len(clients) // self._members()))
        if len(shares) < 2:
            return self.first.trial_losses(models, clients, version)

        def work(bench: Workbench, share: slice) -> NDArray[np.float64]:
            return bench.trial_losses(models, clients[share], version)

        losses = np.empty((len(models), len(clients)))
        for share, found in zip(shares, self._together(work, shares), strict=True):
            losses[:, share] = found
        return losses

    def evaluate(self, params: torch.Tensor, split: str, start: int, stop: int) -> Evaluated:
        """Return per-sample losses and correctness of entries `start` to `stop` of a split's rows."""
        if self._members() < 2 or stop - start <= EVAL_ROWS:
            return self.first.evaluate(params, split, start, stop)

        def work(bench: Workbench, at: int) -> Evaluated:
            return bench.evaluate(params, split, at, min(at + EVAL_ROWS, stop))

        losses, correct = zip(*self._together(work, range(start, stop, EVAL_ROWS)), strict=True)
        return np.concatenate(losses), np.concatenate(correct)

    def evaluate_personal(
        self, params: torch.Tensor, kept: Sequence[torch.Tensor | None], split: str, first: int
    ) -> Evaluated:
        """As `evaluate`, for the clients `first`, `first + 1`, ... each with the model it would use itself."""
        if self._members() < 2 or len(kept) < 2:
            return self.first.evaluate_personal(params, kept, split, first)

        def work(bench: Workbench, i: int) -> Evaluated:
            return bench.evaluate_personal(params, kept[i : i + 1], split, first + i)

        losses, correct = zip(*self._together(work, range(len(kept))), strict=True)
        return np.concatenate(losses), np.concatenate(correct)

    def _members(self) -> int:
        return threads.most() if self._worth else 1

    def _dealt(self, k: int, at_once: int) -> list[slice]:
        """Deal `k` clients out, at most `at_once` of them together; one share if there is one bench."""
        shares = min(k, -(-k // max(at_once, 1))) if self._members() > 1 else 1
        return [slice(i, None, shares) for i in range(shares)]

    def _together(
        self, work: Callable[[Workbench, threads.Part], Done], parts: Sequence[threads.Part]
    ) -> list[Done]:
        """Return what `work` makes of each part, each on a bench that is idle."""
        for _ in range(min(self._members(), len(parts)) - self._benches):
            self._idle.append(Workbench(self.spec, self._data))
            self._benches += 1

        def one(part: threads.Part) -> Done:
            torch.set_num_threads(1)  # of this thread: a new one takes what the process began with
            bench = self._idle.popleft()
            try:
                return work(bench, part)
            finally:
                self._idle.append(bench)

        return list(threads.in_order(one, parts, worth=True))
