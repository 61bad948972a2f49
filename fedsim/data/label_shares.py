"""Turn real-valued shares into whole numbers of samples."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedsim.common.errors import DataError
from fedsim.data.federated_data import Indices


def apportion(total: int, shares: NDArray[np.float64]) -> Indices:
    """Divide `total` samples in proportion to `shares`, at least one each: the rest by largest remainder.

    Ties go to the first. The caller ensures total >= len(shares) and that the shares are positive in sum.
    """
    exact: NDArray[np.float64] = (total - len(shares)) * shares / shares.sum()
    sizes = np.floor(exact).astype(np.int64)
    left = total - len(shares) - int(sizes.sum())
    sizes[np.argsort(sizes - exact, kind="stable")[:left]] += 1
    return np.asarray(sizes + 1)


def cut(rows: Indices, sizes: Indices) -> list[Indices]:
    """Cut `rows` into consecutive pieces of the given sizes."""
    return np.split(rows, np.cumsum(sizes)[:-1])


def require_samples(n: int, pieces: int, what: str) -> None:
    """Raise DataError unless n samples are enough for as many pieces."""
    if n < pieces:
        raise DataError(f"{n} samples are too few for {what} of at least one sample each")
