"""Random updates with known structure, and the claims that several rules share."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

Rows = NDArray[np.float64]

seeds = st.integers(0, 2**32 - 1)


def updates(seed: int, m: int, d: int, common: float = 0.5) -> Rows:
    """Draw `[m, d]` Gaussian updates around one of relative size `common`, of norms over two decades."""
    draw = np.random.default_rng(seed)
    rows = draw.normal(size=(m, d)) + common * draw.normal(size=d)
    return np.asarray(rows * 10.0 ** draw.uniform(-1, 1, size=(m, 1)))


def distinct_losses(seed: int, m: int) -> NDArray[np.float64]:
    """Draw `[m]` losses that differ by at least 0.01."""
    draw = np.random.default_rng([seed, 1])
    return np.asarray(0.1 + draw.permutation(m) * 0.1 + draw.uniform(0, 0.09, size=m))


def assert_same(actual: Any, expected: Any, tolerance: float = 1e-9) -> None:
    """Compare in the 2-norm, relative to the expected."""
    error = np.linalg.norm(np.asarray(actual) - np.asarray(expected))
    assert error <= tolerance * max(float(np.linalg.norm(expected)), 1e-300), f"differs by {error:.2e}"
