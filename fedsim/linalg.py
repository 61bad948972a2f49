"""The only two operations that touch the `[n, P]` rows: block-wise inner products and the weighted sum."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch

from fedsim.stack import Floats

Blocks = Sequence[tuple[int, int]]
"""Half-open column ranges `[start, stop)`, contiguous and covering all P columns."""

TILE = 4096
"""Columns per partial product. Tiles add up in float64; within a tile products run in the rows' own precision, except
in blocks of at most one tile: those may have fewer columns than there are rows, and then rounding in float32 would make
the Gram matrix indefinite."""


def block_products(left: torch.Tensor, right: torch.Tensor, blocks: Blocks) -> Floats:
    """Return `[L, k, n]` float64 inner products of the rows of `left` [k, P] and `right` [n, P], block by block."""
    out = torch.zeros(len(blocks), len(left), len(right), dtype=torch.float64, device=left.device)
    for index, (start, stop) in enumerate(blocks):
        for a in range(start, stop, TILE):
            b = min(a + TILE, stop)
            mine, theirs = left[:, a:b], right[:, a:b]
            if stop - start <= TILE:
                mine, theirs = mine.double(), theirs.double()
            out[index] += (mine @ theirs.T).double()
    return np.asarray(out.cpu().numpy())


def weighted_sum(rows: torch.Tensor, weights: Floats, blocks: Blocks) -> torch.Tensor:
    """Return `[P]`: in block l, `sum_i weights[l, i] * rows[i]`.

    `rows` is [n, P], all finite; `weights` is [n] or [L, n]. Where few rows have a weight, only these are read.
    """
    table = np.atleast_2d(weights)
    if len(table) == 1:
        blocks = [(blocks[0][0], blocks[-1][1])]
    out = torch.empty(rows.shape[1], dtype=rows.dtype, device=rows.device)
    for (start, stop), w in zip(blocks, table, strict=True):
        part, used = rows[:, start:stop], np.flatnonzero(w)
        if 2 * len(used) < len(w):  # gathering copies the rows, which costs as much as reading them twice
            part, w = part[torch.from_numpy(used).to(rows.device)], w[used]
        factors = torch.from_numpy(np.ascontiguousarray(w)).to(device=rows.device, dtype=rows.dtype)
        torch.mv(part.T, factors, out=out[start:stop])
    return out


def equal_slices(n_columns: int, count: int) -> list[tuple[int, int]]:
    """Cut `n_columns` into `count` contiguous ranges whose sizes differ by one at most."""
    ends = [n_columns * i // count for i in range(count + 1)]
    return list(pairwise(ends))
