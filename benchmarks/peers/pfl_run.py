"""pfl as a contestant of `works.py`: its SimulatedBackend in two processes, users as tensors in memory, no DataLoader.

    python -m torch.distributed.run --nproc-per-node=2 benchmarks/peers/pfl_run.py work.npz --rounds 10

pfl goes through a user's samples in the order in which they lie, which spares it the permutation and the gather that
all the others do.
"""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.internal.ops import pytorch_ops
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import nn
from torch.nn import functional

from contest import Partition, Rounds, arguments, build_model, test_accuracy


class Net(nn.Module):
    """The work's model with what pfl asks of a module."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the mean cross-entropy of a minibatch."""
        return functional.cross_entropy(self.inner(x), y)

    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
        """Count samples: pfl evaluates the users of the first round whatever it is told, and wants something for it."""
        return {"samples": Weighted.from_unweighted(len(y))}


class Watch(TrainingProcessCallback):
    """Notes when central iterations end."""

    def __init__(self, rounds: Rounds) -> None:
        self.rounds = rounds

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """Note it and go on."""
        self.rounds.end()
        return False, Metrics()


def users(work: Partition) -> FederatedDataset:
    """Return a federated dataset that gives each cohort at random, without anybody twice."""
    data = [Dataset(work.tensors(client), user_id=str(client)) for client in range(work.n_clients)]
    draws = np.random.default_rng(1)  # the same on all processes, as pfl wants it
    cohort: list[int] = []

    def sample() -> int:
        if not cohort:
            cohort.extend(draws.choice(work.n_clients, work.spec.clients_per_round, replace=False).tolist())
        return cohort.pop()

    return FederatedDataset(data.__getitem__, sample)


def main() -> None:
    """Train, and print what was measured."""
    given = arguments(__doc__).parse_args()
    torch.set_num_threads(1)
    np.random.seed(1)  # noqa: NPY002 (pfl draws its seeds from there)
    asyncio.set_event_loop(asyncio.new_event_loop())
    work, rounds = Partition.read(given.work), Rounds(given.since)
    net = Net(build_model(work))
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), 1.0))
    data = users(work)
    FederatedAveraging().run(
        backend=SimulatedBackend(data, data, postprocessors=[WeightByDatapoints()]),
        model=model,
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=1 + given.rounds,
            evaluation_frequency=2 + given.rounds,
            train_cohort_size=work.spec.clients_per_round,
            val_cohort_size=0,
        ),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=work.spec.lr, local_batch_size=work.spec.batch_size
        ),
        callbacks=[Watch(rounds)],
        send_metrics_to_platform=False,
    )
    if pytorch_ops.distributed.global_rank == 0:
        rounds.say(test_accuracy(net.inner, work))
    if pytorch_ops.distributed.world_size > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
