"""The 5 % worst-off clients."""

from __future__ import annotations

from fedsim.analysis.statistics.fairness import lowest_percent
from fedsim.common.arrays import Floats, Ints


def worst5_percent(accuracy: Floats, n: Ints) -> float:
    """Return the mean accuracy of the 5 % of clients with the lowest accuracy, in percent.

    These are floor(5 K / 100) clients, but at least one: below 40 clients it is the lowest accuracy itself.
    Source: "worst 5%" of FedFV (Wang et al., IJCAI 2021) and FedLF (Pan et al., AAAI 2024).
    """
    return lowest_percent(accuracy, 5)
