"""Spread that a perfectly equal model would show."""

from __future__ import annotations

import numpy as np

from fedsim.common.arrays import Floats, Ints


def std_floor_percent(accuracy: Floats, n: Ints) -> float:
    """Return the `std_percent` that a model with one true accuracy for all clients would show, in percent.

    It is `100 sqrt((1 - 1/K) mean_k m (1 - m) / n_k)` with the mean accuracy m: the root of the expected variance of
    accuracies on n_k samples each. From 0 (m is 0 or 1, or K is 1) to 50. Source: the variance of a binomial share
    (Cochran, Sampling Techniques, 1977, section 3.2).
    """
    mean = accuracy.mean()
    return 100 * float(np.sqrt((1 - 1 / len(n)) * mean * (1 - mean) * (1 / n).mean()))
