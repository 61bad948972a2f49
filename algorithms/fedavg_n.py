"""FedAvg-n: FedMGDA+ with ε = 0 (Hu et al. 2022), the average of unit updates, w <- w - η_t Σ λ⁰_i Δ_i / ‖Δ_i‖.

Deviation: a zero update takes no part (the authors divide by zero); λ⁰ is divided among the others.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fedsim.algorithms.fedmgda_plus import fedmgda_plus
from fedsim.algorithms.mathematics.hull import Lambda0
from fedsim.server.rule import Algorithm


def fedavg_n(
    *,
    lambda0: Lambda0 = "uniform",
    server_lr: Annotated[float, Field(gt=0)] = 1.0,
    decay: Annotated[float, Field(gt=0, le=1)] = 1.0,
) -> Algorithm:
    """Average the updates after giving each the norm 1.

    Args:
        lambda0: λ⁰, the weights of the unit updates: "uniform", 1/m; "samples", n_i / Σ n, with Σ over the updates of
            the step.
        server_lr: η, the factor on the average of the unit updates.
        decay: β, the factor on η per 100 steps: η_t = η β^⌊t/100⌋.
    """
    return fedmgda_plus(epsilon=0.0, lambda0=lambda0, server_lr=server_lr, decay=decay)
