"""Who gets shares of GPUs, and which clusters are refused; with stand-ins for Ray and its processes."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
import torch

import programs
from fedsim.common.errors import ConfigError
from fedsim.execution import cluster
from fedsim.execution.actor_pool import RayPool, start_pool
from fedsim.runs.resources import device_of
from fedsim.runs.simulate import simulate
from small import small


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_the_server_is_here_or_where_a_share_of_a_gpu_is_left(
    share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As docs/cluster.md says: with GPUs no node is named, and it may be lost with any of them."""
    cluster.load(None)
    from fedsim.execution import ray_actors as hosts

    asked: dict[str, Any] = {}

    def remote(**options: Any) -> Any:
        asked.update(options)
        return lambda host: SimpleNamespace(remote=lambda prefix: (host, prefix))

    monkeypatch.setattr(hosts, "ray", SimpleNamespace(remote=remote))
    assert hosts.server(share, "ab" * 28, "fedsim-1") == (hosts.ServerHost, "fedsim-1")
    assert asked["num_gpus"] == share
    where = asked["scheduling_strategy"]
    assert where == "DEFAULT" if share else where.node_id == "ab" * 28
    assert "max_restarts" not in asked


class Nodes:
    """A cluster of two nodes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gpus, self.shares, self.closed, self.owned = 0, list[float](), 0, False
        cluster.load(None)  # with the environment that it needs for all later tests of the same process
        monkeypatch.setattr(cluster, "load", lambda address: None)
        monkeypatch.setattr(cluster, "connected", lambda: True)
        monkeypatch.setattr(cluster, "connect", lambda address, cpus: self.connect())
        monkeypatch.setattr(
            "fedsim.execution.ray_actors.client", lambda share, node, prefix: self.shares.append(share)
        )
        monkeypatch.setattr(
            "fedsim.execution.ray_actors.server", lambda share, node, prefix: self.shares.append(share)
        )
        monkeypatch.setattr("fedsim.execution.ray_actors.stop", lambda handles: None)

    def connect(self) -> Any:
        there = cluster.Cluster(True, {"a": 1, "b": 2}, self.gpus, "a")
        return SimpleNamespace(
            owned=self.owned,
            cpus=there.cpus,
            gpus=there.gpus,
            node=there.node,
            places=there.places,
            close=self.close,
        )

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Nodes:
    return Nodes(monkeypatch)


def sees(monkeypatch: pytest.MonkeyPatch, gpu: bool) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)


@pytest.mark.parametrize(
    ("device", "there", "here", "share"),
    [
        ("cpu", 2, True, 0.0),
        ("auto", 2, True, 0.495),
        ("auto", 3, True, 0.99),
        ("auto", 2, False, 0.0),
        ("auto", 0, True, 0.0),
        ("cuda", 2, False, 0.495),
    ],
)
def test_shares_of_gpus_are_taken_where_the_run_computes_on_them(
    device: Literal["auto", "cpu", "cuda"],
    there: int,
    here: bool,
    share: float,
    nodes: Nodes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sees(monkeypatch, here)
    nodes.gpus = there
    pool = start_pool("auto", device, "10.0.0.1:6379")
    assert pool is not None
    with pool:
        assert pool.workers == 3
        assert nodes.shares == [share] * 3 + [0.01 if share else 0.0]
        if share:
            most = 3 // there + (3 % there > 0)
            assert most * share + 0.01 <= 1 < (most + 1) * share, (
                "a GPU has room for its part alone, and the server"
            )
        assert pool.has_gpus == (share > 0)
        assert device_of(device, True, pool) == ("cuda" if share else "cpu")
    assert nodes.closed == 1


@pytest.mark.parametrize(("connected", "workers"), [(True, 3), (False, 5)])
def test_auto_takes_the_cpus_of_the_cluster_or_those_of_the_machine_where_it_starts_one(
    nodes: Nodes, connected: bool, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster has one CPU and two, the machine five."""
    nodes.owned = not connected
    monkeypatch.setattr("fedsim.execution.actor_pool.cores", lambda: 5)
    with RayPool("auto") as pool:
        assert pool.workers == workers


def test_a_cluster_without_gpus_is_refused_where_they_are_asked_for(nodes: Nodes) -> None:
    with RayPool(2, gpus=True, address="10.0.0.1:6379") as pool:
        for _ in range(2):
            with pytest.raises(ConfigError, match="device: 'cuda' was asked for, but Ray has no GPU"):
                device_of("cuda", True, pool)
        assert nodes.closed == 1
    assert nodes.shares == []


