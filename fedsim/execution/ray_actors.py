"""The Ray actors: processes that hold a plain object of `processes.py`, and set it up again when they were killed.

Ray restarts a client actor that died, wherever there is room, and repeats the calls that it had been sent and had not
answered; results that are done lie in the object store, out of its reach. A call carries a handle of what the process
must be built from, so that a new one can go on where the old one stopped.

A call that is repeated is suspected of having killed the process. Its jobs are trained one by one then, and each is
counted in the cluster's key-value store, which outlives processes and nodes, before it starts and until it ends.

What processes return, and that one has died, is learned from `fetch`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray
from ray.experimental import internal_kv
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fedsim.common import plugins
from fedsim.common.errors import LethalJob, RunError, ServerLost
from fedsim.execution.cluster import Cluster

MOST_DEATHS = 3
"""Deaths of a process that trains one job alone, or repeats another call, before that ends the run."""
_MOST_STARTS = 20
"""Deaths in a row while a process imports what it needs, or is built."""
_SPACE = "fedsim"


@dataclass(frozen=True, slots=True)
class Build:
    """What the object of a process is built from for a run."""

    arguments: tuple[Any, ...]
    plugins: Mapping[str, str]
    """The text of each plug-in file that the arguments name: it may lie on the driver's node alone."""


class Tally:
    """How often something was begun and not ended, in a place that outlives the process that began it."""

    def __init__(self, key: str) -> None:
        self.key = key

    @contextmanager
    def counted(self, what: str, most: int, error: Exception) -> Iterator[None]:
        """Do something that may kill the process; raise `error` instead if it did so `most` times."""
        key = f"{self.key}/{what}".encode()
        begun = int(internal_kv._internal_kv_get(key, namespace=_SPACE) or b"0")
        if begun >= most:
            internal_kv._internal_kv_del(key, namespace=_SPACE)
            raise error
        internal_kv._internal_kv_put(key, str(begun + 1).encode(), namespace=_SPACE)
        try:
            yield
        finally:
            internal_kv._internal_kv_del(key, namespace=_SPACE)


class _Host:
    """A process of a pool."""

    holds: str
    """The class of `processes.py` that it has an object of."""

    def __init__(self) -> None:
        self._built: Any = None
        dies = RunError(
            f"a worker process died {_MOST_STARTS} times while it started: is there enough memory?"
        )
        with Tally(str(ray.get_runtime_context().get_actor_id())).counted("start", _MOST_STARTS, dies):
            self._held = getattr(importlib.import_module("fedsim.execution.workers"), self.holds)()

    @plugins.contained()
    def call(self, build: list[Any], method: str, *args: Any) -> Any:
        """Call a method of the held object, built from what `build` refers to: no or one `Build`.

        The reference stands in a list, so that Ray hands it over as it is: it is looked up when it is a new one.
        """
        if not _attempts():
            self._build(build)
            return getattr(self._held, method)(*args)
        tally = Tally(str(ray.get_runtime_context().get_task_id()))
        dies = RunError(f"a worker process died {_MOST_STARTS} times while it was built for the run")
        with tally.counted("build", _MOST_STARTS, dies):
            self._build(build)
        return self._suspected(tally, method, args)

    def _build(self, build: list[Any]) -> None:
        if build and build[0] != self._built:
            source: Build = ray.get(build[0])
            plugins.provide(source.plugins)
            self._held.build(*source.arguments)
            self._built = build[0]

    def _suspected(self, tally: Tally, method: str, args: tuple[Any, ...]) -> Any:
        dies = RunError(f"the call {method!r} killed its worker process {MOST_DEATHS} times")
        with tally.counted(method, MOST_DEATHS, dies):
            return getattr(self._held, method)(*args)


def _attempts() -> int:
    """Return how often Ray handed out the present call before: to a process that died since."""
    worker: Any = ray._private.worker.global_worker
    return int(worker.core_worker.get_current_task_attempt_number())


