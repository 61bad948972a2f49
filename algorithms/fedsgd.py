"""FedSGD: McMahan et al. 2017, "Communication-Efficient Learning of Deep Networks", section 2.

w <- w - η Σ p_k ∇F_k(w): the average of FedAvg over rows that are single gradient steps, η ∇F_k(w). Clients
train one epoch with the full batch, without momentum; other training is refused.
"""

from __future__ import annotations

from dataclasses import replace

from fedsim.algorithms.fedavg import Weighting, fedavg
from fedsim.server.rule import Algorithm


def fedsgd(*, weighting: Weighting = "data") -> Algorithm:
    """Average the clients' gradient steps, weighted by their numbers of training samples or as in `fedavg`.

    Args:
        weighting: the weights of the clients' models w_k, with p_k = n_k / Σ n over all K clients and S the m present
            clients: "data", n_k / Σ_S n; "uniform", 1/m; "scaled", (K/m) p_k, which need not sum to one; "completed",
            p_k, absent clients count as having stayed at w; "sequential", s <- s + (w_k - s)/K, client by client, from
            s = w.
    """
    average = fedavg(weighting=weighting)
    return replace(average, needs=replace(average.needs, gradients=True))
