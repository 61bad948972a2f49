"""Clients side by side through linear layers and ReLU: batched products, the cross-entropy's gradient by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from fedsim.minibatches import Group

if TYPE_CHECKING:
    from fedsim.local import LocalSGD

_GROUP_BYTES = 2**24
_MOST, _GPU_WIDTH = 512, 32
_NARROW = 4096
"""Rows with fewer columns are written all at once."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A linear layer, in the flat vector of parameters."""

    rows: int
    columns: int
    weight: int
    """Where its matrix [rows, columns] starts."""
    bias: int
    """Where its bias [rows] starts, -1 if it has none."""
    relu: bool
    """Whether ReLU follows."""


def linear_layers(module: nn.Module) -> list[Layer]:
    """Return the layers of a model that consists of Flatten, then Linear with or without ReLU behind; else none."""
    if not isinstance(module, nn.Sequential):
        return []
    layers: list[Layer] = []
    at = 0
    for part in module:
        if isinstance(part, nn.Linear):
            weight, bias = at, at + part.weight.numel() if part.bias is not None else -1
            at += part.weight.numel() + (part.out_features if part.bias is not None else 0)
            layers.append(Layer(part.out_features, part.in_features, weight, bias, relu=False))
        elif isinstance(part, nn.ReLU) and layers:
            last = layers.pop()
            layers.append(Layer(last.rows, last.columns, last.weight, last.bias, relu=True))
        elif not (isinstance(part, nn.Flatten) and part.start_dim == 1 and not layers):
            return []
    return layers if layers and not layers[-1].relu else []


