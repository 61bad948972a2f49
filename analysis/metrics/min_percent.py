"""The worst-off client."""

from __future__ import annotations

from fedsim.common.arrays import Floats, Ints


def min_percent(accuracy: Floats, n: Ints) -> float:
    """Return the lowest accuracy of a client, `100 * min_k a_k`, in percent.

    Source: the minimax objective of AFL (Mohri et al., ICML 2019), measured by accuracy.
    """
    return 100 * float(accuracy.min())
