"""The pool of actor processes: opened in the background, used by one run after the other, closed at the end.

Starting Ray and importing torch in every process is slow. A program therefore opens its pool as soon as it knows that a
run will follow, prepares the run, and waits for the pool only when there are jobs to train.
"""

from __future__ import annotations

import re
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Literal

from fedsim.common import arguments
from fedsim.common.errors import ConfigError, ServerLost
from fedsim.common.machine import cores
from fedsim.execution import cluster

if TYPE_CHECKING:  # they import torch
    from fedsim.execution.ray_actors import Processes
    from fedsim.execution.ray_trainer import RayTrainer
    from fedsim.execution.workers import TrainerSpec


Gpus = bool | Literal["auto"]


_ADDRESS = re.compile(r"auto|[^\s/]+:\d{1,5}")
"""Matches `auto` and HOST:PORT of a cluster."""


def workers_of(workers: int | Literal["auto"], field: str = "workers", least: int = 0) -> int:
    """Return the number of processes on this machine for the value of `field`. Raises ConfigError."""
    if workers == "auto":
        return cores()
    if not isinstance(workers, int) or isinstance(workers, bool) or workers < least:
        raise ConfigError(f"{field}: expected 'auto' or a number of at least {least}, found {workers!r}")
    return workers


def start_pool(workers: int | Literal["auto"], device: str, address: str | None) -> RayPool | None:
    """Start to open a pool, here or at a cluster; return None for no workers. Raises ConfigError."""
    gpus: Gpus = "auto" if device == "auto" else device == "cuda"
    count = workers if workers == "auto" and address is not None else workers_of(workers)
    if not count and address is not None:
        raise ConfigError("workers: expected 'auto' or a number of at least 1 with ray_address, found 0")
    return RayPool(count, gpus=gpus, address=address) if count else None


def _uses_gpus(gpus: Gpus, joined: cluster.Cluster) -> bool:
    """Return whether the actors get shares of the cluster's GPUs. Raises ConfigError if they must and it has none."""
    if gpus is True and not joined.gpus:
        raise ConfigError(
            "device: 'cuda' was asked for, but Ray has no GPU: expected a GPU that Ray sees, or nodes started with "
            "--num-gpus"
        )
    if gpus != "auto" or not joined.gpus:
        return gpus is True
    import torch  # slow to import, and needed only here

    return torch.cuda.is_available()


class RayPool:
    """Client actors and one server actor. The constructor starts them and returns at once; other calls wait for them.

    Args:
        workers: number of client actors, at least 1; "auto" takes one per CPU of the cluster, or of this machine where
            the pool starts one.
        gpus: whether each actor gets a share of Ray's GPUs; "auto" means yes if Ray has any and torch sees one in this
            process, where the run chooses its device.
        address: "auto" or HOST:PORT of a Ray cluster to join; None uses the one that this process is connected to, or
            starts one on this machine for this pool only.

    Raises ConfigError for fewer than 1 worker, for another address, and for any if this process is connected already.
    """

    @arguments.checked
    def __init__(
        self, workers: int | Literal["auto"], *, gpus: Gpus = False, address: str | None = None
    ) -> None:
        if workers != "auto" and workers < 1:
            raise ConfigError(f"workers: expected 'auto' or a number of at least 1, found {workers}")
        if address is not None and not _ADDRESS.fullmatch(address):
            raise ConfigError(f"ray_address: expected 'auto' or HOST:PORT, found {address!r}")
        self._workers, self._gpus, self._address = workers, gpus, address
        self._started: Future[Processes] = Future()
        self._closed = threading.Event()
        cluster.load(address)  # here, so that its ConfigError reaches the caller
        # Ray's processes end with the thread that started them, so this thread lives as long as the pool.
        threading.Thread(target=self._open, name="ray-pool", daemon=True).start()

    def _open(self) -> None:
        try:
            self._started.set_result(self._start())
        except BaseException as error:
            self._started.set_exception(error)
        self._closed.wait()

    def _start(self) -> Processes:
        workers = self._workers
        joined = cluster.connect(self._address, cpus=(cores() if workers == "auto" else workers) + 1)
        try:
            if workers == "auto":
                started = self._address is None and joined.owned
                workers = cores() if started else sum(joined.cpus.values())
            from fedsim.execution.ray_actors import Processes

            return Processes.of(joined, workers, _uses_gpus(self._gpus, joined))
        except BaseException:
            joined.close()
            raise

    @property
    def workers(self) -> int:
        """Number of client actors; if the cluster determines it, this waits for the processes."""
        return len(self.processes().clients) if self._workers == "auto" else self._workers

    @property
    def has_gpus(self) -> bool:
        """Whether the processes have shares of GPUs; waits for them unless `gpus` is False."""
        return self._gpus is not False and self.processes().gpu_share > 0

    def processes(self) -> Processes:
        """Wait until the processes have started, and return them.

        Raises ConfigError if they cannot start, and as `check_open` does.
        """
        started = self._started.result()
        self.check_open()
        return started

    def check_open(self) -> None:
        """Raise ConfigError if the pool was closed, or its Ray was shut down; does not wait."""
        started = self._started.done() and self._started.exception() is None
        if self._closed.is_set() or (started and not cluster.connected()):
            raise ConfigError("workers: expected an open RayPool, found one that is closed")

    def trainer(self, spec: TrainerSpec) -> RayTrainer:
        """Build the actors for a run, with a new server actor if the last one died."""
        from fedsim.execution.ray_trainer import RayTrainer

        processes = self.processes()
        try:
            return RayTrainer(processes, spec)
        except ServerLost:
            processes.renew_server()
            return RayTrainer(processes, spec)

    def close(self) -> None:
        """Stop the processes, and the cluster if the pool started it. Safe to call twice."""
        if self._closed.is_set():
            return
        try:
            if self._started.exception() is None:
                self._started.result().close()
        finally:
            self._closed.set()

    def __enter__(self) -> RayPool:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
