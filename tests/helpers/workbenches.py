"""Workbenches of many shapes, and jobs for them."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch

from fedsim.data.federated_data import FederatedData
from fedsim.training.augmentation import Augment
from fedsim.training.job import Cohort, Reports
from fedsim.training.settings import LocalSGD, WorkbenchSpec
from fedsim.training.threaded_workbench import ThreadedWorkbench
from fedsim.training.workbench import Workbench

K, FEATURES, CLASSES = 40, 64, 10
SHAPES: dict[str, tuple[str, dict[str, Any], LocalSGD]] = {
    "softmax": ("softmax", {}, LocalSGD(batch_size=10, lr=0.05)),
    "mlp": ("mlp", {"hidden": [32]}, LocalSGD(batch_size=8, lr=0.1, epochs=2)),
    "large": ("mlp", {"hidden": [200, 200]}, LocalSGD(batch_size=50, lr=0.1)),
    "full batch": ("mlp", {"hidden": [16]}, LocalSGD(batch_size=None, lr=0.1, epochs=3)),
    "momentum": ("mlp", {"hidden": [16]}, LocalSGD(batch_size=8, lr=0.05, momentum=0.9, weight_decay=0.01)),
    "augmented": (
        "mlp",
        {"hidden": [16]},
        LocalSGD(batch_size=8, lr=0.1, epochs=2, augment=Augment(2, True)),
    ),
    "decay": ("softmax", {"bias": False}, LocalSGD(batch_size=10, lr=0.1, lr_decay=0.9)),
    "some losses": ("mlp", {"hidden": [32]}, LocalSGD(batch_size=8, lr=0.1, loss_samples=9)),
    "hinge": ("softmax", {"bias": False}, LocalSGD(batch_size=10, lr=0.05, loss="hinge")),
    "hinge, hidden": ("mlp", {"hidden": [32]}, LocalSGD(batch_size=8, lr=0.05, epochs=2, loss="hinge")),
    "bfloat16": ("mlp", {"hidden": [32]}, LocalSGD(batch_size=8, lr=0.1, epochs=2, precision="bfloat16")),
    "large, bfloat16": (
        "mlp",
        {"hidden": [200, 200]},
        LocalSGD(batch_size=50, lr=0.05, momentum=0.5, precision="bfloat16"),
    ),
    "large, some losses": (
        "mlp",
        {"hidden": [200, 200]},
        LocalSGD(batch_size=50, lr=0.1, loss_samples=9),
    ),
    "proximal": ("mlp", {"hidden": [32]}, LocalSGD(batch_size=8, lr=0.1, epochs=2)),
    "large, proximal": ("mlp", {"hidden": [200, 200]}, LocalSGD(batch_size=50, lr=0.1, epochs=2)),
    "proximal, momentum": (
        "mlp",
        {"hidden": [16]},
        LocalSGD(batch_size=8, lr=0.05, momentum=0.9, weight_decay=0.01),
    ),
    "proximal, bfloat16": (
        "mlp",
        {"hidden": [32]},
        LocalSGD(batch_size=8, lr=0.1, epochs=2, precision="bfloat16"),
    ),
    "doubled": ("mlp", {"hidden": [32]}, LocalSGD(batch_size=8, lr=0.05, epochs=2, lr_decay=0.9)),
    "doubled, momentum": (
        "mlp",
        {"hidden": [16]},
        LocalSGD(batch_size=8, lr=0.02, momentum=0.9, weight_decay=0.01),
    ),
    "offset": ("mlp", {"hidden": [32]}, LocalSGD(batch_size=8, lr=0.05, epochs=2, lr_decay=0.9)),
    "large, offset": ("mlp", {"hidden": [200, 200]}, LocalSGD(batch_size=50, lr=0.1, epochs=2)),
    "offset, momentum": (
        "mlp",
        {"hidden": [16]},
        LocalSGD(batch_size=8, lr=0.02, momentum=0.9, weight_decay=0.01),
    ),
    "own": ("mlp", {"hidden": [32]}, LocalSGD(batch_size=8, lr=0.05, epochs=2, lr_decay=0.9)),
    "large, own": ("mlp", {"hidden": [200, 200]}, LocalSGD(batch_size=50, lr=0.1)),
    "own, momentum": (
        "mlp",
        {"hidden": [16]},
        LocalSGD(batch_size=8, lr=0.02, momentum=0.9, weight_decay=0.01),
    ),
    "own, augmented": (
        "mlp",
        {"hidden": [16]},
        LocalSGD(batch_size=None, lr=0.1, epochs=2, augment=Augment(2, True)),
    ),
}
"""Model, its options and local training. The proximal ones train with FedProx, the doubled ones with `ditto_global`,
those with an offset with SCAFFOLD, and with momentum with FedDyn, those with an own model with Ditto."""


def bench(data: FederatedData, shape: str, mode: Any, **changes: Any) -> Workbench:
    model, options, sgd = SHAPES[shape]
    spec = WorkbenchSpec(model, options, (1, 8, 8), CLASSES, sgd, seed=3, losses=False, mode=mode)
    if "proximal" in shape:
        spec = dataclasses.replace(spec, client="fedprox", client_options={"mu": 2.0})
    if "doubled" in shape:
        spec = dataclasses.replace(spec, client="ditto_global", client_options={"lam": 2.0})
    if "offset" in shape:
        spec = dataclasses.replace(spec, client="scaffold")
    if shape == "offset, momentum":
        spec = dataclasses.replace(spec, client="feddyn", client_options={"alpha": 0.5})
    if "own" in shape:
        own = {"epochs": 3, "lr": 0.03} if "momentum" in shape else {}
        spec = dataclasses.replace(spec, client="ditto", client_options={"lam": 2.0} | own)
    return Workbench(dataclasses.replace(spec, **changes), data)


def cohort(k: int = K) -> Cohort:
    shares = np.where(np.arange(k) % 5 == 3, 0.4, 1.0)
    return Cohort(np.arange(k), np.arange(k) % K, np.arange(k) % 3, np.arange(k) % 2, shares, np.arange(k))


def trained(
    made: Workbench | ThreadedWorkbench, jobs: Cohort, same: bool = True
) -> tuple[torch.Tensor, Reports]:
    """Train jobs from one model, or each from that of its version.

    Returns the rows that clients send, and behind each what its client keeps. The server's vectors and what clients
    kept before are noise; every fifth client has kept nothing yet.
    """
    network = made.first.network if isinstance(made, ThreadedWorkbench) else made.network

    def vector(seed: int) -> torch.Tensor:
        return 0.1 * torch.randn(network.P, generator=torch.Generator().manual_seed(seed))

    beside = [vector(100 + i) for i in range(len(made.method.receives))]
    starts = [torch.cat([network.initial(version), *beside]) for version in range(2)]
    mine = [starts[0 if same else version] for version in jobs.versions.tolist()]
    rows = torch.full((len(jobs), made.columns), torch.nan)
    if not made.method.keeps:
        return rows, made.train(jobs, mine, rows)[0]
    before = [vector(client) if client % 5 else None for client in jobs.clients.tolist()]
    reports, after = made.train(jobs, mine, rows, before)
    kept = [torch.zeros(network.P) if vector is None else vector for vector in after]
    return torch.cat([rows, torch.stack(kept)], dim=1), reports
