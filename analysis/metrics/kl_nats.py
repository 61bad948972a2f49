"""Divergence of the accuracies from equality."""

from __future__ import annotations

import numpy as np

from fedsim.common.arrays import Floats, Ints

SMALLER_IS_BETTER = True


def kl_nats(accuracy: Floats, n: Ints) -> float:
    """Return the divergence from equality, `KL(q || uniform) = sum_k q_k ln(K q_k)` with `q = a / sum a`, in nats.

    From 0 (all equal, also if all are 0) to ln K (one client has everything). Source: "KL(a||u)" of q-FFL
    (Li et al., ICLR 2020); the logarithm is the natural one.
    """
    total = accuracy.sum()
    if total == 0:
        return 0.0
    share = accuracy[accuracy > 0] / total
    return max(0.0, float(np.sum(share * np.log(len(accuracy) * share))))
