"""Training in the processes of a pool.

A virtual client is data, never a process: any actor can train any client. Parameters go into the object store once per
server step, and data once per node. Updates go from the client actors to the server actor, and what a client keeps from
job to job goes to the actor that trains it next. The driver sees a few floats per job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pickle import PicklingError
from typing import Any

import numpy as np
import ray
import torch

from fedsim.common.arrays import Floats, Ints
from fedsim.common.errors import ConfigError
from fedsim.common.stopwatch import SERVER, WORKER, Times
from fedsim.engine.audit import LOSSES, parts_of
from fedsim.engine.trainer import Pending, Stepped
from fedsim.execution.client_state import ClientStates
from fedsim.execution.inline_trainer import final_models, saved_parts, starts_of
from fedsim.execution.ray_actors import Build, Processes, fetch, identity
from fedsim.execution.serialization import packed, unpacked
from fedsim.execution.workers import TrainerSpec
from fedsim.server.server import sent_with
from fedsim.server.step_input import StepInput
from fedsim.training.evaluation import Evaluation, chunks_of, per_client
from fedsim.training.job import Cohort, Reports, nth_jobs
from fedsim.training.loaded_model import shared_tensor

_BUILT: list[Any] = []
"""For calls that build nothing: those of the server, which is not restarted, and those that need no workbench."""
_CHUNK_BYTES = 64 * 2**20
"""Most bytes of updates that one call returns."""


def _stored(build: Build) -> Any:
    """Put what an actor builds into the object store. Raises ConfigError for a model that cannot be pickled."""
    try:
        return ray.put(build)
    except (TypeError, PicklingError) as error:
        if not build.given:
            raise
        reason = str(error).partition("\n")[0]
        raise ConfigError(
            f"model: its function cannot be pickled for workers: {reason}: keep locks, open files and the like out of "
            "it, or use workers=0"
        ) from error


@dataclass(slots=True, eq=False)
class _Chunk:
    """Jobs sent to one actor in one call."""

    reports: Any
    rows: Any
    worker: int
    needs: Any
    """Inputs of the call, kept until a step has used the result, so that Ray can repeat the call if a node is lost."""


class RayTrainer:
    """Trains in the client actors of a pool; the server has its own actor. See `fedsim.engine.trainer.Trainer`."""

    def __init__(self, processes: Processes, spec: TrainerSpec) -> None:
        """Build the actors for a run, and wait for them. Raises ServerLost if the server's process died before."""
        files, initial = spec.plugin_files(), spec.initial.numpy()
        self._clients, self._server = processes.clients, processes.server
        self._build = [_stored(Build((spec.bench, spec.data, spec.spans), files, spec.given()))]
        self._server_build = [_stored(Build((spec.server, initial, spec.spans), files))]
        built = [client.ready.remote(self._build) for client in self._clients]
        self._server_id = identity(self._server)
        self._get([*built, self._server.ready.remote(self._server_build)])
        self._sends, self._size = spec.server.algorithm().sends, len(initial)
        self._params = self._put(spec.initial, {})
        """The model of the current version, and behind it the vectors that the rule sends."""
        self._row_bytes = (1 + len(spec.bench.method().sends)) * initial.nbytes
        self._splits, self._costs = spec.data.splits(spec.bench.some), spec.data.train.sizes
        self._searches = spec.server.algorithm().needs.search
        self._reads_starts = spec.server.reads_starts()
        self._method, self._memories = spec.bench.method(), ClientStates[Any]()
        self._average: Any = None
        self._starts: dict[int, Any] = {}
        """By version, the parameters that jobs start from, now or later, including jobs that are not trained."""
        self._later: list[Callable[[], object]] = []
        """Evaluations that start after the next submitted jobs."""
        self._load = [0] * len(self._clients)
        self._chunks: dict[int, tuple[_Chunk, int]] = {}
        """By job, the chunk that it was sent with and its place in the chunk."""

    def _put(self, params: torch.Tensor, vectors: Mapping[str, torch.Tensor]) -> Any:
        """Put what jobs start from into the object store."""
        return ray.put(sent_with(params.cpu(), {n: v.cpu() for n, v in vectors.items()}, self._sends).numpy())

    def submit(self, cohort: Cohort) -> None:
        """Spread jobs over the actors by cost, the largest first, in calls of bounded size."""
        self._starts[int(cohort.versions[0])] = self._params
        self._submit(cohort)

    def _submit(self, cohort: Cohort) -> None:
        turns = nth_jobs(np.arange(len(cohort)), cohort.clients)
        for turn in range(turns.max(initial=0) + 1):  # a client's next job continues its previous one
            for start in np.unique(cohort.start_versions[turns == turn]).tolist():
                which = (turns == turn) & (cohort.start_versions == start)
                self._spread(cohort.part(which), self._starts[start])
        while self._later:
            self._later.pop(0)()

    def _spread(self, cohort: Cohort, params: Any) -> None:
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
                self._call(worker, cohort.part(np.sort(share[a : a + most])), params)

    def _call(self, worker: int, cohort: Cohort, params: Any) -> None:
        jobs, clients = cohort.ids.tolist(), cohort.clients.tolist()
        before = [self._memories.of(client) for client in clients] if self._method.keeps else []
        train = self._clients[worker].train.options(num_returns=2 + len(before))
        reports, rows, *kept = train.remote(self._build, cohort, params, *before)
        for job, client, keeps in zip(jobs, clients, kept, strict=False):
            self._memories.submit(job, client, keeps)
        chunk = _Chunk(reports, rows, worker, (params, before))
        self._chunks.update((job, (chunk, i)) for i, job in enumerate(jobs))

    def reports(self, cohort: Cohort) -> Reports:
        """Wait for the calls with these jobs; their updates stay in the object store."""
        places = [self._chunks[job] for job in cohort.ids.tolist()]
        chunks = list(dict.fromkeys(chunk for chunk, _ in places))
        of_chunks: list[Reports] = self._get([chunk.reports for chunk in chunks])
        first = dict(zip(chunks, np.cumsum([0, *map(len, of_chunks)]).tolist(), strict=False))
        which = np.array([first[chunk] + i for chunk, i in places], dtype=np.int64)
        return Reports.joined(of_chunks).part(which)

    def forget(self, cohort: Cohort) -> None:
        """Drop the references to jobs, so that the object store frees their results."""
        for job, client in zip(cohort.ids.tolist(), cohort.clients.tolist(), strict=True):
            if job in self._chunks:
                self._take(job, client)
                if self._method.keeps:
                    self._memories.forget(job, client)

    def _take(self, job: int, client: int) -> tuple[_Chunk, int]:
        chunk, place = self._chunks.pop(job)
        self._load[chunk.worker] -= int(self._costs[client])
        return chunk, place

    def losses(self, clients: Ints, version: int) -> Floats:
        """Spread the clients over the actors and wait."""
        return self._joined(self._losses(self._params, clients, version))

    def update_norms(self, clients: Ints) -> Floats:
        """Ask the server actor and wait."""
        return np.asarray(self._get(self._server.update_norms.remote(_BUILT, clients)))

    def update_products(self, clients: Ints) -> Floats:
        """Ask the server actor and wait."""
        return np.asarray(self._get(self._server.update_products.remote(_BUILT, clients)))

    def _losses(self, params: Any, clients: Ints, version: int | None) -> list[Any]:
        groups = np.array_split(clients, len(self._clients))
        pairs = zip(self._clients, groups, strict=True)
        return [client.trial_losses.remote(self._build, params, group, version) for client, group in pairs]

    def _joined(self, losses: list[Any]) -> Floats:
        """Fetch the losses [1, k] of groups of clients with one model; return those of all clients [K]."""
        return np.asarray(np.concatenate(self._get(losses), axis=1)[0])

    def _audit(self, cohort: Cohort, step: Any) -> list[Any]:
        """Let the client actors train the jobs of an audit, and the server compare their updates with its history."""
        workers, audited = len(self._clients), []
        for i, part in enumerate(parts_of(cohort, self._row_bytes, workers)):
            train = self._clients[i % workers].train.options(num_returns=2)
            _, rows = train.remote(self._build, part, self._params)
            audited.append(self._server.audit.remote(_BUILT, step, part.clients, rows))
        return audited

    def step(self, arrivals: StepInput, cohort: Cohort) -> Pending[Stepped]:
        """Send the updates to the server actor; returns at once."""
        taken = self._collected(cohort)
        before, audit = self._params, arrivals.audit
        stepped, self._params, self._average = self._server_step(arrivals, taken)
        models = (before, self._params)
        audit_losses = [] if audit is None else [self._losses(model, audit.clients, None) for model in models]
        self._starts = arrivals.still_needed(self._starts | {arrivals.step: before})
        needs = [chunk.needs for chunk, _ in taken]

        def result() -> Stepped:
            done: Stepped = self._get(stepped)
            needs.clear()
            if "audited" in done.columns:
                done.columns["audited"] |= dict(zip(LOSSES, map(self._joined, audit_losses), strict=True))
            return done

        return result

    def _collected(self, cohort: Cohort) -> list[tuple[_Chunk, int]]:
        """Return the chunk and the place of each job that a step uses, and settle what its client keeps."""
        jobs, clients = cohort.ids.tolist(), cohort.clients.tolist()
        taken = [self._take(job, client) for job, client in zip(jobs, clients, strict=True)]
        if self._method.keeps:
            for job, client in zip(jobs, clients, strict=True):
                self._memories.settle(job, client)
        return taken

    def _server_step(self, arrivals: StepInput, taken: list[tuple[_Chunk, int]]) -> Any:
        """Return references to the step, the parameters and their average, as `ServerActor.accept` returns them."""
        numbers: dict[_Chunk, int] = {}
        takes = [(numbers.setdefault(chunk, len(numbers)), i) for chunk, i in taken]
        stores = [ref for chunk in numbers for ref in (chunk.reports, chunk.rows)]
        versions = set(arrivals.start_versions.tolist()) - {arrivals.step} if self._reads_starts else set()
        starts = [(version, self._starts[version]) for version in sorted(versions)]
        inputs = arrivals, takes, [version for version, _ in starts], *(model for _, model in starts), *stores
        if not self._searches and arrivals.audit is None:
            return self._server.step.remote(_BUILT, *inputs)
        proposal = self._server.propose.remote(_BUILT, *inputs)
        searching = self._clients if self._searches else []
        workers = len(searching)
        losses = [c.trial_losses.remote(self._build, *proposal, w, workers) for w, c in enumerate(searching)]
        step = proposal[2]
        audited = [] if arrivals.audit is None else self._audit(arrivals.audit, step)
        return self._server.accept.remote(_BUILT, step, *losses, *audited)

    def evaluate(self, split: str, *, personal: bool = False) -> Pending[Evaluation]:
        """Spread the split's rows over the actors, or the clients if `personal`; returns at once.

        The actors evaluate after the jobs that are submitted next, or once the result is called. They would otherwise
        idle while the server waits for these jobs' updates and computes the next model.
        """
        rows = self._splits[split]
        calls = self._calls(split, personal)
        parts: list[Any] = []

        def start() -> None:
            if not parts:
                parts.extend(method.remote(self._build, *arguments) for method, arguments in calls)

        def result() -> Evaluation:
            start()
            return per_client(rows, self._get(parts))

        self._later.append(start)
        return result

    def _calls(self, split: str, personal: bool) -> list[tuple[Any, tuple[Any, ...]]]:
        """Return the methods that evaluate parts of a split, and their arguments."""
        rows, workers, common = self._splits[split], len(self._clients), (self._params, self._average, split)
        if not personal:
            ranges = zip(self._clients, chunks_of(rows, workers), strict=False)
            return [(client.evaluate, (*common, start, stop)) for client, (start, stop) in ranges]
        kept, sizes = self._memories.settled, rows.sizes
        first = int((sizes > 0).argmax())  # the clients that train come before the unseen ones
        groups = zip(self._clients, np.array_split(np.arange(first, len(sizes)), workers), strict=True)
        return [
            (
                client.evaluate_personal,
                (*common, int(group[0]), *(kept.get(k) if sizes[k] else None for k in group.tolist())),
            )
            for client, group in groups
            if len(group)
        ]

    def save(self) -> dict[str, Any]:
        """Fetch the server's state, the start models of open jobs, and what clients keep."""
        server, versions = self._server.save.remote(_BUILT), list(self._starts)
        starts = self._get([self._starts[version] for version in versions])
        kept = {client: row.clone() for client, row in self._kept().items()}
        models = {v: torch.tensor(start) for v, start in zip(versions, starts, strict=True)}
        return saved_parts(unpacked(self._get(server)), models, kept)

    def load(self, saved: Mapping[str, Any], open_jobs: Iterable[Cohort]) -> None:
        """Send the saved state to the actors, and submit the open jobs."""
        server = saved["server"]
        self._get(self._server.load.remote(_BUILT, packed(server)))
        self._params = self._put(server["params"], server["vectors"])
        self._average = None if server["average"] is None else ray.put(server["average"].cpu().numpy())
        for client, row in zip(saved["keepers"], saved["kept"], strict=True):
            self._memories.begin(client, ray.put(row.cpu().numpy()))
        self._starts = {version: ray.put(start.cpu().numpy()) for version, start in starts_of(saved).items()}
        for cohort in open_jobs:
            self._submit(cohort)

    def _kept(self) -> dict[int, torch.Tensor]:
        """Fetch by client what clients keep [P], in order of client; the tensors are views, which may be read-only."""
        clients = sorted(self._memories.settled)
        rows = self._get([self._memories.settled[client] for client in clients])
        return {c: shared_tensor(row) for c, row in zip(clients, rows, strict=True) if row is not None}

    def params(self) -> dict[str, torch.Tensor]:
        """Fetch the current parameters, their average and the clients' personal models."""
        average = None if self._average is None else self._get(self._average)
        average = None if average is None else shared_tensor(average)
        kept = self._kept() if self._method.personal else {}
        return final_models(shared_tensor(self._get(self._params)[: self._size]), average, kept)

    def peak_bytes(self) -> int:
        """Return the sum of the peaks of all actors, in bytes."""
        peaks = [client.peak_bytes.remote(_BUILT) for client in self._clients]
        return int(sum(self._get([self._server.peak_bytes.remote(_BUILT), *peaks])))

    def times(self) -> list[Times]:
        """Return the stopwatch times of the server actor and of every client actor."""
        calls = [c.times.remote(self._build, f"{WORKER} {w}") for w, c in enumerate(self._clients)]
        times: list[Times] = self._get([self._server.times.remote(_BUILT, SERVER), *calls])
        return times

    def close(self) -> None:
        """Drop all jobs; the pool stays open."""
        self._later.clear()
        self._chunks.clear()
        self._starts.clear()
        self._memories = ClientStates()
        self._params = self._average = None

    def _get(self, refs: Any) -> Any:
        return fetch(refs, self._server_id)