class Dense:
    """Trains groups of clients on samples `x` [N, ...] with labels `y` [N]."""

    def __init__(self, module: nn.Module, sgd: LocalSGD, x: torch.Tensor, y: torch.Tensor) -> None:
        self.layers, self.sgd = linear_layers(module), sgd
        self.x, self.y = x.flatten(1), y
        columns = sum(layer.rows * (layer.columns + 1) for layer in self.layers)
        self.most = max(1, min(_GROUP_BYTES // (4 * columns), _MOST))
        self.width = _GPU_WIDTH if x.is_cuda else 1
        """Groups are padded to a multiple of this: products of a GPU may depend on how many there are."""

    def train(self, group: Group, starts: Sequence[torch.Tensor], rows: torch.Tensor) -> torch.Tensor:
        """Train from `starts` [g] x [P] into `rows` [k, P], start minus end; returns losses [S, g] of minibatches."""
        g = len(group.jobs)
        padded = -(-g // self.width) * self.width
        model = _Models(self.layers, starts, padded)
        velocity = [torch.zeros_like(t) for t in model.tensors] if self.sgd.momentum else None
        losses = torch.zeros(len(group.active), g, device=self.x.device)
        with torch.inference_mode():
            for s, active in enumerate(group.active):
                a = -(-active // self.width) * self.width
                index, weight = group.index[s], group.weight[s]
                if a > g:
                    index = functional.pad(index, (0, 0, 0, a - g))
                    weight = functional.pad(weight, (0, 0, 0, a - g))
                self._step(model, index[:a], weight[:a], losses[s, :active], group.lr, velocity)
            model.differences(starts, rows, group.jobs.tolist())
        return losses

    def _step(
        self,
        model: _Models,
        index: torch.Tensor,
        weight: torch.Tensor,
        losses: torch.Tensor,
        lr: float,
        velocity: list[torch.Tensor] | None,
    ) -> None:
        a, width = index.shape
        flat = index.reshape(-1)
        inputs = [self.x.index_select(0, flat).view(a, width, -1)]
        for w, b, layer in zip(model.weights, model.biases, self.layers, strict=True):
            transposed = w[:a].transpose(1, 2)
            out = (
                torch.bmm(inputs[-1], transposed)
                if b is None
                else torch.baddbmm(b[:a], inputs[-1], transposed)
            )
            inputs.append(out.relu_() if layer.relu else out)
        labels = self.y.index_select(0, flat).view(a, width, 1)
        log_p = torch.log_softmax(inputs.pop(), dim=2)
        own = log_p.gather(2, labels)
        torch.sum(own.squeeze(2)[: len(losses)] * weight[: len(losses)], dim=1, out=losses).neg_()
        delta = log_p.exp_()
        delta.scatter_add_(2, labels, torch.full_like(own, -1.0))
        delta.mul_(weight.unsqueeze(2))
        for number in reversed(range(len(self.layers))):
            below = inputs[number]
            if number:
                before = torch.bmm(delta, model.weights[number][:a])
                if self.layers[number - 1].relu:
                    before = torch.ops.aten.threshold_backward(before, below, 0.0)
            self._descend(model, number, delta, below, lr, velocity)
            if number:
                delta = before

    def _descend(
        self,
        model: _Models,
        number: int,
        delta: torch.Tensor,
        below: torch.Tensor,
        lr: float,
        velocity: list[torch.Tensor] | None,
    ) -> None:
        a, sgd = len(delta), self.sgd
        w, b = model.weights[number], model.biases[number]
        if velocity is None and not sgd.weight_decay:
            w[:a].baddbmm_(delta.transpose(1, 2), below, alpha=-lr)
            if b is not None:
                b[:a].add_(delta.sum(dim=1, keepdim=True), alpha=-lr)
            return
        gradients = [(w, torch.bmm(delta.transpose(1, 2), below))]
        if b is not None:
            gradients.append((b, delta.sum(dim=1, keepdim=True)))
        for tensor, gradient in gradients:
            if sgd.weight_decay:
                gradient.add_(tensor[:a], alpha=sgd.weight_decay)
            if velocity is not None:
                speed = velocity[model.position(tensor)][:a]
                gradient = speed.mul_(sgd.momentum).add_(gradient)
            tensor[:a].add_(gradient, alpha=-lr)


class _Models:
    """The parameters of g clients, layer by layer: weights [g, rows, columns], biases [g, 1, rows]."""

    def __init__(self, layers: Sequence[Layer], starts: Sequence[torch.Tensor], padded: int) -> None:
        self.layers = layers
        same = all(start is starts[0] for start in starts)
        every = [starts[0]] if same else [*starts, *[starts[0]] * (padded - len(starts))]

        def gathered(at: int, *shape: int) -> torch.Tensor:
            size = shape[0] * shape[1]
            found = torch.stack([start[at : at + size].view(shape) for start in every])
            return found.expand(padded, *shape).contiguous() if same else found

        self.weights = [gathered(layer.weight, layer.rows, layer.columns) for layer in layers]
        self.biases = [gathered(layer.bias, 1, layer.rows) if layer.bias >= 0 else None for layer in layers]
        if padded == 1 and same:
            self.weights = [w.clone() for w in self.weights]
            self.biases = [None if b is None else b.clone() for b in self.biases]
        self.tensors = [
            t for pair in zip(self.weights, self.biases, strict=True) for t in pair if t is not None
        ]

    def position(self, tensor: torch.Tensor) -> int:
        """Return where one of the tensors is among all."""
        return next(i for i, t in enumerate(self.tensors) if t is tensor)

    def differences(self, starts: Sequence[torch.Tensor], rows: torch.Tensor, jobs: Sequence[int]) -> None:
        """Write start minus end of client i into row `jobs[i]`."""
        if rows.shape[1] < _NARROW:
            base = starts[0] if all(start is starts[0] for start in starts) else torch.stack(list(starts))
            flat = torch.cat([t[: len(jobs)].flatten(1) for t in self.tensors], dim=1)
            rows[torch.tensor(jobs, device=rows.device)] = base - flat
            return
        for layer, w, b in zip(self.layers, self.weights, self.biases, strict=True):
            for at, tensor in ((layer.weight, w), (layer.bias, b)):
                if tensor is None:
                    continue
                size, ends = tensor[0].numel(), tensor.flatten(1)
                for i, job in enumerate(jobs):
                    torch.sub(starts[i][at : at + size], ends[i], out=rows[job, at : at + size])
