"""FedCKA: the representations of the first layers, not their weights, stay near the global model's (Son, Kim and Chung,
"Compare where it matters: using layer-wise regularization to improve federated learning on heterogeneous data", Applied
Sciences 2022).

The client descends `F_k + mu * mean_l -log(e^a_l / (e^a_l + e^b_l))` over the first layers l, with a_l the linear CKA
of the minibatch's representations by the model in training and by the received one, b_l that by the model in training
and by the client's own model at the end of its job before. CKA is `||Y'X||^2 / (||X'X|| ||Y'Y||)` of centred
representations (Kornblith et al., ICML 2019), here from their [B, B] Gram matrices, and 0 where one is constant.

Choices: in a client's first job the model before would be the received one, a_l = b_l and the term has no gradient:
it is left out. The FedLF authors' public code takes the similarities out of the graph, so that it equals `plain`; it is
not reproduced. The reported training loss is F_k alone.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch.nn import functional

from fedsim.training.client_method import Batch, ClientMethod, Local, Trained

_TINY = 1e-12


def fedcka(
    *, mu: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 3.0, layers: Annotated[int, Field(ge=1)] = 2
) -> ClientMethod:
    """Contrast the first `layers` layers with those of the global and of the client's previous model; mu weighs it.

    Args:
        mu: μ, the weight of the contrast term beside the loss F_k; 0 is plain local SGD.
        layers: how many layers are compared: the first ones with parameters, in the order in which the model runs them.
    """

    def train(local: Local, start: torch.Tensor, kept: torch.Tensor | None) -> Trained:
        if kept is None or mu == 0:
            end, loss = local.sgd(start)
            return Trained(end, loss, kept=end)
        others = [local.views(start), local.views(kept)]

        def objective(batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
            logits, mine = local.features(local.weights, batch.x, layers)
            with torch.no_grad():
                received, before = (local.features(w, batch.x, layers)[1] for w in others)
            terms = [contrast(*three) for three in zip(mine, received, before, strict=True)]
            losses = local.losses(logits, batch.y)
            return losses.mean() + mu * torch.stack(terms).mean(), losses

        end, loss = local.sgd(start, objective=objective)
        return Trained(end, loss, kept=end)

    return ClientMethod(train, draws=False, keeps=True, passes=lambda epochs: epochs * 5 / 3)


def contrast(mine: torch.Tensor, received: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """Return `-log(e^a / (e^a + e^b))` with a = cka(mine, received), b = cka(mine, before)."""
    apart = _unit_gram(before) - _unit_gram(received)
    return functional.softplus((_unit_gram(mine) * apart).sum())


def cka(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the linear CKA, in [0, 1], of two representations [B, ...] of the same samples."""
    inner: torch.Tensor = (_unit_gram(x) * _unit_gram(y)).sum()
    return inner


def _unit_gram(x: torch.Tensor) -> torch.Tensor:
    """Return the Gram matrix [B, B] of centred representations, divided by its norm; 0 if they are constant."""
    rows = x.flatten(1)
    rows = rows - rows.mean(dim=0)
    gram = rows @ rows.T
    norm: torch.Tensor = torch.linalg.vector_norm(gram).clamp_min(_TINY)
    return gram / norm
