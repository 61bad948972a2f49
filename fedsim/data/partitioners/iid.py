"""Samples dealt at random: every client sees the same distribution."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from fedsim.common.option_requirements import With
from fedsim.data.federated_data import Indices
from fedsim.data.label_shares import apportion, cut, require_samples
from fedsim.data.partitioners import Partition


def iid(
    *,
    sizes: Literal["equal", "lognormal"] = "equal",
    sigma: Annotated[float, Field(ge=0, le=100), With("sizes", "lognormal")] = 1.0,
) -> Partition:
    """Deal the shuffled samples to the clients, each sample used once.

    DataError when there are fewer samples than clients.

    Args:
        sizes: "equal": the same number of samples each, up to one. "lognormal": numbers in proportion to LogNormal(0,
            sigma) draws, at least one each.
        sigma: standard deviation of the logarithm of these draws; 0: equal sizes.
    """

    def partition(y: Indices, n_classes: int, n_clients: int, rng: np.random.Generator) -> list[Indices]:
        require_samples(len(y), n_clients, f"{n_clients} clients")
        order = rng.permutation(len(y)).astype(np.int64)
        if sizes == "equal":
            return list(np.array_split(order, n_clients))
        return cut(order, apportion(len(y), rng.lognormal(0.0, sigma, n_clients)))

    return partition
