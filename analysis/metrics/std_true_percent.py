"""Spread of the true accuracies."""

from __future__ import annotations

import numpy as np

from fedsim.analysis.statistics.variance.sampling_noise import true_std_percent
from fedsim.common.arrays import Floats, Ints

SMALLER_IS_BETTER = True


def std_true_percent(accuracy: Floats, n: Ints) -> float:
    """Return `std_percent` less the sampling noise of the clients' test sets, in percent.

    It is `100 sqrt(max(0, var a - (1 - 1/K) mean_k a_k (1 - a_k) / (n_k - 1)))`, from 0 to 50. The variance under the
    root is unbiased. Clients with one sample are left out; NaN if no client has two. Source: the variance of a binomial
    share (Cochran, Sampling Techniques, 1977, section 3.2).
    """
    return true_std_percent(accuracy, n, np.ones(len(accuracy)))
