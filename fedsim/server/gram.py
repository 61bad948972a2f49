"""Block-wise inner products and the weighted sum of the `[n, P]` rows; `fedsim.server.columns` reads them too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedsim.common.threads import each, in_order
from fedsim.server.rule import Floats

Blocks = Sequence[tuple[int, int]]
"""Half-open column ranges `[start, stop)`, contiguous and covering all P columns."""
Rows = Sequence[torch.Tensor] | torch.Tensor
"""n vectors [P], or a tensor [n, P]."""

TILE = 4096
"""Columns per partial product. Tiles add up in float64. Within a tile products run in the rows' own precision, except
in blocks of at most one tile: a block may have fewer columns than there are rows, and rounding in float32 would then
make the Gram matrix indefinite."""

_FEW = 24
"""Most rows on the left for which a product is cut into pieces so small that OpenBLAS multiplies without copying its
operands first, which is two to three times as fast."""
_NARROW = 512
"""Columns of a piece with few rows on the right too; other pieces have at most `_LEFT` numbers on the left."""
_LEFT = 12 * TILE
_SMALL = 1_000_000
"""Most multiplications of a piece."""
_SCRATCH = 2**13
"""Most partial products that wait to be added up, so few that the rows on the left stay in the cache."""
_WIDENED = 2**20
"""Numbers on the right that are converted to float32 at a time, so few that they stay in the processor's cache."""
_WIDENED_ON_GPU = 2**23
"""The same on a GPU."""
_LONG = 2**16
"""Columns that are added up at a time when rows are converted to float32."""
_MANY = 256
"""Rows on the right of a piece with more than `_FEW` rows on the left."""
_COLUMNS = 2**12
"""Columns that are gathered at a time on the host. The system allocates large memory page by page and frees it each
time, which takes longer than the copy."""
WORTH = 2**27
"""Multiplications from which threads are worth starting: several milliseconds of work."""
_MOVED = 2**25
"""Numbers that are gathered, or copied from the host to a GPU, at a time."""


def block_products(left: torch.Tensor, right: torch.Tensor, blocks: Blocks) -> Floats:
    """Return `[L, k, n]` float64 inner products of the rows of `left` [k, P] and `right` [n, P], block by block.

    Rows of one precision on the host are not copied.
    """
    if not (left.is_cpu and left.dtype == right.dtype and left.dtype in (torch.float32, torch.float64)):
        return mixed_products([left], right, blocks)
    out = np.zeros((len(blocks), len(left), len(right)))
    for index, (start, stop) in enumerate(blocks):
        mine, theirs = left[:, start:stop], right[:, start:stop]
        if stop - start <= TILE:
            out[index] = (mine.double() @ theirs.double().T).numpy()
        else:
            out[index] = _products(mine.numpy(), theirs.numpy())
    return out