class ClientHost(_Host):
    """The process of a ClientActor."""

    holds = "ClientActor"

    def _suspected(self, tally: Tally, method: str, args: tuple[Any, ...]) -> Any:
        if method != "train":
            return super()._suspected(tally, method, args)

        def guard(job: str, number: int) -> Any:
            dies = LethalJob(f"{job} killed its worker process {MOST_DEATHS} times")
            return tally.counted(str(number), MOST_DEATHS, dies)

        return self._held.train_one_by_one(guard, *args)


class ServerHost(_Host):
    """The process of a ServerActor. It is not restarted: what it holds is lost with it."""

    holds = "ServerActor"


def client(gpu_share: float, node: str) -> Any:
    """Start the process of a ClientActor; it is restarted for ever, elsewhere if its node is lost.

    It claims no CPU: if all are taken, one that has lost its node must still find a place. It goes where GPUs are, if
    it has its share of one.
    """
    where: Any = "SPREAD" if gpu_share else _near(node)
    return ray.remote(
        num_cpus=0, num_gpus=gpu_share, max_restarts=-1, max_task_retries=-1, scheduling_strategy=where
    )(ClientHost).remote()


def server(gpu_share: float, node: str) -> Any:
    """Start the process of a ServerActor: on a GPU if there are any, else on the node of the run's own process.

    There it is lost only with the run itself.
    """
    where: Any = "DEFAULT" if gpu_share else _near(node)
    return ray.remote(num_cpus=0, num_gpus=gpu_share, scheduling_strategy=where)(ServerHost).remote()


def _near(node: str) -> Any:
    return NodeAffinitySchedulingStrategy(node_id=node, soft=True)


def fetch(refs: Any, server: Any) -> Any:
    """Fetch from the object store; an error raised in an actor is raised here as itself.

    Raises ServerLost if the server actor died, or an object was lost that cannot be computed again.
    """
    try:
        return ray.get(refs)
    except ray.exceptions.RayTaskError as error:
        cause: BaseException = error
        while isinstance(cause, ray.exceptions.RayTaskError) and cause.cause is not cause:
            cause = cause.cause
        raise _failed(cause, server) from error
    except ray.exceptions.RayError as error:
        raise _failed(error, server) from error


def _failed(cause: BaseException, server: Any) -> BaseException:
    """Return an error of the program as it is, and one of the processes as ServerLost or RunError."""
    if not isinstance(cause, ray.exceptions.RayError):
        return cause
    if getattr(cause, "actor_id", None) == server._actor_id.hex():
        return ServerLost("the server's process died, or its node: its state is lost")
    if isinstance(cause, ray.exceptions.ObjectLostError):
        return ServerLost(
            "rows, or what clients keep, were lost with their node and cannot be computed again"
        )
    return RunError(f"a worker process failed: {type(cause).__name__}: {cause}")


def gpu_share(gpus: int, processes: int) -> float:
    """Return the share of a GPU that each of so many processes gets, so that whole shares fit on every GPU."""
    if not gpus:
        return 0.0
    per_gpu = -(-processes // gpus)
    return int(10_000 / per_gpu) / 10_000


def stop(handles: Sequence[Any]) -> None:
    """Stop processes at once."""
    if ray.is_initialized():
        for handle in handles:
            ray.kill(handle)


@dataclass(slots=True)
class Processes:
    """The handles of a pool that has started."""

    there: Cluster
    gpu_share: float
    clients: list[Any]
    server: Any

    @staticmethod
    def of(there: Cluster, workers: int, gpus: bool) -> Processes:
        """Start `workers` client actors and a server actor; each imports what it needs at once."""
        share = gpu_share(there.gpus, workers + 1) if gpus else 0.0
        clients = [client(share, node) for node in there.places(workers)]
        return Processes(there, share, clients, server(share, there.node))

    def renew_server(self) -> None:
        """Start another server actor in the place of one that died."""
        self.server = server(self.gpu_share, self.there.node)

    def close(self) -> None:
        """Stop the actors, and Ray if it was started for them."""
        stop([*self.clients, self.server])
        self.there.close()
