"""The processes and the device that a run computes with: workers in a pool, one thread here, a GPU or none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from threadpoolctl import threadpool_limits

from fedsim import plugins
from fedsim.common.errors import ConfigError
from fedsim.common.machine import cores
from fedsim.config.run import RunConfig
from fedsim.execution.actor_pool import RayPool, start_pool
from fedsim.runs.build import prepare
from fedsim.runs.inputs import InputCache
from fedsim.runs.spec import RunSpec
from fedsim.training.precision import untouched
from fedsim.worlds.trace import Trace

Device = Literal["auto", "cpu", "cuda"]
Workers = int | Literal["auto"] | RayPool


@dataclass(frozen=True, slots=True)
class Resources:
    """Where runs compute, and the builder of their inputs."""

    pool: RayPool | None
    """Workers that train; None: this process trains."""
    device: str
    """`cpu` or `cuda`."""
    cache: InputCache

    def in_world(self, config: RunConfig, trace: Trace) -> Resources:
        """Return the same resources for runs whose world exists already: `trace` is the one `config` describes."""
        return replace(self, cache=InputCache.of(config, trace))

    def prepare(self, config: RunConfig) -> RunSpec:
        """Build all parts of a run. Raises ConfigError, DataError or TraceError, also if memory is too small."""
        spec = prepare(config, self.device, self.cache)
        spec.check_fits(self.pool.workers if self.pool else 0)
        return spec


@contextmanager
def resources(
    config: RunConfig,
    cache: InputCache | None = None,
    *,
    workers: Workers = 0,
    device: Device = "auto",
    ray_address: str | None = None,
) -> Iterator[Resources]:
    """Compute with one thread here, and with workers for runs like `config`; a pool that opens here closes at the end.

    Runs in the body do not see edits of plug-in files.

    Raises ConfigError for a device, workers or an address that this machine does not have.
    """
    anywhere = ray_address is not None or isinstance(workers, RayPool)
    device_of(device, anywhere)  # raises before anything starts
    with one_thread(), plugins.read_once():
        cache = cache or InputCache()
        used = _pool(config, cache, workers, device, ray_address)
        try:
            yield Resources(used, device_of(device, anywhere, used), cache)
        finally:
            if used and used is not workers:
                used.close()


def _pool(
    config: RunConfig, cache: InputCache, workers: Workers, device: Device, ray_address: str | None
) -> RayPool | None:
    """Return the pool given, or start to open one; None if this process trains. Raises ConfigError."""
    if isinstance(workers, RayPool):
        if ray_address is not None:
            raise ConfigError(f"ray_address: expected None with a RayPool, found {ray_address!r}")
        workers.check_open()
        return workers
    if workers == "auto" and ray_address is None:
        workers = 0
        with suppress(Exception):  # the run itself raises errors of its parts
            spec = prepare(config, device_of(device, anywhere=False), cache)
            workers = spec.auto_workers(cores(), torch.cuda.device_count())
    return start_pool(workers, device, ray_address)


def device_of(device: Device, anywhere: bool, pool: RayPool | None = None) -> str:
    """Return the device to compute on, "cpu" or "cuda". Raises ConfigError for "cuda" without a GPU.

    Args:
        anywhere: whether "cuda" may be the GPU of another machine.
        pool: the workers that compute, if any; "auto" then uses a GPU only if they have one.
    """
    if device not in get_args(Device):
        raise ConfigError(
            f"device: expected one of {', '.join(map(repr, get_args(Device)))}, found {device!r}"
        )
    if device == "cuda" and not anywhere and not torch.cuda.is_available():
        raise ConfigError("device: 'cuda' was asked for, but torch sees no GPU")
    place = "cuda" if device == "cuda" or (device == "auto" and torch.cuda.is_available()) else "cpu"
    if place == "cpu" or pool is None or pool.has_gpus:
        return place
    if device == "cuda":
        raise ConfigError("device: 'cuda' was asked for, but the pool was opened without GPUs")
    return "cpu"


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit torch and NumPy to one thread, so that sums depend neither on cores nor on modes of the caller."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1), untouched():
            yield
    finally:
        torch.set_num_threads(before)
