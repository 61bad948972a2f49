"""One test for every trainer: in this process, in Ray with one to three workers, and finishing in any order."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from fedsim.data import FederatedData
from fedsim.errors import ConfigError, RunError
from fedsim.federate import federate
from fedsim.job import Job
from fedsim.local import LocalSGD, Workbench, WorkbenchSpec
from fedsim.network import build_network
from fedsim.server import Arrivals, Server, ServerSpec
from fedsim.tasks.digits import digits
from fedsim.trainer import InlineTrainer, Trainer
from shuffled import ShuffledTrainer

K = 12
BENCH = WorkbenchSpec(
    model="mlp",
    model_options={"hidden": [8]},
    in_shape=(1, 8, 8),
    n_classes=10,
    sgd=LocalSGD(batch_size=8, lr=0.1),
    seed=5,
    losses=True,
)


def data() -> FederatedData:
    task = digits(clients=K, seed=0, data_dir=None)
    return federate(task, n_clients=K, partitioner="iid", options={"sizes": "lognormal"}, seed=0)


def parts(rule: str = "fedlf") -> tuple[ServerSpec, torch.Tensor, FederatedData]:
    network = build_network(BENCH.model, BENCH.model_options, BENCH.in_shape, BENCH.n_classes)
    shared = data()
    server = ServerSpec(rule, {}, K, int(shared.train.sizes.sum()), 4, network.blocks)
    return server, network.initial(0), shared


def inline(rule: str = "fedlf") -> InlineTrainer:
    server, initial, shared = parts(rule)
    return InlineTrainer(Workbench(BENCH, shared), Server(server, initial))


def drive(trainer: Trainer) -> tuple[list[object], torch.Tensor]:
    """Three steps in which jobs of different versions overlap; one job is forgotten."""
    seen: list[object] = []
    running: list[Job] = []
    number = 0
    for step, clients in enumerate(([0, 5, 2, 9], [1, 7, 3], [5, 0, 11])):
        jobs = [Job(number + i, c, step, step) for i, c in enumerate(clients)]
        number += len(jobs)
        trainer.submit(jobs)
        running += jobs
        if step == 1:
            trainer.forget([running.pop(1)])
        landed, running = running[:3], running[3:]
        updates = trainer.results(landed)
        seen += [repr(u.report) for u in updates]
        arrived = np.array([j.client for j in landed])
        arrivals = Arrivals(
            step=step,
            clients=arrived,
            staleness=step - np.array([j.version for j in landed]),
            n_samples=np.full(len(landed), 10),
            reports=[u.report for u in updates],
            online=np.arange(K),
        )
        columns = trainer.step(arrivals, updates)
        found = trainer.evaluate("test")()
        seen += [sorted(columns().items()), found.correct.tolist(), found.loss.tolist()]
    return seen, trainer.params()["params"]


def assert_same(
    found: tuple[list[object], torch.Tensor], expected: tuple[list[object], torch.Tensor]
) -> None:
    assert found[0] == expected[0]
    assert torch.equal(found[1], expected[1])


@pytest.fixture(scope="module")
def expected() -> tuple[list[object], torch.Tensor]:
    return drive(inline())


def test_it_moves_the_model(expected: tuple[list[object], torch.Tensor]) -> None:
    assert not torch.equal(expected[1], parts()[1])


@pytest.mark.parametrize("seed", range(4))
def test_the_order_of_finishing_does_not_matter(
    expected: tuple[list[object], torch.Tensor], seed: int
) -> None:
    server, initial, shared = parts()
    assert_same(drive(ShuffledTrainer(Workbench(BENCH, shared), Server(server, initial), seed)), expected)


@pytest.fixture(scope="module", params=[1, 2, 3])
def pool(request: pytest.FixtureRequest) -> Iterator[object]:
    from fedsim.actors import RayPool

    made = RayPool(request.param)
    yield made
    made.close()


@pytest.mark.ray
def test_ray_gives_the_same_bits(pool: object, expected: tuple[list[object], torch.Tensor]) -> None:
    server, initial, shared = parts()
    for _ in range(2):  # a pool serves one run after the other
        trainer = pool.trainer(BENCH, server, shared, initial, shared.train.sizes)  # type: ignore[attr-defined]
        assert_same(drive(trainer), expected)
        trainer.close()


@pytest.mark.ray
def test_an_error_in_an_actor_is_raised_as_itself(pool: object) -> None:
    server, initial, shared = parts("fedavg")
    bad = ServerSpec("fedavgg", {}, K, 1, 4, server.blocks)
    with pytest.raises(ConfigError, match="did you mean 'fedavg'"):
        pool.trainer(BENCH, bad, shared, initial, shared.train.sizes)  # type: ignore[attr-defined]


@pytest.mark.ray
def test_a_worker_that_dies_ends_the_run_with_an_error() -> None:
    import ray

    from fedsim.actors import RayPool

    server, initial, shared = parts("fedavg")
    pool = RayPool(1)
    try:
        trainer = pool.trainer(BENCH, server, shared, initial, shared.train.sizes)
        ray.kill(pool.clients[0])
        job = Job(0, 0, 0, 0)
        trainer.submit([job])
        with pytest.raises(RunError, match="a worker process failed"):
            trainer.results([job])
    finally:
        pool.close()
