"""FedStale: Rodio and Neglia 2024, "FedStale: Leveraging Stale Client Updates in Federated Learning" (ECAI).

With a_k the client's share of the training samples, π_k its participation rate, and H_k its last update:

    w <- w - (Σ_S (a_k/π_k) (D_k - β H_k) + β Σ_all a_k H_k)

β = 0 is unbiased federated averaging, β = 1 FedVARP for unequal rates. The authors find that stale updates help less
the more unequal the rates are, and the more alike the clients' data.

Choices: rates are those of `debiased`; the authors' code reads them off the trace, which no server could know, or takes
FedAU's. Its default is β = 1.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fedsim.algorithms.debiased import debiased
from fedsim.server.rule import Algorithm


def fedstale(
    *,
    beta: Annotated[float, Field(ge=0, le=1)] = 1.0,
    rate: Literal["known", "count", "intervals"] = "intervals",
    least_rate: Annotated[float, Field(ge=0, le=1)] = 0.02,
) -> Algorithm:
    """Mix unbiased averaging (`beta` = 0) with FedVARP's use of last updates (1), at the clients' own rates.

    Args:
        beta: β, how much of the clients' last updates H_k is used; 0 uses none.
        rate: how π_k, the participation rate of client k, is found: "known", the probability that the selector stated
            when it chose; "count", the share of the steps so far that used the client; "intervals", the inverse of the
            mean number of steps between its uses before this one, 1 before its first interval.
        least_rate: π_k counts as at least this, so that no update weighs more than a_k / least_rate.
    """
    return debiased(weights="samples", rate=rate, least_rate=least_rate, beta=beta)
