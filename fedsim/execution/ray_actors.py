"""The Ray actors: each holds an object of `workers.py`, and builds it again after its process was killed.

Ray restarts a client actor that died, on any node with room, and repeats its unanswered calls; results survive in the
object store. Every call carries a reference to the actor's `Build`, so that a new process continues where the old one
stopped.

The call that was running when a process died may have killed it. When Ray repeats such a call, the actor trains its
jobs one by one; a job that kills its process `MOST_DEATHS` times ends the run with its name (`LethalJob`).
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fedsim import plugins
from fedsim.common.errors import LethalJob, RunError, ServerLost
from fedsim.execution.cluster import Cluster
from fedsim.execution.workers import Actor, ClientActor, ServerActor

MOST_DEATHS = 3
"""The run ends after this many deaths of a process that trains one job alone, or repeats another call."""
_SERVER_SHARE = 0.01
"""Share of a GPU that the server actor has: room on any GPU, beside client actors."""
_MOST_BUILDS = 20
"""The run ends after this many deaths in a row while an actor builds its object."""
_BUILDS_DIE = (
    f"a worker process died {_MOST_BUILDS} times while it was built for the run: is there enough memory?"
)


@dataclass(frozen=True, slots=True)
class Build:
    """The arguments from which an actor builds its object for a run."""

    arguments: tuple[Any, ...]
    plugins: Mapping[str, plugins.Source]
    """Each plug-in file that the arguments name: only the driver's node may have the files."""
    given: Mapping[str, Any] = field(default_factory=dict)
    """By name the factories that Python code passed to the run; Ray pickles them with cloudpickle."""


