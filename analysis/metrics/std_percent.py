"""Spread of the accuracies."""

from __future__ import annotations

from fedsim.common.arrays import Floats, Ints

SMALLER_IS_BETTER = True


def std_percent(accuracy: Floats, n: Ints) -> float:
    """Return the population standard deviation, `sqrt(1 / K * sum_k (100 a_k - mean)^2)`, in percent.

    From 0 (all equal) to 50. Source: "Var." of FedFV (Wang et al., IJCAI 2021), whose table values are
    standard deviations; "Std" of FedMGDA+ (Hu et al., IEEE TNSE 2022).
    """
    return 100 * float(accuracy.std())
