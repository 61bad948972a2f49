"""The 10 % best-off clients."""

from __future__ import annotations

from fedsim.analysis.statistics.fairness import highest_percent
from fedsim.common.arrays import Floats, Ints


def best10_percent(accuracy: Floats, n: Ints) -> float:
    """Return the mean accuracy of the 10 % of clients with the highest accuracy, in percent.

    These are floor(10 K / 100) clients, but at least one: below 20 clients it is the highest accuracy itself.
    Source: "best 10%" of q-FFL (Li et al., ICLR 2020).
    """
    return highest_percent(accuracy, 10)
