"""Spread of the true accuracies, each client weighted by its samples."""

from __future__ import annotations

import numpy as np

from fedsim.analysis.statistics.variance.sampling_noise import true_std_percent
from fedsim.common.arrays import Floats, Ints

SMALLER_IS_BETTER = True


def std_true_over_samples_percent(accuracy: Floats, n: Ints) -> float:
    """Return `std_over_samples_percent` less the sampling noise of the clients' test sets, in percent.

    It is `100 sqrt(max(0, sum_k w_k (a_k - m)^2 - sum_k w_k (1 - w_k) a_k (1 - a_k) / (n_k - 1)))` with the shares
    `w_k = n_k / sum n` and `m = sum_k w_k a_k`, from 0 to 50. Clients with one sample are left out; NaN if no
    client has two. Source: `std_true_percent` with the weights of `std_over_samples_percent`.
    """
    return true_std_percent(accuracy, n, n.astype(np.float64))
