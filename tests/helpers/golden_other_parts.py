"""Checks of golden vectors of parts other than rules: local training, a data set, the metrics of fairness."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from fedsim.algorithms.clients.ditto_global import ditto_global
from fedsim.algorithms.clients.fedprox import fedprox
from fedsim.analysis import summary
from fedsim.data.tasks.synthetic import draw, lognormal_sizes
from fedsim.training.client_method import ClientMethod, Correct
from golden_tools import EXACT, Case, assert_close


class LeastSquares:
    """A client with a linear model: SGD by hand over given batches, in float64; as much of `Local` as is needed."""

    def __init__(self, case: Any) -> None:
        self.x, self.y = torch.from_numpy(case["X"]), torch.from_numpy(case["y"])
        self.lr, self.epochs = float(case["lr"]), int(case["E"])

    def views(self, flat: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (flat,)

    def sgd(
        self, start: torch.Tensor, *, most_steps: int | None = None, correct: Correct | None = None
    ) -> tuple[torch.Tensor, float]:
        v, batches = start.clone(), [*zip(self.x, self.y, strict=True)] * self.epochs
        for x, y in batches[:most_steps]:
            grads = (2 * x.T @ (x @ v - y) / len(y),)
            v = v - self.lr * (correct(grads, (v,), self.lr) if correct else grads)[0]
        return v, math.nan

    def end_of(self, method: ClientMethod, start: torch.Tensor) -> torch.Tensor:
        """Return the end of a job with the method, which keeps nothing."""
        if method.train is None:
            return self.sgd(start, correct=method.correction((start,)))[0]
        return method.train(self, start, None).end  # type: ignore[arg-type]


CLIENTS: dict[str, Callable[[float], ClientMethod]] = {
    "w_proximal_sgd_correct": lambda lam: fedprox(mu=lam),
    "w_fedprox_gfedplat": lambda lam: fedprox(mu=lam, form="released"),
    "w_ditto_gfedplat": lambda lam: ditto_global(lam=lam),
}


def check_proximal_client(case: Case, name: str) -> None:
    for wanted, method_of in CLIENTS.items():
        method = method_of(float(case["lam"]))
        found = LeastSquares(case).end_of(method, torch.from_numpy(case["w0"]))
        assert_close(found.numpy(), case[wanted], EXACT, wanted)
        if method_of is CLIENTS["w_fedprox_gfedplat"]:
            assert_close(found.numpy(), case["w_one_plain_sgd_step"], EXACT, "one plain step")


def check_synthetic(case: Case, name: str) -> None:
    variant = next((v for v in ("iid", "hybrid") if v in name), "noniid")
    state = np.random.RandomState(int(case["seed"]))
    counts = lognormal_sizes(state, 100, 4.0, 2.0 if variant == "noniid" else 1.0, 50)
    devices = draw(state, counts, float(case["alpha"]), float(case["beta"]), variant)  # type: ignore[arg-type]
    np.testing.assert_array_equal(counts, case["n_per_device"])
    np.testing.assert_array_equal(devices.model_means, case["u_k"])
    np.testing.assert_array_equal(devices.feature_means, case["B_k"])
    ends = np.cumsum(counts)[:-1]
    features, labels = np.split(devices.features, ends), np.split(devices.labels, ends)
    for device, x, y in zip(case["devices_shown"], case["x_first3"], case["y_first20"], strict=True):
        np.testing.assert_allclose(features[device][:3], x, rtol=0, atol=1e-12)
        np.testing.assert_array_equal(labels[device][:20], y)
    sums = [x.sum() for x in features]
    np.testing.assert_allclose(sums, case["x_sum_per_device"], rtol=1e-9, atol=1e-7)
    histogram = [np.bincount(y, minlength=10) for y in labels]
    np.testing.assert_array_equal(histogram, case["label_hist"])
    np.testing.assert_array_equal(state.uniform(size=2), case["next_two_uniforms"])


METRICS = {
    "mean_percent": "mean",
    "std_percent": "std_percent",
    "variance_percent2": "var_percent2",
    "worst5_percent": "worst5",
    "worst10_percent": "worst10",
    "best5_percent": "best5",
    "best10_percent": "best10",
    "angle_rad": "angle_rad",
    "angle_deg": "angle_deg",
    "kl_nats": "kl_to_uniform_nats",
    "entropy_nats": "entropy_nats",
}
"""Our names of metrics and the vectors' names."""


def check_metrics(case: Case, name: str) -> None:
    found = [summary(a, np.full(len(a), 50)) for a in case["acc_percent"] / 100]
    columns = {metric: np.array([f[metric] for f in found]) for metric in METRICS}
    for metric, stored in METRICS.items():
        assert_close(columns[metric], case[stored], EXACT, metric)
    printed = ("mean_percent", "std_percent", "worst5_percent", "best5_percent")
    over_seeds = [stat(columns[metric]) for metric in printed for stat in (np.mean, np.std)]
    np.testing.assert_allclose(over_seeds, case["published_mean_std_pairs"], atol=0.005)
