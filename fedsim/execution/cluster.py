"""Ray itself: one started for this program alone, on loopback and behind a token, or an existing cluster that it joins.

Ray is imported when it is needed, after the environment says what is read at its import: a run without workers does
without it, and a pool may open it in the background.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

import fedsim
from fedsim.common.errors import ConfigError
from fedsim.execution.lean_ray import fewer_helpers
from fedsim.execution.ray_forks import POSSIBLE, Forks

_ALWAYS = {
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # else `uv run` rebuilds the environment in each worker
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",  # else what follows from an error that was told is written out, call by call
    "RAY_USAGE_STATS_ENABLED": "0",
}
_WORKERS = {
    # Calls that follow one which was lost when a process died wait for it so long before they are repeated.
    "RAY_actor_scheduling_queue_max_reorder_wait_seconds": "5",
}
_OWN = {
    **_WORKERS,
    "RAY_AUTH_MODE": "token",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # despite its name also on Linux: 0 binds every process to loopback
    # A raylet looks for its own store of objects before it is there; then it waits for as long as the first says.
    "RAY_raylet_client_connect_timeout_milliseconds": "50",
    "RAY_raylet_client_num_connect_attempts": "200",
    # Bytes up to which what a call returns travels with the answer, not through the store: its rows, of small models.
    "RAY_max_direct_call_object_size": str(2**18),
}
_READ_AT_IMPORT = {
    "ENABLE_RAY_CLUSTER": "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "RAY_ENABLE_UV_RUN_RUNTIME_ENV",
}
"""Constants of Ray, and what they are taken from."""
_LEAST_STORE = 2**29


@dataclass(frozen=True, slots=True)
class Cluster:
    """A Ray that is there."""

    owned: bool
    """Whether this program started it, and so stops it."""
    cpus: Mapping[str, int]
    """By node."""
    gpus: int
    """Of all nodes."""
    node: str
    """The node of this process."""
    forks: Forks | None = None
    """What its workers are forked from."""

    def places(self, workers: int) -> list[str]:
        """Return a node for each worker, so that all nodes have the same load for each of their CPUs."""
        nodes, taken = sorted(self.cpus), dict.fromkeys(self.cpus, 0)
        for _ in range(workers):
            taken[min(nodes, key=lambda node: (taken[node] + 1) / self.cpus[node])] += 1
        return [node for node in nodes for _ in range(taken[node])]

    def close(self) -> None:
        """Stop it, or leave it, unless it was there before this program asked for it."""
        import ray

        try:
            if self.owned and ray.is_initialized():
                ray.shutdown()
        finally:
            if self.forks is not None:
                self.forks.close()


def load(own: bool) -> Any:
    """Import Ray and return it. The environment says first what is read then, unless the user has said it."""
    early = "ray" in sys.modules
    _say(own)
    ray: Any = importlib.import_module("ray")
    if early and own and not ray.is_initialized():
        _read_again()
    return ray


def _read_again() -> None:
    """Tell a Ray that somebody imported before what the environment says since then."""
    constants = importlib.import_module("ray._private.ray_constants")
    for constant, name in _READ_AT_IMPORT.items():
        if hasattr(constants, constant):
            setattr(constants, constant, constants.env_bool(name, True))
    raylet = importlib.import_module("ray._raylet")
    if hasattr(
        raylet, "get_authentication_mode"
    ):  # else it would find no token where its processes ask for one
        raylet.Config.initialize(json.dumps({"AUTH_MODE": os.environ["RAY_AUTH_MODE"]}))


def begun(own: bool) -> Forks | None:
    """Import Ray, and begin what the workers of one of one's own will be forked from: it imports torch meanwhile."""
    _say(own)
    ray: Any = sys.modules.get("ray")
    there = ray is not None and ray.is_initialized()
    forks = None
    if own and POSSIBLE and not there:
        with suppress(OSError, ValueError):  # then Ray starts the workers
            forks = Forks()
    try:
        load(own)
    except BaseException:
        if forks is not None:
            forks.close()
        raise
    return forks


def _say(own: bool) -> None:
    for name, value in (_ALWAYS | _OWN if own else _ALWAYS).items():
        os.environ.setdefault(name, value)


def opened(address: str | None, cpus: int, forks: Forks | None = None) -> Cluster:
    """Return the Ray that this process is connected to already, that at `address`, or a new one with `cpus` places.

    The new one has its workers from `forks`, which ends with it. Raises ConfigError if there is none at the address,
    none that this process may join, or none with CPUs.
    """
    try:
        return _opened(address, cpus, forks)
    except BaseException:
        if forks is not None:
            forks.close()
        raise


def _opened(address: str | None, cpus: int, forks: Forks | None) -> Cluster:
    ray = load(own=address is None)
    owned = not ray.is_initialized()
    if owned:
        quiet: Mapping[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if address is None:
            # "local": else Ray joins whatever RAY_ADDRESS or an earlier `ray start` on this machine points to.
            with fewer_helpers(forks):
                ray.init(
                    "local",
                    num_cpus=cpus,
                    object_store_memory=_store_bytes(),
                    include_dashboard=False,
                    **quiet,
                )
        else:
            _join(address, quiet)
    every: list[dict[str, Any]] = ray.nodes()
    nodes = [node for node in every if node["Alive"]]
    found = {str(node["NodeID"]): int(node["Resources"].get("CPU", 0)) for node in nodes}
    if not any(found.values()):
        if owned:
            ray.shutdown()
        raise ConfigError(f"ray_address: expected a cluster with CPUs, found none at {address!r}")
    gpus = int(sum(node["Resources"].get("GPU", 0) for node in nodes))
    return Cluster(owned, {node: n for node, n in found.items() if n}, gpus, _node(), forks)


def _join(address: str, quiet: Mapping[str, Any]) -> None:
    import ray

    environment = {name: os.environ.get(name, value) for name, value in _WORKERS.items()}
    code = [str(Path(str(fedsim.__file__)).parent)]  # so that all processes run the same code
    try:
        ray.init(address=address, runtime_env={"py_modules": code, "env_vars": environment}, **quiet)
    except (ConnectionError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        reason = str(error).strip().split("\n")[0]
        raise ConfigError(
            f"ray_address: expected 'auto' or HOST:PORT of a Ray cluster that this machine is a node of, found "
            f"{address!r}: {reason}"
        ) from error


def _node() -> str:
    import ray

    return str(ray.get_runtime_context().get_node_id())


def _store_bytes() -> int:
    """Return how much memory processes of a Ray of one's own may share: an upper bound, since unused pages take none.

    What a run needs is predicted and refused before (`fedsim.runs.memory_estimate`), when its data are known; Ray
    starts earlier.
    """
    most = psutil.virtual_memory().available // 2
    if sys.platform == "linux":
        most = min(most, int(0.9 * shutil.disk_usage("/dev/shm").free))
    elif sys.platform == "darwin":
        most = min(most, 2 * 2**30)  # Ray refuses more there
    return max(most, _LEAST_STORE)
