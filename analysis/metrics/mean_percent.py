"""Average accuracy, client by client."""

from __future__ import annotations

from fedsim.common.arrays import Floats, Ints


def mean_percent(accuracy: Floats, n: Ints) -> float:
    """Return the mean accuracy over clients, `100 / K * sum_k a_k`, in percent.

    Each client counts once, however many samples it has. Source: "average" of FedFV (Wang et al., IJCAI
    2021) and FedLF (Pan et al., AAAI 2024).
    """
    return 100 * float(accuracy.mean())
