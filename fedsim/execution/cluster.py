"""The Ray cluster of a run: one that this program starts, on loopback and behind a token, or one that it joins.

Only runs with workers import Ray. Ray reads some environment variables at its import; `load` sets them first.
"""

from __future__ import annotations

import importlib
import logging
import os
import secrets
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

import fedsim
from fedsim.common.errors import ConfigError

_ALWAYS = {
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # else `uv run` rebuilds the environment in each worker
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",  # else Ray prints each error that follows from one already raised here
    "RAY_USAGE_STATS_ENABLED": "0",
}
_WORKERS = {
    # Seconds until Ray resends the calls that follow a call lost with its process.
    "RAY_actor_scheduling_queue_max_reorder_wait_seconds": "5",
}
_OWN = {
    **_WORKERS,
    "RAY_AUTH_MODE": "token",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # on Linux too, 0 binds every process to loopback
    # Results up to this size, such as the updates of small models, travel with the reply and not through the store.
    "RAY_max_direct_call_object_size": str(2**18),
    "RAY_prestart_worker_first_driver": "0",  # actors start their processes themselves
}
_READ_AT_IMPORT = ("RAY_AUTH_MODE", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "RAY_ENABLE_UV_RUN_RUNTIME_ENV")
"""Variables that Ray reads at its import and that a cluster of this program needs."""
_LEAST_STORE = 2**29
"""Least size of the object store in bytes."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A Ray cluster that this process is connected to."""

    owned: bool
    """Whether this program connected, and so disconnects at the end; that stops a cluster that it started."""
    cpus: Mapping[str, int]
    """CPUs by node."""
    gpus: int
    """GPUs of all nodes."""
    node: str
    """The node of this process."""

    def places(self, workers: int) -> list[str]:
        """Return a node for each worker, so that the nodes have about equally many workers per CPU."""
        nodes, taken = sorted(self.cpus), dict.fromkeys(self.cpus, 0)
        for _ in range(workers):
            taken[min(nodes, key=lambda node: (taken[node] + 1) / self.cpus[node])] += 1
        return [node for node in nodes for _ in range(taken[node])]

    def close(self) -> None:
        """Stop or leave the cluster, unless the process was connected before this program connected."""
        import ray

        if self.owned and ray.is_initialized():
            ray.shutdown()


def connected() -> bool:
    """Return whether this process is connected to a Ray cluster."""
    import ray

    return bool(ray.is_initialized())


def load(address: str | None) -> Any:
    """Set the environment that Ray needs, where the user did not, then import Ray and return it.

    `address`: of the cluster to join; None: for one that this program starts, unless this process is connected to one.
    Raises ConfigError for an address if this process is connected already; without an address and a connection, if Ray
    was imported before without a variable that it reads at its import.
    """
    early = sys.modules.get("ray")
    joined = early is not None and early.is_initialized()
    if joined and address is not None:
        raise ConfigError(
            f"ray_address: this process is connected to a Ray cluster: expected no address, to use that one, found "
            f"{address!r}"
        )
    late = [name for name in _READ_AT_IMPORT if name not in os.environ]
    if address is None and late and early is not None and not joined:
        settings = " ".join(f"{name}={(_ALWAYS | _OWN)[name]}" for name in late)
        raise ConfigError(
            f"workers: Ray was imported before fedsim, without what it reads at its import: set {settings} before, "
            "import ray after this call, or use workers=0"
        )
    set_environment(own=address is None)
    return importlib.import_module("ray")


def set_environment(own: bool) -> None:
    """Set the variables that Ray needs and the user did not set; `own`: for a cluster that this program starts."""
    for name, value in (_ALWAYS | _OWN if own else _ALWAYS).items():
        os.environ.setdefault(name, value)
    if own and not _has_token():
        # Else Ray writes one into a file that others may read.
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def _has_token() -> bool:
    """Return whether the user has a token for Ray, in the environment or in the home folder."""
    given = any(os.environ.get(name) for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"))
    return given or os.access(os.path.expanduser("~/.ray/auth_token"), os.R_OK)


def connect(address: str | None, cpus: int) -> Cluster:
    """Return the cluster at `address`; without one, that of this process's connection, else a new one with `cpus` CPUs.

    Raises ConfigError as `load` does, if this process finds or may join no cluster at the address, if Ray cannot start,
    or if the cluster has no CPUs.
    """
    ray = load(address)
    owned = not ray.is_initialized()
    if owned:
        quiet: Mapping[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if address is None:
            _start(cpus, quiet)
        else:
            _join(address, quiet)
    nodes: list[dict[str, Any]] = [node for node in ray.nodes() if node["Alive"]]
    cpus_of = {str(node["NodeID"]): int(node["Resources"].get("CPU", 0)) for node in nodes}
    if not any(cpus_of.values()):
        if not owned:
            raise ConfigError("workers: this process is connected to a Ray cluster without CPUs")
        ray.shutdown()
        raise ConfigError(f"ray_address: expected a cluster with CPUs, found none at {address!r}")
    gpus = int(sum(node["Resources"].get("GPU", 0) for node in nodes))
    own_node = str(ray.get_runtime_context().get_node_id())
    return Cluster(owned, {node: n for node, n in cpus_of.items() if n}, gpus, own_node)


def _start(cpus: int, quiet: Mapping[str, Any]) -> None:
    import ray

    store = _store_bytes()
    try:
        # "local": else Ray joins whatever RAY_ADDRESS or an earlier `ray start` on this machine points to.
        ray.init("local", num_cpus=cpus, object_store_memory=store, include_dashboard=False, **quiet)
    except Exception as error:  # Ray raises many kinds, also bare ones
        raise ConfigError(
            f"workers: Ray cannot start: {_reason(error)}: use workers=0, or if Ray's folder is the cause, set "
            "RAY_TMPDIR to one with a short path"
        ) from error


def _join(address: str, quiet: Mapping[str, Any]) -> None:
    import ray

    environment = {name: os.environ.get(name, value) for name, value in _WORKERS.items()}
    code = [str(Path(str(fedsim.__file__)).parent)]  # so that all processes run the same code
    try:
        ray.init(address=address, runtime_env={"py_modules": code, "env_vars": environment}, **quiet)
    except (ConnectionError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        raise ConfigError(
            f"ray_address: expected 'auto' or HOST:PORT of a Ray cluster that this machine is a node of, found "
            f"{address!r}: {_reason(error)}"
        ) from error


def _reason(error: Exception) -> str:
    return str(error).strip().split("\n")[0].rstrip(".")


def _store_bytes() -> int:
    """Return the size of the object store in bytes: an upper bound, since unused pages take no memory.

    `fedsim.runs.memory_estimate` checks a run's memory when its data are known; Ray starts earlier.
    """
    most = psutil.virtual_memory().available // 2
    if sys.platform == "linux":
        most = min(most, int(0.9 * shutil.disk_usage("/dev/shm").free))
    elif sys.platform == "darwin":
        most = min(most, 2 * 2**30)  # Ray refuses more there
    return max(most, _LEAST_STORE)
