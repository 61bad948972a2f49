"""Average accuracy, sample by sample."""

from __future__ import annotations

import numpy as np

from fedsim.common.arrays import Floats, Ints


def mean_over_samples_percent(accuracy: Floats, n: Ints) -> float:
    """Return the mean accuracy over samples, `100 * sum_k n_k a_k / sum_k n_k`, in percent.

    It is the share of correctly classified samples of all clients together. Source: "average" in the main
    table of q-FFL (Li et al., ICLR 2020).
    """
    return 100 * float(np.average(accuracy, weights=n))
