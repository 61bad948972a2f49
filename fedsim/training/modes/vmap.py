"""Batching mode `vmap`: a fixed number of clients side by side through torch.func, for models that draw nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap
from torch.nn import functional

from fedsim.training.augmentation import Augmenter
from fedsim.training.losses import training_losses
from fedsim.training.minibatches import Group, GroupLimits, Terms, minibatch_losses
from fedsim.training.modes.dense import must_train_alone, width_multiple_of
from fedsim.training.network import Network
from fedsim.training.precision import lowered
from fedsim.training.settings import LocalSGD

WIDTH = 16
"""Clients of a group. Idle clients fill up the last group, because the number of clients may change the bits of a
product. On a CPU groups have one client where the position in a group may change them too; see
`fedsim.training.modes.dense.must_train_alone`."""


def group_limits(network: Network, gpu: bool) -> GroupLimits:
    """Return how large a group of clients may be."""
    matrices = [slot.shape for slot in network.slots if len(slot.shape) > 1]
    columns = [math.prod(network.in_shape), *(shape[-1] for shape in matrices)]
    return GroupLimits(
        clients=WIDTH if gpu or not must_train_alone(matrices) else 1,
        width_multiple=1 if gpu else width_multiple_of(columns),
    )


class Vmap:
    """Trains groups of clients on samples `x` [N, ...] with labels `y` [N]."""

    def __init__(
        self,
        network: Network,
        sgd: LocalSGD,
        x: Tensor,
        y: Tensor,
        augmenter: Augmenter | None,
    ) -> None:
        self.network, self.sgd, self.x, self.y, self.augmenter = network, sgd, x, y, augmenter
        self.limits = group_limits(network, x.is_cuda)

        def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
            with lowered(sgd.precision, x.device):
                logits = functional_call(network.module, weights, (x,))
            each = training_losses(sgd.loss, logits.float(), y)
            return (each * weight).sum(), each

        self._gradients = vmap(grad_and_value(loss, has_aux=True))

    def train(self, group: Group, starts: Sequence[Tensor], rows: Tensor, terms: Terms) -> Tensor:
        """Train from `starts` [g] x [P] into `rows` [k, P], start minus end; return `minibatch_losses` [2, S, g]."""
        g, sgd = len(group.jobs), self.sgd
        idle = self.limits.clients - g
        first = torch.stack([*starts, *[starts[0]] * idle])
        near = torch.stack([*terms.anchors, *[terms.anchors[0]] * idle]) if terms.anchors else first
        flat = first.clone()
        velocity = torch.zeros_like(flat) if sgd.momentum else None
        losses = torch.zeros(group.weight.shape, device=flat.device)
        index, weight = (functional.pad(t, (0, 0, 0, idle)) for t in (group.index, group.weight))
        self.network.module.train()
        for s, active in enumerate(group.active):
            x = self._samples(index[s], None if group.views is None else group.views[s])
            grads, (_, each) = self._gradients(self.network.views(flat), x, self.y[index[s]], weight[s])
            losses[s] = each.detach()[:g]
            gradient = torch.cat([grads[slot.name].flatten(1) for slot in self.network.slots], dim=1)
            if terms.factor != 1:
                gradient.mul_(terms.factor)
            if terms.proximal:
                gradient.add_(flat - near, alpha=terms.proximal)
            if terms.offsets is not None:
                gradient[:active].add_(terms.offsets[:active])
            if sgd.weight_decay:
                gradient.add_(flat, alpha=sgd.weight_decay)
            if velocity is not None:
                gradient = velocity.mul_(sgd.momentum).add_(gradient)
            flat[:active].add_(gradient[:active], alpha=-group.lr)
        rows[torch.from_numpy(group.jobs).to(rows.device)] = (first - flat)[:g]
        return minibatch_losses(losses, group.weight)

    def _samples(self, index: Tensor, views: Tensor | None) -> Tensor:
        """Return the samples at `index` [clients, B], each in its view of `views` [g, B]."""
        x = self.x[index]
        if self.augmenter is None or views is None:
            return x
        views = functional.pad(views, (0, 0, 0, len(index) - len(views)))
        return self.augmenter(x.flatten(0, 1), views.flatten()).view(x.shape)
