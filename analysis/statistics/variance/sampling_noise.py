"""The part of the spread of accuracies that comes from test sets of finite size."""

from __future__ import annotations

import numpy as np

from fedsim.common.arrays import Floats, Ints


def true_variance(accuracy: Floats, n: Ints, weights: Floats) -> float:
    """Return an unbiased estimate of the variance of the clients' true accuracies; it may be negative.

    A client's true accuracy is that on samples without end, of which its n test samples are independent draws.

    Args:
        accuracy: [K] the share of correct test samples of each client, from 0 to 1.
        n: [K] test samples of each client, at least 1. Clients with a single sample are left out: one sample does not
            show how much the accuracy of its client varies.
        weights: [K] weights of the clients in mean and variance, above 0; their sum is divided out.

    The result is `sum_k w_k (a_k - m)^2 - sum_k w_k (1 - w_k) a_k (1 - a_k) / (n_k - 1)`, a fraction squared, with
    `m = sum_k w_k a_k`; NaN if no client has two samples. Source: the variance of a binomial share and its unbiased
    estimate (Cochran, Sampling Techniques, 1977, section 3.2); `docs/metrics.md` has the derivation.
    """
    measured = n > 1
    if not measured.any():
        return float("nan")
    a, shares = accuracy[measured], weights[measured] / weights[measured].sum()
    noise = a * (1 - a) / (n[measured] - 1)
    return float(shares @ (a - shares @ a) ** 2 - (shares * (1 - shares)) @ noise)


def true_std_percent(accuracy: Floats, n: Ints, weights: Floats) -> float:
    """Return the root of `true_variance`, which counts as 0 below 0, in percent; NaN if no client has two samples."""
    return 100 * float(np.sqrt(np.maximum(true_variance(accuracy, n, weights), 0.0)))
