"""q-MAML: clients learn a model that is good after a few steps on their own data (Li et al., "Fair resource allocation
in federated learning", ICLR 2020: q-FFL applied to meta-learning; MAML after Finn et al., ICML 2017).

In each job the client's training samples are divided at random into support and query. For each minibatch of the query
it adapts, `theta' = theta - inner_lr grad F_k(theta; support)` for `inner_steps` steps, and descends `F_k(theta';
query)` by theta. The rule sees the query loss after adapting, before training: with rule `qfedavg` or `qfedsgd`, one
epoch and `batch_size = "full"`, a job is the paper's step. Each inner step takes the next minibatch of the support, in
turn. A client with one sample uses it for both.

The personal model takes `inner_steps` steps on all training samples of the client, from the evaluated model. A client
that never trains takes `adapt_steps` of them: the paper's meta-test, for which the authors' script takes 5.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field

from fedsim.common.arrays import Ints
from fedsim.training.client_method import Batch, ClientMethod, Local, Personal, Tensors, Trained

Share = Annotated[float, Field(gt=0, lt=1)]


def qmaml(
    *,
    inner_lr: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.01,
    inner_steps: Annotated[int, Field(ge=1)] = 1,
    support: Share = 0.5,
    order: Literal["first", "second"] = "first",
    adapt_steps: Annotated[int, Field(ge=1)] = 5,
) -> ClientMethod:
    """Descend the loss after adapting to the client's support samples, the share `support` of its training samples.

    Args:
        inner_lr: the learning rate of the inner steps, by which clients adapt the model.
        inner_steps: how many inner steps adapt the model before each step of training, and make the personal model of a
            client that trains.
        support: the share of a client's training samples on which it adapts; the loss after adapting is that of the
            others, the query.
        order: the gradient of the query loss: "first", the one at the adapted model theta'; "second", the one at the
            model before adapting, through the inner steps, at several times the cost.
        adapt_steps: how many steps a client that never trains takes from the evaluated model to its personal model, at
            the rate `inner_lr` on all of its training samples.
    """

    adapt = _Adaptation(inner_lr, inner_steps, order == "second")

    def train(local: Local, start: torch.Tensor, kept: torch.Tensor | None) -> Trained:
        inner, query = divided(local, support)
        before = math.nan
        if local.wants_loss:
            adapted = adapt(local, free(local, start), itertools.cycle(local.batches(inner)))
            before = local.mean_loss(flat(adapted), query)
        batches = itertools.cycle(local.batches(inner))

        def objective(batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
            adapted = adapt(local, local.weights, batches)
            losses = local.losses(local.logits(adapted, batch.x), batch.y)
            return losses.mean(), losses

        end, loss = local.sgd(start, rows=query, objective=objective)
        return Trained(end, loss, loss_before=before)

    def passes(epochs: int) -> float:
        return epochs * (1 - support) * (1 + inner_steps)

    def samples(sizes: Ints) -> Ints:
        return np.where(sizes > 1, sizes - n_support(sizes, support), sizes)

    personal, unseen = _personal(adapt), _personal(_Adaptation(inner_lr, adapt_steps, False))
    return ClientMethod(
        train,
        draws=False,
        personal=personal,
        adapt=unseen,
        reports_loss=True,
        second_derivatives=adapt.differentiable,
        passes=passes,
        samples=samples,
    )


@dataclass(frozen=True, slots=True)
class _Adaptation:
    """Gradient steps on batches of the support."""

    lr: float
    steps: int
    differentiable: bool

    def __call__(self, local: Local, weights: Tensors, batches: Iterable[Batch]) -> Tensors:
        for batch in itertools.islice(batches, self.steps):
            loss = local.losses(local.logits(weights, batch.x), batch.y).mean()
            grads = torch.autograd.grad(
                loss, weights, create_graph=self.differentiable, materialize_grads=True
            )
            weights = tuple(w - self.lr * g for w, g in zip(weights, grads, strict=True))
        return weights


def _personal(adapt: _Adaptation) -> Personal:
    """Return how a client adapts the evaluated model, with all of its training samples in each step."""

    def personal(local: Local, model: torch.Tensor, kept: torch.Tensor | None) -> torch.Tensor:
        everything = itertools.repeat(local.batch(local.rows))
        return flat(adapt(local, free(local, model), everything))

    return personal


def divided(local: Local, share: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Divide the client's rows at random into support and query, each with at least one row."""
    n = len(local.rows)
    order = torch.from_numpy(local.draws("support").permutation(n)).to(local.rows.device)
    cut = int(n_support(np.array(n), share))
    return local.rows[order[:cut]], local.rows[order[cut:] if n > 1 else order]


def n_support(sizes: Ints, share: float) -> Ints:
    """Return the sizes of the supports of clients with `sizes` samples: at least one, and one less than all."""
    rounded: Ints = np.rint(share * sizes).astype(np.int64)
    return np.clip(rounded, 1, np.maximum(1, sizes - 1))


def free(local: Local, model: torch.Tensor) -> Tensors:
    """Return a model's weights as leaves of the autograd graph."""
    return tuple(w.detach().clone().requires_grad_() for w in local.views(model))


def flat(weights: Tensors) -> torch.Tensor:
    """Return weights as one detached vector [P]."""
    return torch.cat([w.detach().reshape(-1) for w in weights])