def mixed_products(left: Sequence[torch.Tensor], right: torch.Tensor, blocks: Blocks) -> Floats:
    """Return `[L, k, n]` float64 inner products of rows of any precision, `right` [n, P] on any device.

    `left` are tensors `[k_i, P]` with k rows together, on one device, where the products are computed. Rows are
    converted to float32 one tile at a time, in blocks of at most one tile to float64. Rows on another device are
    copied some at a time. The result leaves the device in one transfer.
    """
    device, n, columns = left[0].device, len(right), right.shape[1]
    k = sum(map(len, left))
    total = torch.zeros(len(blocks), k, n, dtype=torch.float64, device=device)
    moved = max(n if right.device == device else _MOVED // columns, 1)
    for first in range(0, n, moved):
        theirs = right[first : first + moved].to(device)
        for (start, stop), products in zip(blocks, total, strict=True):
            _add_products(products[:, first : first + moved], left, theirs, start, stop)
    return np.asarray(total.cpu().numpy())


def _add_products(
    total: torch.Tensor, left: Sequence[torch.Tensor], right: torch.Tensor, start: int, stop: int
) -> None:
    """Add to `total` [k, n] the products of the columns from `start` to `stop`."""
    types = (rows.dtype for rows in (*left, right))
    dtype = reduce(torch.promote_types, types, torch.float32) if stop - start > TILE else torch.float64
    few = right.is_cpu and len(total) <= _FEW
    width = 4 * TILE if few else TILE  # fewer rows, longer tiles
    most = (_WIDENED if right.is_cpu else _WIDENED_ON_GPU) // width
    for a in range(start, stop, width):
        tile = slice(a, min(a + width, stop))
        mine = torch.cat([rows[:, tile].to(dtype) for rows in left])
        for b in range(0, len(right), most):
            total[:, b : b + most] += _partial(mine, right[b : b + most, tile].to(dtype))


def _partial(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    if left.is_cpu:
        return torch.from_numpy(_products(left.numpy(), right.numpy()))
    return left @ right.T


def _products(left: NDArray[Any], right: NDArray[Any]) -> Floats:
    """Multiply strips of columns, many at a time, and add up; NumPy does half the work if both are the same rows."""
    few = len(left) <= _FEW
    strip = _width(len(left), len(right)) if few else TILE
    same = left.ctypes.data == right.ctypes.data
    most = max(_SMALL // (len(left) * strip), 1) if few else _MANY
    if same:  # the routine for equal operands is faster for many rows only
        most = min(most, -(-len(right) // 2)) if few else len(right)
    whole = left.shape[1] // strip * strip
    group = max(_SCRATCH // (len(left) * most), 1) * strip
    total = np.asarray(left[:, whole:] @ right[:, whole:].T, dtype=np.float64)
    starts, worth = range(0, whole, group), left.size * len(right) >= WORTH

    def part(a: int, b: int = 0) -> Floats:
        columns = slice(a, min(a + group, whole))
        mine = left[:, columns].reshape(len(left), -1, strip).transpose(1, 0, 2)
        theirs = right[b : b + most, columns]
        pieces = mine @ theirs.reshape(len(theirs), -1, strip).transpose(1, 2, 0)
        return np.asarray(pieces.sum(axis=0, dtype=np.float64))

    def add(b: int) -> None:
        for a in starts:
            total[:, b : b + most] += part(a, b)

    if most < len(right):
        each(add, range(0, len(right), most), worth=worth)
    else:
        for more in in_order(part, starts, worth=worth):
            total += more
    return total


def _width(k: int, n: int) -> int:
    return _NARROW if n <= 2 * _FEW else min(_LEFT // k // _NARROW * _NARROW, TILE)


def weighted_sum(rows: torch.Tensor, weights: Floats, blocks: Blocks) -> torch.Tensor:
    """Return `[P]`: in block l, `sum_i weights[l, i] * rows[i]`.

    `rows` is [n, P], all finite; `weights` is [n] or [L, n]. If few rows have a weight, only these are read.
    """
    out = torch.zeros(rows.shape[1], dtype=rows.dtype, device=rows.device)
    for (start, stop), places, factors in _chosen(rows, out, weights, blocks, gather=False):
        if len(places) < len(rows):
            _add_gathered(out[start:stop], rows[:, start:stop], places, factors, _MOVED)
        else:
            torch.mv(rows[:, start:stop].T, factors, out=out[start:stop])
    return out


def add_weighted(out: torch.Tensor, rows: torch.Tensor, weights: Floats, blocks: Blocks) -> None:
    """Add to `out` [P] the weighted sum of rows that may be less precise and lie elsewhere; see `weighted_sum`.

    Only rows with a weight are read, some at a time, and converted to the precision of `out`.
    """
    for (start, stop), places, factors in _chosen(rows, out, weights, blocks, gather=True):
        width = _LONG if out.is_cpu else max(stop - start, 1)
        for a in range(start, stop, width):
            tile = slice(a, min(a + width, stop))
            _add_gathered(out[tile], rows[:, tile], places, factors, _WIDENED if out.is_cpu else _MOVED)


def _chosen(
    rows: torch.Tensor, out: torch.Tensor, weights: Floats, blocks: Blocks, gather: bool
) -> Iterator[tuple[tuple[int, int], torch.Tensor, torch.Tensor]]:
    """Return for each block its columns, the places of the rows to read (on their device) and weights (on `out`'s).

    One transfer sends those of all blocks. Without `gather` all rows are read if half of them have a weight: gathering
    copies rows, which costs as much as reading them twice.
    """
    table = np.atleast_2d(weights)
    spans = [(blocks[0][0], blocks[-1][1])] if len(table) == 1 else blocks
    used = [np.flatnonzero(w) for w in table]
    if not gather:
        used = [u if 2 * len(u) < len(rows) else np.arange(len(rows)) for u in used]
    sizes = list(map(len, used))
    places = torch.from_numpy(np.concatenate(used)).to(rows.device)
    factors = torch.from_numpy(np.concatenate([w[u] for w, u in zip(table, used, strict=True)]))
    factors = factors.to(device=out.device, dtype=out.dtype)
    return zip(spans, torch.split(places, sizes), torch.split(factors, sizes), strict=True)


def _add_gathered(
    out: torch.Tensor, rows: torch.Tensor, places: torch.Tensor, factors: torch.Tensor, numbers: int
) -> None:
    """Add the weighted sum of some rows, copying at most `numbers` of their entries at a time."""
    most = max(numbers // max(len(out), 1), 1)
    for a in range(0, len(places), most):
        some, own = places[a : a + most], factors[a : a + most]
        width = _COLUMNS if rows.is_cpu and out.is_cpu else max(len(out), 1)
        for b in range(0, len(out), width):
            part = torch.index_select(rows[:, b : b + width], 0, some)
            out[b : b + width].addmv_(part.to(device=out.device, dtype=out.dtype).T, own)


def equal_slices(n_columns: int, count: int) -> list[tuple[int, int]]:
    """Cut `n_columns` into `count` contiguous ranges whose sizes differ by one at most."""
    ends = [n_columns * i // count for i in range(count + 1)]
    return list(pairwise(ends))
