"""Gini coefficient of the accuracies."""

from __future__ import annotations

import numpy as np

from fedsim.common.arrays import Floats, Ints

SMALLER_IS_BETTER = True


def gini(accuracy: Floats, n: Ints) -> float:
    """Return the Gini coefficient, 0 if all accuracies are equal: `sum_ij |a_i - a_j| / (2 K sum_k a_k)`.

    From 0 (all equal, also if all are 0) to `1 - 1/K` (one client has everything). Computed from the sorted
    accuracies as `sum_k (2k - K - 1) a_(k) / (K sum_k a_k)`. Source: Gini, "Variabilita e mutabilita",
    1912.
    """
    total = accuracy.sum()
    if total == 0:
        return 0.0
    k = len(accuracy)
    rank = 2 * np.arange(1, k + 1) - k - 1
    return max(0.0, float(rank @ np.sort(accuracy) / (k * total)))
