"""Type aliases of arrays, and names of clients as numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


def as_numbers(names: Sequence[str]) -> list[int] | None:
    """Return names of clients as whole numbers, which then order the clients; None if not all are, or two agree."""
    if not all(name.isdecimal() and len(name) < 19 for name in names):
        return None
    numbers = [int(name) for name in names]
    return numbers if len(set(numbers)) == len(set(names)) else None
