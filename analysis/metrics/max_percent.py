"""The best-off client."""

from __future__ import annotations

from fedsim.common.arrays import Floats, Ints


def max_percent(accuracy: Floats, n: Ints) -> float:
    """Return the highest accuracy of a client, `100 * max_k a_k`, in percent.

    Source: the counterpart of `min_percent`.
    """
    return 100 * float(accuracy.max())
