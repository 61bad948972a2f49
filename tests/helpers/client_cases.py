"""A client of a small network on digits, and its work under any client-side method."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from fedsim.data.federated_data import FederatedData
from fedsim.data.split import federate
from fedsim.data.tasks.digits import digits
from fedsim.training.job import Job, Report
from fedsim.training.minibatches import orders
from fedsim.training.network import build_network
from fedsim.training.settings import LocalSGD, WorkbenchSpec
from fedsim.training.workbench import Workbench

SPEC = WorkbenchSpec(
    model="mlp",
    model_options={"hidden": [12, 8]},
    in_shape=(1, 8, 8),
    n_classes=10,
    sgd=LocalSGD(epochs=2, batch_size=9, lr=0.1, lr_decay=0.5),
    seed=3,
    losses=True,
)
JOB = Job(id=0, client=4, nth=2, version=1)


def divided_digits() -> FederatedData:
    """Return digits among 20 clients of different sizes."""
    task = digits(clients=20, seed=0, data_dir=None)
    return federate(task, n_clients=20, partitioner="iid", options={"sizes": "lognormal"}, seed=0)


def model(seed: int = 0) -> torch.Tensor:
    """Return initial parameters [P]."""
    return build_network("mlp", {"hidden": [12, 8]}, (1, 8, 8), 10).initial(seed)


def work(
    data: FederatedData,
    name: str = "plain",
    kept: torch.Tensor | None = None,
    sgd: LocalSGD = SPEC.sgd,
    start: torch.Tensor | None = None,
    **options: Any,
) -> tuple[Report, torch.Tensor, torch.Tensor | None]:
    """Do JOB on a fresh workbench; return the report, the update and what the client keeps.

    Vectors that the server sends beside the model are 0.
    """
    bench = Workbench(dataclasses.replace(SPEC, client=name, client_options=options, sgd=sgd), data)
    params, row = model() if start is None else start, torch.empty(bench.columns)
    none = torch.zeros(len(bench.method.receives) * len(params))
    report, keeps = bench.work(JOB, torch.cat([params, none]), row, kept)
    return report, row[: len(params)], keeps


def oracle(
    data: FederatedData,
    sgd: LocalSGD,
    start: torch.Tensor,
    anchor: torch.Tensor,
    strength: float,
    purpose: str = "batches",
    job: Job = JOB,
    spec: WorkbenchSpec = SPEC,
) -> torch.Tensor:
    """The readable version: a proximal term in the loss, torch's optimiser, one minibatch after the other."""
    network = build_network(spec.model, spec.model_options, spec.in_shape, spec.n_classes)
    module = network.load(start.clone())
    lr = sgd.lr * sgd.lr_decay**job.version
    optimiser = torch.optim.SGD(module.parameters(), lr, sgd.momentum, weight_decay=sgd.weight_decay)
    x, y, rows = torch.from_numpy(data.x), torch.from_numpy(data.y), data.train.rows(job.client)
    for epoch in range(sgd.epochs):
        one = (np.array([value]) for value in (job.client, job.nth, epoch, len(rows)))
        order = rows[orders(spec.seed, purpose, *one)]
        for a in range(0, len(order), sgd.batch_size or len(order)):
            batch = order[a : a + (sgd.batch_size or len(order))]
            optimiser.zero_grad()
            apart = torch.cat([p.reshape(-1) for p in module.parameters()]) - anchor
            (functional.cross_entropy(module(x[batch]), y[batch]) + strength / 2 * apart @ apart).backward()
            optimiser.step()
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])
