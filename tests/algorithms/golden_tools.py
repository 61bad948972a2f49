"""What the checks of golden vectors share: tolerances and a comparison."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Case = dict[str, NDArray[Any]]

EXACT = 1e-10
"""Relative tolerance, in the maximum norm, against results without an interior-point solver."""

POLISHED = 1e-8
"""Relative tolerance against polished solutions that keep some 1e-10 of weight on inactive rows."""

INTERIOR_POINT = 5e-3
"""Relative tolerance against interior-point solvers at their default tolerance."""


def assert_close(actual: NDArray[Any], expected: NDArray[Any], tolerance: float, what: str) -> None:
    """Compare in the maximum norm relative to the largest expected entry."""
    scale = np.abs(expected).max() or 1.0
    error = np.abs(actual - expected).max() / scale
    assert error <= tolerance, f"{what}: relative difference {error:.2e}, expected at most {tolerance:.0e}"
