"""Label-sorted shards, as in FedAvg (McMahan et al., 2017) and FedFV (Wang et al., 2021)."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from fedsim.data.federated_data import Indices
from fedsim.data.label_shares import require_samples
from fedsim.data.partitioners import Partition


def shards(*, shards_per_client: Annotated[int, Field(ge=1)] = 2) -> Partition:
    """Sort by (label, position), cut into equal shards, and deal `shards_per_client` to each client.

    There are n_clients * shards_per_client shards, drawn without replacement, so each sample is used once.
    Where the samples do not divide evenly, the first shards hold one sample more: nothing is dropped.
    DataError when there are fewer samples than shards.

    Args:
        shards_per_client: number of shards that each client gets; with few, a client has few classes.
    """

    def partition(y: Indices, n_classes: int, n_clients: int, rng: np.random.Generator) -> list[Indices]:
        n_shards = n_clients * shards_per_client
        require_samples(len(y), n_shards, f"{n_shards} shards ({n_clients} clients x {shards_per_client})")
        pieces = np.array_split(np.argsort(y, kind="stable"), n_shards)
        drawn = rng.permutation(n_shards).reshape(n_clients, shards_per_client)
        return [np.concatenate([pieces[i] for i in row]) for row in drawn]

    return partition
