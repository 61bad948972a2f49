"""FedSGD: McMahan et al. 2017, "Communication-Efficient Learning of Deep Networks", section 2.

w <- w - η Σ p_k ∇F_k(w): the average of FedAvg over rows that are single gradient steps, η ∇F_k(w). Clients
train one epoch with the full batch, without momentum; other training is refused.
"""

from __future__ import annotations

from dataclasses import replace

from fedsim.algorithms.fedavg import Weighting, fedavg
from fedsim.server.rule import Algorithm


def fedsgd(*, weighting: Weighting = "data") -> Algorithm:
    """Average the clients' gradient steps, weighted by their numbers of training samples or as in `fedavg`."""
    average = fedavg(weighting=weighting)
    return replace(average, needs=replace(average.needs, gradients=True))
