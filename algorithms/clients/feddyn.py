"""FedDyn's clients: Acar et al. 2021, "Federated Learning Based on Dynamic Regularization" (ICLR), Algorithm 1.

A client minimises F_k(v) + α ⟨v, L_k⟩ + (α/2)‖v - w‖² from v = w by local SGD, and keeps L_k <- L_k + (v - w), 0 at
first; the paper's gradient is -α L_k. It needs the rule `feddyn`.

Deviation: the authors' code divides α by the client's share of the samples; here all clients have the same, as in the
paper.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fedsim.training.client_method import ClientMethod, Offset


def feddyn(*, alpha: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.01) -> ClientMethod:
    """Train with a penalty that makes local optima agree with the global one; `alpha` is its weight.

    Args:
        alpha: α, the weight of both parts of the penalty: the linear term ⟨v, L_k⟩ and the proximal term ‖v - w‖² / 2.
    """
    linear = Offset(
        vector=lambda drift, received: alpha * drift,
        after=lambda update, drift, received, rate: (drift - update, {}),
    )
    return ClientMethod(proximal=alpha, offset=linear, keeps=True, rule="feddyn")
