"""Means over the ascending numbers of each column, for rules that combine rows column by column."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedsim.server.rule import Direction, Stack

if TYPE_CHECKING:
    import torch


def each_present(stack: Stack) -> Direction:
    """Hand all present rows to the rule's columns, as they are."""
    factors = np.zeros(stack.n)
    factors[: stack.m] = 1.0
    return Direction(factors)


def mean_of_ranks(tile: torch.Tensor, first: int, stop: int) -> torch.Tensor:
    """Return the mean `[c]` of the numbers at the ranks `first` to `stop - 1` of each column of `tile` [k, c].

    Adds up in pairs, then pairs of pairs, so that the bits depend on the column alone and rounding grows with log k.
    """
    total = tile[first:stop]
    while len(total) > 1:
        half = len(total) // 2
        pairs = total[:half] + total[half : 2 * half]
        if len(total) % 2:
            pairs[0] += total[-1]
        total = pairs
    return total[0] / (stop - first)
