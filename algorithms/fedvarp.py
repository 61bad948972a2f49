"""FedVARP: Jhunjhunwala et al. 2022, "FedVARP: Tackling the Variance Due to Partial Client Participation in Federated
Learning" (UAI), Algorithm 1; with `clusters`, ClusterFedVARP, Algorithm 2.

With y_k the last update of client k, 0 before the first, ȳ their mean over all K clients, and m clients present:

    w <- w - (ȳ + (1/m) Σ_S (D_k - y_k)),    then y_k <- D_k for k in S.

ClusterFedVARP shares one state among the clients of a cluster: y_c(k) takes the place of y_k, and y_c becomes the mean
of the updates of the cluster's clients in the latest step that had one.

Deviations and choices:
- Clients with unequal participation rates bias the rule, as in the paper; `fedstale` corrects for the rates.
- Client k belongs to cluster floor(k C / K): divisions that give similar data to neighbouring numbers, such as
  `pathological` with `assignment = "blocks"`, make clusters of similar clients. The paper leaves the clustering open.
- A client with several updates in a step counts with their mean; m counts the clients.
"""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
from pydantic import Field

from fedsim.algorithms.debiased import objective_shares
from fedsim.algorithms.mathematics.participation import corrected, present_clients
from fedsim.server.rule import Algorithm, Direction, Floats, Ints, Needs, Stack, stateless


def fedvarp(*, clusters: Annotated[int | None, Field(ge=1)] = None) -> Algorithm:
    """Replace each present client's last update by its new one in the mean of all, and count the change K/m times.

    Args:
        clusters: C, the number of clusters of ClusterFedVARP whose clients share a last update; client k of K belongs
            to cluster floor(k C / K). Without it each client has its own, as in FedVARP.
    """

    def weigh(stack: Stack) -> Direction:
        m = len(present_clients(stack))
        inverse = np.full(m, stack.n_clients / m)
        shares = objective_shares(stack, "uniform")
        if clusters is None:
            return Direction(corrected(stack, shares, inverse, beta=1.0))
        weights = corrected(stack, shares, inverse, beta=0.0)
        return Direction(weights + _cluster_weights(stack, clusters))

    return stateless(weigh, Needs(memory=math.inf, replaced=True))


def _cluster_weights(stack: Stack, clusters: int) -> Floats:
    """Return the weights [n] of ȳ - (1/m) Σ_S y_c(k) over remembered and replaced rows."""
    K = stack.n_clients
    members = np.bincount(_cluster(np.arange(K), clusters, K), minlength=clusters)
    present = present_clients(stack)
    drawn = np.bincount(_cluster(present, clusters, K), minlength=clusters)
    of_cluster = members / K - drawn / len(present)
    kept = np.arange(stack.m, stack.n)
    cluster, ages = _cluster(stack.clients[kept], clusters, K), stack.ages[kept]
    weights = np.zeros(stack.n)
    for c in np.unique(cluster):
        latest = kept[(cluster == c) & (ages == ages[cluster == c].min())]
        weights[latest] = of_cluster[c] / len(latest)
    return weights


def _cluster(clients: Ints, clusters: int, n_clients: int) -> Ints:
    return clients * clusters // n_clients
