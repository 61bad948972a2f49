"""The actor processes of a run: opened in the background, used by one run after the other, closed at the end.

Starting Ray and importing torch in every process take seconds, in which the run's own process has enough to do: a pool
is begun as soon as it is known that there will be a run, and asked for when there is something to train.
"""

from __future__ import annotations

import re
import threading
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Literal

from fedsim.common.errors import ConfigError, ServerLost
from fedsim.common.machine import cores
from fedsim.execution import cluster

if TYPE_CHECKING:  # they import torch
    from fedsim.execution.ray_actors import Processes
    from fedsim.execution.ray_trainer import RayTrainer
    from fedsim.execution.workers import TrainerSpec


Gpus = bool | Literal["auto"]


_ADDRESS = re.compile(r"[^\s/]+:\d{1,5}")
"""HOST:PORT of a cluster."""


def workers_of(workers: int | Literal["auto"]) -> int:
    """Return the number of client actors on this machine that is meant by a `--workers` value."""
    if workers == "auto":
        return cores()
    if not isinstance(workers, int) or isinstance(workers, bool) or workers < 0:
        raise ConfigError(f"workers: expected 'auto' or a number of at least 0, found {workers!r}")
    return workers


def begun(workers: int | Literal["auto"], device: str, address: str | None) -> RayPool | None:
    """Begin to open a pool, here or at a cluster; None if there are to be no workers. Raises ConfigError."""
    if not isinstance(address, str | None):
        raise ConfigError(f"ray_address: expected 'auto' or HOST:PORT, found {address!r}")
    if address not in (None, "auto") and not _ADDRESS.fullmatch(address):
        raise ConfigError(f"ray_address: expected 'auto' or HOST:PORT, found {address!r}")
    gpus: Gpus = "auto" if device == "auto" else device == "cuda"
    if workers == "auto" and address is not None:
        return RayPool("auto", gpus=gpus, address=address)
    count = workers_of(workers)
    if not count and address is not None:
        raise ConfigError("workers: expected 'auto' or a number of at least 1 with ray_address, found 0")
    return RayPool(count, gpus=gpus, address=address) if count else None


def _share_out(gpus: Gpus, there: cluster.Cluster) -> bool:
    """Return whether a cluster's GPUs are shared out. Raises ConfigError if they are to be and there are none."""
    if gpus is True and not there.gpus:
        raise ConfigError(
            "device: 'cuda' was asked for, but Ray has no GPU: expected one that it sees, or nodes that were started "
            "with --num-gpus"
        )
    if gpus != "auto" or not there.gpus:
        return gpus is True
    import torch  # it takes seconds, and only here anybody must know

    return torch.cuda.is_available()


class RayPool:
    """Client actors and one server actor. Making it starts them and returns at once; all else waits for them.

    Args:
        workers: number of client actors, at least 1; "auto", with an address, takes one per CPU of the cluster.
        gpus: whether each actor gets its share of the GPUs that Ray has; "auto" is yes if torch sees one here, where
            the run decides on what it computes, and Ray has any.
        address: "auto" or HOST:PORT of a Ray cluster to join; None starts one on this machine, for this pool alone.
    """

    def __init__(
        self, workers: int | Literal["auto"], *, gpus: Gpus = False, address: str | None = None
    ) -> None:
        self._workers, self._gpus, self._address = workers, gpus, address
        self._started: Future[Processes] = Future()
        self._closed = threading.Event()
        cluster.load(own=address is None)  # what it refuses is refused here
        # The processes of Ray end with the thread that started them, so this one stays as long as the pool.
        threading.Thread(target=self._begin, name="ray-pool", daemon=True).start()

    def _begin(self) -> None:
        try:
            self._started.set_result(self._start())
        except BaseException as error:
            self._started.set_exception(error)
        self._closed.wait()

    def _start(self) -> Processes:
        asked = self._workers
        there = cluster.connect(self._address, cpus=1 if asked == "auto" else asked + 1)
        try:
            workers = sum(there.cpus.values()) if asked == "auto" else asked
            from fedsim.execution.ray_actors import Processes

            return Processes.of(there, workers, _share_out(self._gpus, there))
        except BaseException:
            there.close()
            raise

    @property
    def workers(self) -> int:
        """Number of client actors; if it is for the cluster to say, this waits for it."""
        return len(self.processes().clients) if self._workers == "auto" else self._workers

    @property
    def has_gpus(self) -> bool:
        """Whether the processes have shares of GPUs; unless none were asked for, this waits for them."""
        return self._gpus is not False and self.processes().gpu_share > 0

    def processes(self) -> Processes:
        """Wait for the processes to be started. Raises ConfigError if they cannot be."""
        return self._started.result()

    def trainer(self, spec: TrainerSpec) -> RayTrainer:
        """Build the actors for a run; a server actor that died is replaced by a new one."""
        from fedsim.execution.ray_trainer import RayTrainer

        processes = self.processes()
        try:
            return RayTrainer(processes, spec)
        except ServerLost:
            processes.renew_server()
            return RayTrainer(processes, spec)

    def close(self) -> None:
        """Stop what was started. Safe to call twice."""
        if self._closed.is_set():
            return
        try:
            if self._started.exception() is None:
                self._started.result().close()
        finally:
            self._closed.set()

    def __enter__(self) -> RayPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
