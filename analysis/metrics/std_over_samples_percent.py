"""Spread of the accuracies, each client weighted by its samples."""

from __future__ import annotations

import numpy as np

from fedsim.common.arrays import Floats, Ints

SMALLER_IS_BETTER = True


def std_over_samples_percent(accuracy: Floats, n: Ints) -> float:
    """Return `sqrt(sum_k n_k (100 a_k - mean)^2 / sum_k n_k)`, in percent.

    The mean is `mean_over_samples_percent`: the two describe the client of a sample, as `mean_percent` and
    `std_percent` describe a client. From 0 (all equal) to 50. Source: the weighting of "average" in q-FFL (Li et al.,
    ICLR 2020), applied to the spread.
    """
    mean = np.average(accuracy, weights=n)
    return 100 * float(np.sqrt(np.average((accuracy - mean) ** 2, weights=n)))