def test_processes_without_gpus_do_not_compute_on_one(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes.gpus = 2
    sees(monkeypatch, True)
    with RayPool(2) as pool:
        assert device_of("auto", True, pool) == device_of("cpu", True, pool) == "cpu"
        with pytest.raises(ConfigError, match="'cuda' was asked for, but the pool was opened without GPUs"):
            device_of("cuda", True, pool)


@pytest.mark.parametrize("cpus", [[0, 0], []])
@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("auto", "ray_address: expected a cluster with CPUs, found none at 'auto'"),
        (None, "workers: this process is connected to a Ray cluster without CPUs"),
    ],
)
def test_a_cluster_without_cpus_is_refused(
    cpus: list[int], address: str | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[int] = []
    every = [
        {"NodeID": f"{i}", "Alive": True, "Resources": {"CPU": n} if n else {}} for i, n in enumerate(cpus)
    ]
    ray = SimpleNamespace(
        is_initialized=lambda: address is None, nodes=lambda: every, shutdown=lambda: left.append(1)
    )
    monkeypatch.setattr(cluster, "load", lambda address: ray)
    monkeypatch.setattr(cluster, "_join", lambda address, quiet: None)
    with pytest.raises(ConfigError, match=message):
        cluster.connect(address, cpus=1)
    assert left == [1] * (address is not None), "a connection of the user stays"


CLOSED = "workers: expected an open RayPool, found one that is closed"


@pytest.mark.parametrize("shut", [False, True])
def test_a_pool_that_is_closed_or_whose_ray_is_gone_is_refused_before_anything_is_written(
    shut: bool, nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = RayPool(2)
    pool.processes()
    if shut:
        monkeypatch.setattr(cluster, "connected", lambda: False)
    else:
        pool.close()
    with pytest.raises(ConfigError, match=CLOSED):
        pool.processes()
    with pytest.raises(ConfigError, match=CLOSED):
        simulate(small(), out=tmp_path / "out", workers=pool)
    assert not (tmp_path / "out").exists()
    pool.close()


def test_an_address_that_could_not_be_joined_is_refused(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        RayPool(2) as pool,
        pytest.raises(ConfigError, match="ray_address: expected None with a RayPool, found '10"),
    ):
        simulate(small(), out=tmp_path, workers=pool, ray_address="10.0.0.1:6379")
    with pytest.raises(ConfigError, match="ray_address: expected 'auto' or HOST:PORT, found 'local'"):
        RayPool(1, address="local")
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: True))
    with pytest.raises(
        ConfigError, match=r"ray_address: this process is connected .* found '10\.0\.0\.1:6379'"
    ):
        RayPool(1, address="10.0.0.1:6379")


def test_what_was_started_ends_with_a_pool_that_cannot_be(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(share: float, node: str, prefix: str) -> None:
        raise RuntimeError("no actor")

    monkeypatch.setattr("fedsim.execution.ray_actors.client", failing)
    with pytest.raises(RuntimeError, match="no actor"):
        RayPool(2).processes()
    assert nodes.closed == 1


EARLY = """
import os
for name in [name for name in os.environ if name.startswith("RAY_")]:
    del os.environ[name]
if {set}:
    os.environ["HOME"] = os.getcwd()
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
import ray
from fedsim.common.errors import ConfigError
from fedsim.execution.actor_pool import RayPool

try:
    with RayPool(1) as pool:
        pool.processes()
        print(ray.nodes()[0]["NodeManagerAddress"])
except ConfigError as error:
    print(error)
"""


def test_ray_imported_before_fedsim_is_refused_as_it_would_start_without_a_token(tmp_path: Path) -> None:
    done = programs.python(EARLY.format(set=False), tmp_path)
    assert done.out.startswith(
        "workers: Ray was imported before fedsim, without what it reads at its import: set RAY_AUTH_MODE=token "
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0 RAY_ENABLE_UV_RUN_RUNTIME_ENV=0 before"
    ), done.err


@pytest.mark.ray
def test_ray_imported_before_fedsim_with_its_settings_serves(tmp_path: Path) -> None:
    done = programs.python(EARLY.format(set=True), tmp_path)
    assert done.out.split() == ["127.0.0.1"], done.err
    assert not (tmp_path / ".ray").exists(), "the token is in no file that others may read"


LONG = """
import os
os.environ["RAY_TMPDIR"] = os.path.join(os.getcwd(), "long" * 25)
os.mkdir(os.environ["RAY_TMPDIR"])
from fedsim.common.errors import ConfigError
from fedsim.execution.actor_pool import RayPool

try:
    RayPool(1).processes()
except ConfigError as error:
    print(error)
"""


def test_ray_that_cannot_start_is_said_with_what_to_do(tmp_path: Path) -> None:
    done = programs.python(LONG, tmp_path)
    assert done.out.startswith("workers: Ray cannot start: "), done.err
    assert "AF_UNIX path length" in done.out
    assert "use workers=0, or if Ray's folder is the cause, set RAY_TMPDIR to one" in done.out
