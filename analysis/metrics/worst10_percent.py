"""The 10 % worst-off clients."""

from __future__ import annotations

from fedsim.analysis.statistics.fairness import lowest_percent
from fedsim.common.arrays import Floats, Ints


def worst10_percent(accuracy: Floats, n: Ints) -> float:
    """Return the mean accuracy of the 10 % of clients with the lowest accuracy, in percent.

    These are floor(10 K / 100) clients, but at least one: below 20 clients it is the lowest accuracy itself.
    Source: "worst 10%" of q-FFL (Li et al., ICLR 2020).
    """
    return lowest_percent(accuracy, 10)