class Attempts:
    """Counts attempts that started and did not end, in files that outlive the process.

    Args:
        prefix: path of the files on the process's node; the name of each attempt is appended.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def failed(self, name: str) -> int:
        """Return how often the attempt started and did not end."""
        with suppress(FileNotFoundError):
            return max(os.stat(self._file(name)).st_size, 1)
        return 0

    def job(self, name: str, number: int) -> AbstractContextManager[None]:
        """Guard the training of one job: raise LethalJob if it killed the process `MOST_DEATHS` times."""
        error = LethalJob(f"{name} killed its worker process {MOST_DEATHS} times")
        return self.counted(str(number), MOST_DEATHS, error)

    @contextmanager
    def counted(self, name: str, most: int = sys.maxsize, error: Exception | None = None) -> Iterator[None]:
        """Count an attempt that may kill the process; raise `error` if it failed `most` times before."""
        file = self._file(name)
        if error is not None and self.failed(name) >= most:
            file.unlink()
            raise error
        with open(file, "ab") as count:
            count.write(b".")
        try:
            yield
        finally:
            file.unlink(missing_ok=True)

    def _file(self, name: str) -> Path:
        return Path(f"{self._prefix}-{name}")


def _answers(method: Callable[..., Any], returns: int = 1) -> Any:
    """Return an actor's method that takes `build` (see `_Host.run`) and then the arguments of the object's method."""

    def call(self: _Host, build: list[Any], *args: Any) -> Any:
        return self.run(build, method, args)

    call.__name__, call.__doc__ = method.__name__, method.__doc__
    return ray.method(num_returns=returns)(call)


def _check_travels(error: Exception) -> None:
    """Raise RunError with the text of an error that cannot be sent to the driver.

    A copy is made as pickle makes one: it fails for an `__init__` with other arguments, and for a lock.
    """
    try:
        deepcopy(error)
    except Exception:
        raise RunError(f"{plugins.with_type(error)}{plugins.line_of(error)}") from error


class _Host:
    """A process of a pool: holds an object, and builds it for a run.

    Args:
        prefix: start of the names of the files that count attempts, unique to the pool.
    """

    holds: type[ClientActor] | type[ServerActor]
    ready = _answers(Actor.ready)
    times = _answers(Actor.times)
    peak_bytes = _answers(Actor.peak_bytes)

    def __init__(self, prefix: str) -> None:
        self._built: Any = None
        self._prefix = str(Path(tempfile.gettempdir(), prefix))
        self._held = self.holds()

    def identity(self) -> str:
        """Return the id that Ray gives this actor."""
        return str(ray.get_runtime_context().get_actor_id())

    @plugins.contained()
    def run(self, build: list[Any], method: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Call a method of the held object, after building it if `build` is new.

        `build` is empty or holds one reference to a `Build`. Ray would resolve a bare reference at each call; it passes
        one in a list unresolved.
        """
        try:
            return self._call(build, method, args)
        except Exception as error:
            plugins.keep_line(error)
            _check_travels(error)
            raise

    def _call(self, build: list[Any], method: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        attempts = Attempts(f"{self._prefix}-{ray.get_runtime_context().get_task_id()}")
        repeated = attempts.failed("call") > 0
        with attempts.counted("call"):
            with attempts.counted("build", _MOST_BUILDS, RunError(_BUILDS_DIE)):
                self._build(build)
            if not repeated:
                return method(self._held, *args)
            return self._repeat(attempts, method, args)

    def _build(self, build: list[Any]) -> None:
        if build and build[0] != self._built:
            source: Build = ray.get(build[0])
            plugins.provide(source.plugins)
            plugins.keep_given(source.given)
            self._held.build(*source.arguments)
            self._built = build[0]

    def _repeat(self, attempts: Attempts, method: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Repeat a call during which the process died."""
        if method is ClientActor.train:
            return self._held.train_one_by_one(attempts.job, *args)  # type: ignore[union-attr]
        name = method.__name__
        error = RunError(f"the call {name!r} killed its worker process {MOST_DEATHS} times")
        with attempts.counted(name, MOST_DEATHS, error):
            return method(self._held, *args)


class ClientHost(_Host):
    """The process of a ClientActor."""

    holds = ClientActor
    train = _answers(ClientActor.train)
    trial_losses = _answers(ClientActor.trial_losses)
    evaluate = _answers(ClientActor.evaluate)
    evaluate_personal = _answers(ClientActor.evaluate_personal)


class ServerHost(_Host):
    """The process of a ServerActor. Ray does not restart it: its state is lost with it."""

    holds = ServerActor
    propose = _answers(ServerActor.propose, returns=3)
    audit = _answers(ServerActor.audit)
    update_norms = _answers(ServerActor.update_norms)
    update_products = _answers(ServerActor.update_products)
    accept = _answers(ServerActor.accept, returns=3)
    step = _answers(ServerActor.step, returns=3)
    save = _answers(ServerActor.save)
    load = _answers(ServerActor.load)


def client(gpu_share: float, node: str, prefix: str) -> Any:
    """Start the process of a ClientActor; Ray restarts it without limit, on another node if its node is lost.

    It claims no CPU, so that it finds a place after its node is lost even if all CPUs are taken. With a share of a GPU,
    it runs on a node with GPUs.
    """
    strategy: Any = "SPREAD" if gpu_share else NodeAffinitySchedulingStrategy(node_id=node, soft=True)
    return ray.remote(
        num_cpus=0, num_gpus=gpu_share, max_restarts=-1, max_task_retries=-1, scheduling_strategy=strategy
    )(ClientHost).remote(prefix)


def server(gpu_share: float, node: str, prefix: str) -> Any:
    """Start the process of a ServerActor, on a node with GPUs if it has a share of one, else near this process.

    On this process's node it is lost only with the run itself.
    """
    strategy: Any = "DEFAULT" if gpu_share else NodeAffinitySchedulingStrategy(node_id=node, soft=True)
    return ray.remote(num_cpus=0, num_gpus=gpu_share, scheduling_strategy=strategy)(ServerHost).remote(prefix)


def identity(server: Any) -> str:
    """Wait for the server actor and return its id. Raises ServerLost if it died."""
    try:
        return str(ray.get(server.identity.remote()))
    except ray.exceptions.RayActorError as error:
        raise ServerLost("the server's process died, or its node: its state is lost") from error


def fetch(refs: Any, server: str) -> Any:
    """Fetch results from the object store; re-raise an error of an actor with its own type.

    Raises ServerLost if the actor with id `server` died, or if an object was lost that cannot be computed again.
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


def _failed(cause: BaseException, server: str) -> BaseException:
    """Return an error of the program unchanged, an error of Ray as ServerLost or RunError."""
    if not isinstance(cause, ray.exceptions.RayError):
        return cause
    if getattr(cause, "actor_id", None) == server:
        return ServerLost("the server's process died, or its node: its state is lost")
    if isinstance(cause, ray.exceptions.ObjectLostError):
        return ServerLost(
            "updates, or what clients keep, were lost with their node and cannot be computed again"
        )
    return RunError(f"a worker process failed: {type(cause).__name__}: {cause}")


def stop(handles: Sequence[Any]) -> None:
    """Kill the actors at once."""
    if ray.is_initialized():
        for handle in handles:
            ray.kill(handle)


@dataclass(slots=True)
class Processes:
    """The handles of the actors of a started pool."""

    cluster: Cluster
    gpu_share: float
    """Share of a GPU that each client actor has; 0 without GPUs."""
    clients: list[Any]
    server: Any
    prefix: str
    """Start of the names of the files that count attempts."""

    @staticmethod
    def of(cluster: Cluster, workers: int, gpus: bool) -> Processes:
        """Start `workers` client actors and a server actor; with `gpus`, each has a share of a GPU.

        The client actors' equal shares are so large that no GPU has room for more of them than evenly spread ones need.
        """
        share, prefix = 0.0, f"fedsim-{uuid4().hex}"
        if gpus:
            per_gpu = -(-workers // cluster.gpus)
            # Rounded down, as Ray counts 1/10,000 of a GPU.
            share = int(10_000 * (1 - _SERVER_SHARE) / per_gpu) / 10_000
        clients = [client(share, node, prefix) for node in cluster.places(workers)]
        processes = Processes(cluster, share, clients, None, prefix)
        processes.renew_server()
        return processes

    def renew_server(self) -> None:
        """Start a server actor, in place of one that died."""
        share = _SERVER_SHARE if self.gpu_share else 0.0
        self.server = server(share, self.cluster.node, self.prefix)

    def close(self) -> None:
        """Stop the actors, leave the cluster, and remove the files of calls that did not end."""
        stop([*self.clients, self.server])
        self.cluster.close()
        for file in Path(tempfile.gettempdir()).glob(f"{self.prefix}-*"):
            file.unlink(missing_ok=True)
