"""Spread of the accuracies, squared."""

from __future__ import annotations

from fedsim.common.arrays import Floats, Ints

SMALLER_IS_BETTER = True


def variance_percent2(accuracy: Floats, n: Ints) -> float:
    """Return the population variance, `1 / K * sum_k (100 a_k - mean)^2`, in percent squared.

    0 if all clients are equal, at most 2500. Source: "variance" of q-FFL (Li et al., ICLR 2020). What FedFV
    prints as "Var." is `std_percent`.
    """
    return 1e4 * float(accuracy.var())
