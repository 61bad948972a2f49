"""The only two operations that touch the `[n, P]` rows: block-wise inner products and the weighted sum."""

from __future__ import annotations

from collections.abc import Sequence

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
    """Return `[P]`: in block l, `sum_i weights[l, i] * rows[i]`, reading only rows with a weight.

    `rows` is [n, P]; `weights` is [n] or [L, n]. Rows that hold NaN do not spoil the sum if their weight is 0.
    """
    table = np.atleast_2d(weights)
    if len(table) == 1:
        blocks = [(blocks[0][0], blocks[-1][1])]
    out = torch.empty(rows.shape[1], dtype=rows.dtype, device=rows.device)
    for (start, stop), w in zip(blocks, table, strict=True):
        used = np.flatnonzero(w)
        part = (
            rows[:, start:stop]
            if len(used) == len(rows)
            else rows[torch.from_numpy(used).to(rows.device), start:stop]
        )
        factors = torch.from_numpy(np.ascontiguousarray(w[used])).to(device=rows.device, dtype=rows.dtype)
        torch.mv(part.T, factors, out=out[start:stop])
    return out
