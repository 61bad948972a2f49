"""Weights by row, and arrays by client that rules keep as state."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fedsim.server.rule import Floats, Ints, Stack

Number = TypeVar("Number", np.float64, np.int64)


def over_present(stack: Stack, weights: Floats) -> Floats:
    """Return weights `[n]`: `weights` `[m]` for the present rows, 0 for remembered ones."""
    padded = np.zeros(stack.n)
    padded[: stack.m] = weights
    return padded


def shares(amounts: Floats) -> Floats:
    """Return non-negative amounts divided by their sum; equal shares if all are 0."""
    largest = float(amounts.max())
    if largest <= 0:
        return np.full(len(amounts), 1 / len(amounts))
    relative = amounts / largest
    return np.asarray(relative / relative.sum())


def grown(values: NDArray[Number], n: int, fill: float) -> NDArray[Number]:
    """Return a copy of an array by client that has entries for all clients below `n`; new ones get `fill`."""
    more = max(n - len(values), 0)
    tail = np.full((more, *values.shape[1:]), fill, dtype=values.dtype)
    return np.concatenate([values, tail])


def room(stack: Stack) -> int:
    """Return the length of an array with an entry for every client."""
    return max(stack.n_clients, int(stack.clients.max()) + 1)


def latest(clients: Ints) -> NDArray[np.intp]:
    """Return the position of the last row of each client, in order of client."""
    _, back = np.unique(clients[::-1], return_index=True)
    return np.asarray(len(clients) - 1 - back, dtype=np.intp)
