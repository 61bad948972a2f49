"""A client of a small network on digits, and its work under any client-side method."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from fedsim.data import FederatedData
from fedsim.federate import federate
from fedsim.job import Job, Report
from fedsim.local import LocalSGD, Workbench, WorkbenchSpec
from fedsim.network import build_network
from fedsim.tasks.digits import digits

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
    """Do JOB on a fresh workbench; return the report, the row and what the client keeps."""
    bench = Workbench(dataclasses.replace(SPEC, client=name, client_options=options, sgd=sgd), data)
    params = model() if start is None else start
    row = torch.empty_like(params)
    report, keeps = bench.work(JOB, params, row, kept)
    return report, row, keeps
