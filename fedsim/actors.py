"""Ray around the plain objects: a pool of client actors that each host all virtual clients, and one server actor.

A virtual client is a row of data, never a process: any actor can train any client. Parameters go into the object
store once per server step and data once per node; rows go from the client actors to the server actor, and what a client
keeps from job to job to whichever actor trains it next, without passing through the driver, which sees a few floats
per job.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

os.environ.setdefault(
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0"
)  # else `uv run` rebuilds the environment in each worker

import numpy as np
import ray
import torch
from numpy.typing import NDArray

from fedsim.client import ClientMethod
from fedsim.data import FederatedData, Split
from fedsim.errors import RunError
from fedsim.job import Cohort, Reports
from fedsim.local import Evaluation, WorkbenchSpec, chunks_of, per_client
from fedsim.processes import ClientActor, ServerActor
from fedsim.profile import SERVER, WORKER
from fedsim.server import Arrivals, ServerSpec
from fedsim.stopwatch import Times
from fedsim.trainer import Memories, Pending, Stepped, named, named_personal

_CHUNK_BYTES = 64 * 2**20
"""Most bytes of rows that one call returns."""


@dataclass(slots=True, eq=False)
class _Chunk:
    """Jobs sent to one actor in one call."""

    reports: Any
    rows: Any
    worker: int


class RayPool:
    """The actor processes, started once and used by one run after the other.

    Args:
        workers: number of client actors, at least 1.
        gpus: GPUs on this machine; each actor gets an equal share of them.
        object_store_bytes: memory for what the processes share.
    """

    def __init__(self, workers: int, *, gpus: int = 0, object_store_bytes: int = 2**30) -> None:
        self._owns_ray = not ray.is_initialized()
        if self._owns_ray:
            ray.init(
                num_cpus=workers + 1,
                object_store_memory=max(object_store_bytes, 128 * 2**20),
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
        share = gpus / (workers + 1)
        make_client = ray.remote(num_cpus=1, num_gpus=share)(ClientActor)
        self.clients: list[Any] = [make_client.remote() for _ in range(workers)]
        self.server: Any = ray.remote(num_cpus=0, num_gpus=share)(ServerActor).remote()

    def trainer(
        self,
        bench: WorkbenchSpec,
        server: ServerSpec,
        data: FederatedData,
        initial: torch.Tensor,
        costs: NDArray[np.int64],
        *,
        spans: bool = False,
    ) -> RayTrainer:
        """Set the actors up for a run. `costs` [K]: relative cost of one job of each client, to spread work evenly."""
        shared, params = ray.put(data), ray.put(initial.numpy())
        builds = [client.build.remote(bench, shared, spans) for client in self.clients]
        _get([*builds, self.server.build.remote(server, params, spans)])
        searches = server.algorithm().needs.search
        splits = data.splits(bench.some)
        return RayTrainer(self, splits, params, initial.nbytes, costs, bench.method(), searches)

    def close(self) -> None:
        """Stop the actors, and Ray if this pool started it. Safe to call twice."""
        if ray.is_initialized():
            for actor in (*self.clients, self.server):
                ray.kill(actor)
            if self._owns_ray:
                ray.shutdown()
        self.clients = []


class RayTrainer:
    """Trains in the client actors of a pool, with the server in its own; see `fedsim.trainer.Trainer`."""

    def __init__(
        self,
        pool: RayPool,
        splits: Mapping[str, Split],
        params: Any,
        row_bytes: int,
        costs: NDArray[np.int64],
        method: ClientMethod,
        searches: bool,
    ) -> None:
        self._clients, self._server, self._searches = pool.clients, pool.server, searches
        self._splits, self._params, self._row_bytes, self._costs = splits, params, row_bytes, costs
        self._method, self._memories = method, Memories[Any]()
        self._average: Any = None
        self._load = [0] * len(pool.clients)
        self._chunks: dict[int, tuple[_Chunk, int]] = {}
        """By job, the call that it was sent with and its place there."""

    def submit(self, cohort: Cohort) -> None:
        """Spread jobs over the actors by cost, the largest first, in calls of bounded size."""
        costs, load = self._costs[cohort.clients], self._load
        shares: list[list[int]] = [[] for _ in load]
        order = np.lexsort((cohort.ids, -costs))
        for i, cost in zip(order.tolist(), costs[order].tolist(), strict=True):
            worker = load.index(min(load))
            shares[worker].append(i)
            load[worker] += cost
        most = max(1, _CHUNK_BYTES // self._row_bytes)
        for worker, share in enumerate(shares):
            for a in range(0, len(share), most):
                self._call(worker, cohort.part(np.sort(share[a : a + most])))

    def _call(self, worker: int, cohort: Cohort) -> None:
        jobs, clients = cohort.ids.tolist(), cohort.clients.tolist()
        before = [self._memories.of(client) for client in clients] if self._method.keeps else []
        call = self._clients[worker].train.options(num_returns=2 + len(before))
        reports, rows, *kept = call.remote(cohort, self._params, *before)
        for job, client, keeps in zip(jobs, clients, kept, strict=False):
            self._memories.submit(job, client, keeps)
        chunk = _Chunk(reports, rows, worker)
        self._chunks.update((job, (chunk, i)) for i, job in enumerate(jobs))

    def reports(self, cohort: Cohort) -> Reports:
        """Wait for the calls that hold the jobs; rows stay in the object store."""
        places = [self._chunks[job] for job in cohort.ids.tolist()]
        chunks = list({id(chunk): chunk for chunk, _ in places}.values())
        found: list[Reports] = _get([chunk.reports for chunk in chunks])
        first = np.cumsum([0, *(len(reports) for reports in found)]).tolist()
        base = {id(chunk): a for chunk, a in zip(chunks, first, strict=False)}
        which = np.array([base[id(chunk)] + i for chunk, i in places], dtype=np.int64)
        return Reports.joined(found).part(which)

    def forget(self, cohort: Cohort) -> None:
        """Drop the hold on jobs; what is already computed is freed by the object store."""
        for job, client in zip(cohort.ids.tolist(), cohort.clients.tolist(), strict=True):
            if job in self._chunks:
                self._take(job, client)
                if self._method.keeps:
                    self._memories.forget(job, client)

    def _take(self, job: int, client: int) -> tuple[_Chunk, int]:
        chunk, place = self._chunks.pop(job)
        self._load[chunk.worker] -= int(self._costs[client])
        return chunk, place

    def losses(self, clients: NDArray[np.int64]) -> NDArray[np.float64]:
        """Spread the clients over the actors and wait."""
        groups = np.array_split(clients, len(self._clients))
        calls = [c.losses.remote(self._params, g) for c, g in zip(self._clients, groups, strict=True)]
        return np.concatenate(_get(calls))

    def step(self, arrivals: Arrivals, cohort: Cohort) -> Pending[Stepped]:
        """Hand the rows to the server actor; returns at once."""
        jobs, clients = cohort.ids.tolist(), cohort.clients.tolist()
        taken = [self._take(job, client) for job, client in zip(jobs, clients, strict=True)]
        if self._method.keeps:
            for job, client in zip(jobs, clients, strict=True):
                self._memories.settle(job, client)
        number: dict[int, int] = {}
        takes = [(number.setdefault(id(chunk), len(number)), i) for chunk, i in taken]
        chunks = {id(chunk): chunk for chunk, _ in taken}
        stores = [ref for key in number for ref in (chunks[key].reports, chunks[key].rows)]
        if self._searches:
            proposed = self._server.propose.options(num_returns=2).remote(arrivals, takes, *stores)
            workers = len(self._clients)
            losses = [c.share_of_losses.remote(*proposed, w, workers) for w, c in enumerate(self._clients)]
            made = self._server.accept.options(num_returns=3).remote(*losses)
        else:
            made = self._server.step.options(num_returns=3).remote(arrivals, takes, *stores)
        stepped, self._params, self._average = made
        return lambda: _get(stepped)

    def evaluate(self, split: str, *, personal: bool = False) -> Pending[Evaluation]:
        """Spread the split's rows over the actors, or the clients if `personal`; returns at once."""
        rows = self._splits[split]
        parts = self._personal_parts(split) if personal else self._parts(split, rows)

        def result() -> Evaluation:
            return per_client(rows, _get(parts))

        return result

    def _parts(self, split: str, rows: Split) -> list[Any]:
        pieces = chunks_of(rows, len(self._clients))
        return [
            client.evaluate.remote(self._params, self._average, split, a, b)
            for client, (a, b) in zip(self._clients, pieces, strict=False)
        ]

    def _personal_parts(self, split: str) -> list[Any]:
        pieces = np.array_split(np.arange(len(self._splits[split].sizes)), len(self._clients))
        kept = self._memories.settled
        return [
            client.evaluate_personal.remote(
                self._params, self._average, split, int(piece[0]), *(kept.get(c) for c in piece.tolist())
            )
            for client, piece in zip(self._clients, pieces, strict=True)
            if len(piece)
        ]

    def params(self) -> dict[str, torch.Tensor]:
        """Fetch the current parameters, their average and the clients' own models."""
        params, average = _get(self._params), None if self._average is None else _get(self._average)
        final = named(torch.tensor(params), None if average is None else torch.tensor(average))
        clients = sorted(self._memories.settled) if self._method.personal else []
        rows = _get([self._memories.settled[c] for c in clients])
        own = {c: row for c, row in zip(clients, rows, strict=True) if row is not None}
        return final | named_personal(own, torch.from_numpy(np.stack(list(own.values())))) if own else final

    def peak_bytes(self) -> int:
        """Ask every actor for its peak."""
        return int(sum(_get([actor.peak_bytes.remote() for actor in (*self._clients, self._server)])))

    def times(self) -> list[Times]:
        """Ask every actor."""
        named = [(SERVER, self._server), *((f"{WORKER} {i}", c) for i, c in enumerate(self._clients))]
        found: list[Times] = _get([actor.times.remote(label) for label, actor in named])
        return found

    def close(self) -> None:
        """Drop all jobs; the pool stays."""
        self._chunks.clear()
        self._memories = Memories()
        self._params = self._average = None


def _get(refs: Any) -> Any:
    """Fetch from the object store; an error raised in an actor is raised here as itself."""
    try:
        return ray.get(refs)
    except ray.exceptions.RayTaskError as error:
        cause: BaseException = error
        while isinstance(cause, ray.exceptions.RayTaskError) and cause.cause is not cause:
            cause = cause.cause
        raise _failed(cause) from error
    except ray.exceptions.RayError as error:
        raise _failed(error) from error


def _failed(cause: BaseException) -> BaseException:
    """Return an error of the program as it is, and one of the processes as a RunError."""
    if not isinstance(cause, ray.exceptions.RayError):
        return cause
    return RunError(f"a worker process failed: {type(cause).__name__}: {cause}")
