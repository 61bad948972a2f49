"""Entropy of the accuracies."""

from __future__ import annotations

import numpy as np

from fedsim.common.arrays import Floats, Ints


def entropy_nats(accuracy: Floats, n: Ints) -> float:
    """Return the entropy of the accuracies, `-sum_k q_k ln q_k` with `q = a / sum a`, in nats.

    From 0 (one client has everything) to ln K (all equal, also if all are 0); it is `ln K - kl_nats`.
    Source: uniformity by entropy of q-FFL (Li et al., ICLR 2020), applied to accuracies.
    """
    total = accuracy.sum()
    if total == 0:
        return float(np.log(len(accuracy)))
    share = accuracy[accuracy > 0] / total
    return max(0.0, float(-np.sum(share * np.log(share))))
