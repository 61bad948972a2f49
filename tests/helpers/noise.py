"""Clients whose samples are noise: for what depends on shapes and sizes alone."""

from __future__ import annotations

import numpy as np

from fedsim.data.federated_data import FederatedData, Split


def noise(clients: int, sizes: tuple[int, int], side: int, classes: int = 10) -> FederatedData:
    """Return images [1, side, side] of clients with at least `sizes[0]` and fewer than `sizes[1]` samples each."""
    draws = np.random.default_rng(0)
    each = draws.integers(*sizes, clients)
    y = draws.integers(0, classes, each.sum())
    x = draws.standard_normal((len(y), 1, side, side)).astype(np.float32)
    rows = Split(draws.permutation(len(y)), np.concatenate([[0], np.cumsum(each)]))
    return FederatedData(x, y, classes, rows, rows, rows)
