"""Ditto: every client keeps a personal model near the global one (Li et al., "Ditto: fair and robust federated learning
through personalization", ICML 2021, Alg. 1).

The update is plain local SGD from the received model w, for any rule. The client also moves its personal model v by
`v <- v - lr (grad F_k(v) + lam (v - w))` for some epochs; v starts as the first w that the client receives. The
minibatches of v are drawn independently of those of the update. Choice: momentum and weight decay of `[train]` apply to
v as well; its momentum restarts in each job.

A client that never trains takes the same steps at an evaluation, from v = w, the evaluated model: `adapt_steps`
minibatches, by default the epochs of a job. Choice: `train.lr_decay` does not apply to them, since no job comes before.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field

from fedsim.training.client_method import ClientMethod, Local, OwnModel, pull


def ditto(
    *,
    lam: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.1,
    epochs: Annotated[int, Field(ge=1)] | None = None,
    lr: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None,
    adapt_steps: Annotated[int, Field(ge=1)] | None = None,
) -> ClientMethod:
    """Train a personal model beside the update; lam = 0 is local training alone, a large lam the global model.

    Args:
        lam: the strength λ of the pull of the personal model v towards the received model w.
        epochs: the epochs for which a job trains the personal model; by default those of `[train]`.
        lr: the learning rate of the personal model, before its decay; by default that of `[train]`.
        adapt_steps: how many minibatches a client that never trains takes to make its personal model from the evaluated
            one; by default those of a job.
    """

    def adapt(local: Local, model: torch.Tensor, kept: torch.Tensor | None) -> torch.Tensor:
        towards = pull(lam, local.views(model)) if lam else None
        laps = epochs if adapt_steps is None else _epochs_of(local, adapt_steps)
        own, _ = local.sgd(
            model, purpose="personal", epochs=laps, lr=lr, most_steps=adapt_steps, correct=towards
        )
        return own

    def passes(trained: float) -> float:
        return trained + float(epochs or trained)

    own = OwnModel(lam, epochs, lr)
    return ClientMethod(own=own, draws=False, keeps=True, personal=_own, adapt=adapt, passes=passes)


def _own(local: Local, model: torch.Tensor, kept: torch.Tensor | None) -> torch.Tensor:
    return model if kept is None else kept


def _epochs_of(local: Local, steps: int) -> int:
    """Return the epochs in which a client takes so many steps, the last of which may be incomplete."""
    return -(-steps // sum(1 for _ in local.batches(local.rows)))
