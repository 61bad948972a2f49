"""All samples of a class at one client: the mutex and the unbalanced division of FedMDFG (Pan et al., 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from pydantic import Field

from fedsim.common.errors import DataError
from fedsim.data.federated_data import Indices
from fedsim.data.partitioners import Partition


def whole_classes(*, groups: Sequence[Annotated[int, Field(ge=1)]] | None = None) -> Partition:
    """Give each client all samples of one class, or of as many as its entry of `groups` says.

    Classes go to the clients in the order of their labels, and a client's samples are ordered by label, then position.
    DataError when `groups` has not as many entries as there are clients, or their sum is not the number of classes that
    occur.

    Args:
        groups: how many classes each client gets, one entry a client; None: one each. FedMDFG's unbalanced clients are
            [1, 2, 2, 2, 3] with 10 classes.
    """

    def partition(y: Indices, n_classes: int, n_clients: int, rng: np.random.Generator) -> list[Indices]:
        present, sizes = np.unique(y, return_counts=True)
        shares = [1] * n_clients if groups is None else list(groups)
        if len(shares) != n_clients or sum(shares) != len(present):
            raise DataError(
                f"cannot give {len(present)} whole classes to {n_clients} clients in groups of {shares}: expected one "
                "group for each client, and groups that add up to the classes"
            )
        ends = np.cumsum(sizes)[np.cumsum(shares) - 1]
        return np.split(np.argsort(y, kind="stable"), ends[:-1])

    return partition
