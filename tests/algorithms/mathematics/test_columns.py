"""Means of ranks, and the rows that rules of columns read."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedsim.algorithms.mathematics.columns import mean_of_ranks
from rule_calls import combine
from stacks import updates


@pytest.mark.parametrize(("first", "stop"), [(0, 1), (0, 2), (3, 4), (1, 8), (0, 9), (2, 9), (0, 8)])
def test_it_is_the_mean_of_the_ranks(first: int, stop: int) -> None:
    tile = np.sort(updates(0, 9, 30), axis=0)
    found = mean_of_ranks(torch.from_numpy(tile), first, stop)
    expected = [math.fsum(column[first:stop]) / (stop - first) for column in tile.T]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-14, atol=1e-16)


def test_the_tile_stays_as_it_is() -> None:
    tile = torch.from_numpy(updates(1, 7, 5))
    before = tile.clone()
    mean_of_ranks(tile, 0, 7)
    mean_of_ranks(tile, 3, 4).add_(1.0)
    assert torch.equal(tile, before)


@pytest.mark.parametrize("k", [1, 2, 7, 64, 101])
def test_a_column_has_the_same_bits_alone_and_among_others(k: int) -> None:
    tile = torch.from_numpy(updates(k, k, 40))
    whole = mean_of_ranks(tile, 0, k)
    alone = torch.cat([mean_of_ranks(tile[:, i : i + 1].contiguous(), 0, k) for i in range(40)])
    turned = mean_of_ranks(tile.T.contiguous().T, 0, k)
    assert whole.numpy().tobytes() == alone.numpy().tobytes() == turned.numpy().tobytes()


def test_present_rows_have_factor_1_and_remembered_ones_0() -> None:
    found = combine("coordinate_median", updates(0, 5, 3), losses=None, ages=[0, 2, 0, 1, 3])
    assert found.weights.tolist() == [[1, 0, 1, 0, 0]]
