"""The floors: the same training in bare torch, with no virtual clock, no records, no server and no choice of rules.

`loop1` and `loop2` train one client after the other in one process with one and with two threads. `p2` has two worker
processes with one thread each, which live from the first round to the last: samples, parameters and sums are in memory
that they share, a client's samples are gathered once, parameters are one flat vector with the gradients as views into
another, and the weighted sum is taken as clients finish.

    python benchmarks/floors.py work.npz p2 --rounds 20

`works.py` writes the file of a work and runs this. Needs an operating system that can fork.
"""

from __future__ import annotations

import multiprocessing
import statistics
from contextlib import closing
from multiprocessing.connection import Connection
from time import perf_counter
from typing import Any, Protocol

import numpy as np
import torch
from torch.nn import functional

from contest import EVALUATION_ROWS, Partition, Rounds, arguments, build_model, count_correct

KINDS = ("loop1", "loop2", "p2")
WORKERS = 2
EVALUATIONS = 5
"""How many are timed, each after a round, as those of fedsim are: the caches then hold what was trained on."""


class Bench:
    """One process's tools: the model on flat parameters and gradients."""

    def __init__(self, work: Partition, seed: int) -> None:
        self.work, self.spec = work, work.spec
        self.x, self.y = torch.from_numpy(work.x), torch.from_numpy(work.y)
        self.test_x, self.test_y = torch.from_numpy(work.test_x), torch.from_numpy(work.test_y)
        self.draws = torch.Generator().manual_seed(seed)
        self.model = build_model(work)
        self.flat, self.grads = torch.empty(len(work.initial)), torch.zeros(len(work.initial))
        start = 0
        for parameter in self.model.parameters():
            stop = start + parameter.numel()
            parameter.data = self.flat[start:stop].view(parameter.shape)
            parameter.grad = self.grads[start:stop].view(parameter.shape)
            start = stop

    def train(self, params: torch.Tensor, clients: list[int], total: torch.Tensor) -> int:
        """Train clients from `params` [P]; leave the sum of samples x parameters in `total` [P], return the samples."""
        samples, size, lr = 0, self.spec.batch_size, self.spec.lr
        total.zero_()
        for client in clients:
            rows = self.work.rows(client)
            n = rows.stop - rows.start
            order = torch.randperm(n, generator=self.draws) + rows.start
            x, y = self.x[order], self.y[order]
            self.flat.copy_(params)
            for batch, labels in zip(torch.split(x, size), torch.split(y, size), strict=True):
                self.grads.zero_()
                functional.cross_entropy(self.model(batch), labels).backward()  # type: ignore[no-untyped-call]
                self.flat.add_(self.grads, alpha=-lr)
            total.add_(self.flat, alpha=n)
            samples += n
        return samples

    def correct(self, params: torch.Tensor, start: int, stop: int) -> int:
        """Count the test samples `start` to `stop` that the model `params` [P] classifies rightly."""
        self.flat.copy_(params)
        return count_correct(self.model, self.test_x[start:stop], self.test_y[start:stop])


class Floor(Protocol):
    """Trains and evaluates the current parameters."""

    def round(self, clients: list[int]) -> None:
        """Train the clients and average."""

    def correct(self) -> int:
        """Count the test samples that are classified rightly."""

    def close(self) -> None:
        """Stop what was started."""


class Loop:
    """One client after the other in this process."""

    def __init__(self, work: Partition) -> None:
        self.bench = Bench(work, 1)
        self.params = torch.from_numpy(work.initial.copy())
        self.total = torch.empty_like(self.params)

    def round(self, clients: list[int]) -> None:
        """Train the clients and average."""
        samples = self.bench.train(self.params, clients, self.total)
        torch.div(self.total, samples, out=self.params)

    def correct(self) -> int:
        """Count the test samples that are classified rightly."""
        return self.bench.correct(self.params, 0, len(self.bench.test_y))

    def close(self) -> None:
        """There is nothing to stop."""


class TwoProcesses:
    """Half of the clients in each of two processes that live on."""

    def __init__(self, work: Partition) -> None:
        self.sizes, self.tests = work.sizes, len(work.test_y)
        self.params = torch.from_numpy(work.initial.copy()).share_memory_()  # type: ignore[no-untyped-call]
        self.totals = torch.empty(WORKERS, len(self.params)).share_memory_()  # type: ignore[no-untyped-call]
        context = multiprocessing.get_context("fork")  # the samples are there already, and so is torch
        self.pipes: list[Connection] = []
        self.workers = []
        for number in range(WORKERS):
            here, there = context.Pipe()
            given = (work, number, self.params, self.totals[number], there)
            self.workers.append(context.Process(target=_serve, args=given, daemon=True))
            self.workers[-1].start()
            self.pipes.append(here)

    def _ask(self, what: str, *given: Any) -> list[int]:
        for pipe, each in zip(self.pipes, given, strict=True):
            pipe.send((what, each))
        return [pipe.recv() for pipe in self.pipes]

    def round(self, clients: list[int]) -> None:
        """Train the clients and average. They are dealt by size, so that both processes finish together."""
        dealt = sorted(clients, key=lambda client: -self.sizes[client])
        samples = sum(self._ask("train", *(dealt[number::WORKERS] for number in range(WORKERS))))
        torch.sum(self.totals, 0, out=self.params)
        self.params.div_(samples)

    def correct(self) -> int:
        """Count the test samples that are classified rightly; each process takes half of the batches."""
        batches = -(-self.tests // EVALUATION_ROWS)
        middle = -(-batches // WORKERS) * EVALUATION_ROWS
        return sum(self._ask("correct", (0, middle), (middle, self.tests)))

    def close(self) -> None:
        """Stop the processes."""
        for pipe, worker in zip(self.pipes, self.workers, strict=True):
            pipe.send(None)
            worker.join()


def _serve(work: Partition, number: int, params: torch.Tensor, total: torch.Tensor, pipe: Connection) -> None:
    bench = Bench(work, 1 + number)
    while (asked := pipe.recv()) is not None:
        what, given = asked
        pipe.send(bench.train(params, given, total) if what == "train" else bench.correct(params, *given))


def main() -> None:
    """Train, evaluate, and print what was measured."""
    parser = arguments(__doc__)
    parser.add_argument("kind", choices=KINDS)
    given = parser.parse_args()
    torch.set_num_threads(2 if given.kind == "loop2" else 1)
    work, rounds, draws = Partition.read(given.work), Rounds(given.since), np.random.default_rng(1)
    make: type[Loop] | type[TwoProcesses] = TwoProcesses if given.kind == "p2" else Loop
    with closing(make(work)) as floor:

        def train() -> None:
            floor.round(draws.choice(work.n_clients, work.spec.clients_per_round, replace=False).tolist())

        for _ in range(1 + given.rounds):
            train()
            rounds.end()
        accuracy, seconds = floor.correct() / len(work.test_y), []
        for _ in range(EVALUATIONS):
            train()
            started = perf_counter()
            floor.correct()
            seconds.append(perf_counter() - started)
    rounds.say(accuracy, statistics.median(seconds))


if __name__ == "__main__":
    main()
