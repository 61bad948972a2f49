"""FedDyn's clients: Acar et al. 2021, "Federated Learning Based on Dynamic Regularization" (ICLR), Algorithm 1.

A client minimises F_k(v) + α ⟨v, L_k⟩ + (α/2)‖v - w‖² from v = w by local SGD, and keeps L_k <- L_k + (v - w), 0 at
first; the paper's gradient is -α L_k. It needs the rule `feddyn`.

Deviation: the authors' code divides α by the client's share of the samples; here all clients have the same, as in the
paper.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field

from fedsim.training.client_method import ClientMethod, Local, Tensors, Trained


def feddyn(*, alpha: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.01) -> ClientMethod:
    """Train with a penalty that makes local optima agree with the global one; `alpha` is its weight."""

    def train(local: Local, start: torch.Tensor, kept: torch.Tensor | None) -> Trained:
        drift = torch.zeros_like(start) if kept is None else kept
        linear, anchor = local.views(drift), local.views(start)

        def correct(grads: Tensors, weights: Tensors, lr: float) -> Tensors:
            terms = zip(grads, weights, linear, anchor, strict=True)
            return tuple(grad + alpha * (own + weight - first) for grad, weight, own, first in terms)

        end, loss = local.sgd(start, correct=correct)
        return Trained(end, loss, kept=drift + (end - start))

    return ClientMethod(train, draws=False, keeps=True, rule="feddyn")
