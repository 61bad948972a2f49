"""FedProx: local training stays near the received model (Li et al., "Federated optimization in heterogeneous
networks", MLSys 2020, Eq. 2).

The client minimises `F_k(v) + mu/2 ||v - w||^2` by `v <- v - lr (grad F_k(v) + mu (v - w))`. The configured epochs
replace the paper's gamma-inexact solutions. With the rule `fedmgda_plus` this is MGDA-Prox (Hu et al., 2022).

Published code differs: `form = "doubled"` is the penalty `mu ||v - w||^2` of the Fed-MGDA+ authors, twice as strong;
`form = "released"` is that of the FedMDFG and FedLF authors, where a slip ends every round after one plain step on
the first minibatch.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field

from fedsim.common.option_requirements import Unless
from fedsim.training.client_method import ClientMethod, Local, Trained


def fedprox(
    *,
    mu: Annotated[float, Field(ge=0, allow_inf_nan=False), Unless("form", "released")] = 0.1,
    form: Literal["paper", "doubled", "released"] = "paper",
) -> ClientMethod:
    """Add mu (v - w) to each gradient; mu = 0 is plain local SGD.

    Args:
        mu: μ, the strength of the pull towards the received model w.
        form: the penalty: "paper", mu/2 ‖v - w‖²; "doubled", mu ‖v - w‖², twice as strong, as in the code of the
            Fed-MGDA+ authors; "released", none, and a job ends after one plain step on its first minibatch, as a slip
            in the code of the FedMDFG and FedLF authors makes it.
    """
    if form == "released":
        return ClientMethod(_one_step, draws=False, passes=lambda epochs: 1.0, most_steps=1)
    return ClientMethod(proximal=2 * mu if form == "doubled" else mu)


def _one_step(local: Local, start: torch.Tensor, kept: torch.Tensor | None) -> Trained:
    return Trained(*local.sgd(start, most_steps=1))
