"""The 5 % best-off clients."""

from __future__ import annotations

from fedsim.analysis.statistics.fairness import highest_percent
from fedsim.common.arrays import Floats, Ints


def best5_percent(accuracy: Floats, n: Ints) -> float:
    """Return the mean accuracy of the 5 % of clients with the highest accuracy, in percent.

    These are floor(5 K / 100) clients, but at least one: below 40 clients it is the highest accuracy itself.
    Source: "best 5%" of FedFV (Wang et al., IJCAI 2021) and FedLF (Pan et al., AAAI 2024).
    """
    return highest_percent(accuracy, 5)
