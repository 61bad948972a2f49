"""Clients side by side through linear layers and ReLU: batched products, the cross-entropy's gradient by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from fedsim.training.evaluation import EVAL_ROWS
from fedsim.training.losses import losses_of
from fedsim.training.minibatches import Group, of_minibatches
from fedsim.training.precision import Precision, lowered

if TYPE_CHECKING:
    from fedsim.training.augmentation import Augmenter
    from fedsim.training.job import Floats
    from fedsim.training.settings import LocalSGD

_KINDS = (nn.Sequential, nn.Flatten, nn.Linear, nn.ReLU)
_GROUP_BYTES = 2**24
_TOGETHER, _ON_A_GPU = (1, 512), (32, 128)
"""Fewest and most clients that train together."""
_NARROW = 4096
"""Rows with fewer columns are written all at once, and losses of such models found for many clients at once."""
_TILE = 64
"""Samples of one client that are looked at together, where many clients are."""
_VECTOR = 8
"""Numbers in a vector of the processor. Where a client's matrices begin at other places among those of others than at
whole vectors, its products have other bits there than alone."""


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

    def of(self, params: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return its matrix [rows, columns] and its bias [rows] as views into `params` [P]."""
        matrix = params[self.weight : self.weight + self.rows * self.columns].view(self.rows, self.columns)
        return matrix, params[self.bias : self.bias + self.rows] if self.bias >= 0 else None


def does_as(part: nn.Module, kinds: type[nn.Module] | tuple[type[nn.Module], ...]) -> bool:
    """Tell whether a module is of one of torch's kinds and does just that: a subclass, or a hook, may do anything."""
    hooks = (part._forward_pre_hooks, part._forward_hooks, part._backward_pre_hooks, part._backward_hooks)
    return isinstance(part, kinds) and str(part.forward.__module__).startswith("torch.nn.") and not any(hooks)


def linear_layers(module: nn.Module) -> list[Layer]:
    """Return the layers of a model that consists of Flatten, then Linear with or without ReLU behind; else none.

    Nor are there any if layers share parameters, or have others than a matrix and a bias.
    """
    if not isinstance(module, nn.Sequential) or not all(does_as(part, _KINDS) for part in (module, *module)):
        return []
    own = [
        p for part in module if isinstance(part, nn.Linear) for p in (part.weight, part.bias) if p is not None
    ]
    if [id(p) for p in own] != [id(p) for p in module.parameters()]:
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


def most_at_once(columns: int, gpu: bool) -> int:
    """Return how many clients train together at most: the more, the smaller the model."""
    least, most = _ON_A_GPU if gpu else _TOGETHER
    return max(least, min(_GROUP_BYTES // (4 * columns), most))


def even_width(columns: Sequence[int]) -> int:
    """Return of which number the width of minibatches must be a multiple, so that inputs of so many columns are whole
    vectors of the processor.
    """
    return _VECTOR // math.gcd(_VECTOR, *columns)


def apart(shapes: Sequence[Sequence[int]]) -> bool:
    """Tell whether clients must train alone: matrices of these shapes are no whole vectors, or there is one of width 1,
    for which other products are taken where there is one client.
    """
    return any(math.prod(shape) % _VECTOR or 1 in shape for shape in shapes)


class Dense:
    """Trains groups of clients on samples `x` [N, ...] with labels `y` [N]."""

    def __init__(
        self,
        module: nn.Module,
        sgd: LocalSGD,
        x: torch.Tensor,
        y: torch.Tensor,
        augmenter: Augmenter | None = None,
    ) -> None:
        self.layers, self.sgd, self.augmenter = linear_layers(module), sgd, augmenter
        self.x, self.y = x.flatten(1), y
        columns = sum(layer.rows * (layer.columns + 1) for layer in self.layers)
        self.apart = not x.is_cuda and apart([(layer.rows, layer.columns) for layer in self.layers])
        self.even = 1 if x.is_cuda else even_width([layer.columns for layer in self.layers])
        alone = self.apart or (
            x.is_cuda and sgd.batch_size is None
        )  # filled up, whole sets would take much memory
        self.most = 1 if alone else most_at_once(columns, x.is_cuda)
        self.full = x.is_cuda
        """Whether groups are filled up with idle clients: a GPU may take other products for another number of them."""

    def train(self, group: Group, starts: Sequence[torch.Tensor], rows: torch.Tensor) -> torch.Tensor:
        """Train from `starts` [g] x [P] into `rows` [k, P], start minus end; returns `of_minibatches` [2, S, g]."""
        g = len(group.jobs)
        padded = self.most if self.full else g
        model = _Models(self.layers, starts, padded)
        velocity = [torch.zeros_like(t) for t in model.tensors] if self.sgd.momentum else None
        losses = torch.zeros(group.weight.shape, device=self.x.device)
        with torch.inference_mode():
            for s, active in enumerate(group.active):
                a = padded if self.full else active
                index, weight = _padded(group.index[s], a), _padded(group.weight[s], a)
                x = self.x.index_select(0, index.reshape(-1))
                if self.augmenter is not None and group.views is not None:
                    x = self.augmenter(x, _padded(group.views[s], a).reshape(-1))
                self._step(
                    model, x.view(*index.shape, -1), index, weight, losses[s, :active], group.lr, velocity
                )
            model.differences(starts, rows, group.jobs.tolist())
            return of_minibatches(losses, group.weight)

    def across(self, params: torch.Tensor, x: torch.Tensor, precision: Precision) -> torch.Tensor:
        """Return the logits [classes, N] of a model [P] for samples `x` [N, ...], a class per row."""
        out = x.flatten(1)
        with lowered(precision, x.device):
            for layer in self.layers[:-1]:
                out = functional.linear(out, *layer.of(params))
                out = out.relu_() if layer.relu else out
            weight, bias = self.layers[-1].of(params)
            out = weight @ out.T if bias is None else torch.addmm(bias[:, None], weight, out.T)
        return out.float()

    def mean_losses(
        self, starts: Sequence[torch.Tensor], rows: Sequence[NDArray[np.int64]], precision: Precision
    ) -> Floats:
        """Return the mean loss [k] of each of k models [P] on its own rows of samples."""
        if not starts:
            return np.zeros(0)
        with torch.inference_mode():
            if len(starts[0]) >= _NARROW or self.apart:
                each = [self._mean_loss(start, r, precision) for start, r in zip(starts, rows, strict=True)]
                return np.asarray(torch.stack(each).cpu().numpy())
            found, alike = np.empty(len(rows)), dict[int, list[int]]()
            for i, start in enumerate(starts):
                alike.setdefault(id(start), []).append(i)
            for some in alike.values():
                found[some] = self._tiled_losses(starts[some[0]], [rows[i] for i in some], precision)
            return found

    def _mean_loss(self, params: torch.Tensor, rows: NDArray[np.int64], precision: Precision) -> torch.Tensor:
        parts = torch.split(torch.from_numpy(rows).to(self.x.device), EVAL_ROWS)
        each = [losses_of(self.across(params, self.x[part], precision), self.y[part]) for part in parts]
        return torch.cat(each).double().mean()

    def _tiled_losses(
        self, params: torch.Tensor, rows: Sequence[NDArray[np.int64]], precision: Precision
    ) -> Floats:
        """Return the mean loss [k] of one model on each of k groups of rows, some tiles of equal size at a time."""
        sizes = np.array([len(r) for r in rows])
        tiles = -(-sizes // _TILE)
        first = np.cumsum(tiles) - tiles
        at = np.repeat(first * _TILE - (np.cumsum(sizes) - sizes), sizes) + np.arange(sizes.sum())
        index = np.zeros(tiles.sum() * _TILE, dtype=np.int64)
        index[at] = np.concatenate(rows)
        parts = torch.split(torch.from_numpy(index).to(self.x.device).view(-1, _TILE), EVAL_ROWS // _TILE)
        found = torch.cat([self._losses_of_tiles(params, part, precision) for part in parts])
        each = found.double().cpu().numpy()
        owner = np.repeat(np.arange(len(sizes)), sizes)
        return np.asarray(np.bincount(owner, weights=each.ravel()[at], minlength=len(sizes)) / sizes)

    def _losses_of_tiles(
        self, params: torch.Tensor, index: torch.Tensor, precision: Precision
    ) -> torch.Tensor:
        """Return losses [T, _TILE] of rows `index` [T, _TILE]; a tile's bits do not depend on the others."""
        count = len(index)
        idle = EVAL_ROWS // _TILE - count if self.full else 0
        index = functional.pad(index, (0, 0, 0, idle)) if idle else index
        out = self.x.index_select(0, index.reshape(-1)).view(len(index), _TILE, -1).transpose(1, 2)
        with lowered(precision, self.x.device):
            for layer in self.layers:
                weight, bias = layer.of(params)
                each = weight.expand(len(index), -1, -1)
                out = torch.bmm(each, out) if bias is None else torch.baddbmm(bias[:, None], each, out)
                out = out.relu_() if layer.relu else out
        return losses_of(out.float(), self.y.index_select(0, index.reshape(-1)).view(-1, _TILE))[:count]

    def _step(
        self,
        model: _Models,
        x: torch.Tensor,
        index: torch.Tensor,
        weight: torch.Tensor,
        losses: torch.Tensor,
        lr: float,
        velocity: list[torch.Tensor] | None,
    ) -> None:
        a, width = index.shape
        kind = torch.bfloat16 if self.sgd.precision == "bfloat16" else x.dtype
        inputs, weights = [x.to(kind)], [w[:a].to(kind) for w in model.weights]
        for w, b, layer in zip(weights, model.biases, self.layers, strict=True):
            transposed = w.transpose(1, 2)
            out = (
                torch.bmm(inputs[-1], transposed)
                if b is None
                else torch.baddbmm(b[:a].to(kind), inputs[-1], transposed)
            )
            inputs.append(out.relu_() if layer.relu else out)
        labels = self.y.index_select(0, index.reshape(-1)).view(a, width, 1)
        log_p = torch.log_softmax(inputs.pop().float(), dim=2)
        own = log_p.gather(2, labels)
        torch.neg(own.squeeze(2)[: len(losses)], out=losses)
        delta = log_p.exp_()
        delta.scatter_add_(2, labels, torch.full_like(own, -1.0))
        delta = delta.mul_(weight.unsqueeze(2)).to(kind)
        for number in reversed(range(len(self.layers))):
            below = inputs[number]
            if number:
                before = torch.bmm(delta, weights[number])
                if self.layers[number - 1].relu:
                    before = torch.ops.aten.threshold_backward(before, below, 0.0)
            self._descend(model, number, delta, below, len(losses), lr, velocity)
            if number:
                delta = before

    def _descend(
        self,
        model: _Models,
        number: int,
        delta: torch.Tensor,
        below: torch.Tensor,
        active: int,
        lr: float,
        velocity: list[torch.Tensor] | None,
    ) -> None:
        """Step with one layer's gradients; of clients beyond `active`, which are done, they are 0."""
        a, sgd = len(delta), self.sgd
        w, b = model.weights[number], model.biases[number]
        if velocity is None and not sgd.weight_decay and delta.dtype == w.dtype:
            w[:a].baddbmm_(delta.transpose(1, 2), below, alpha=-lr)
            if b is not None:
                b[:a].add_(delta.sum(dim=1, keepdim=True), alpha=-lr)
            return
        gradients = [(w, torch.bmm(delta.transpose(1, 2), below).to(w.dtype))]
        if b is not None:
            gradients.append((b, delta.sum(dim=1, keepdim=True, dtype=b.dtype)))
        for tensor, gradient in gradients:
            if sgd.weight_decay:
                gradient.add_(tensor[:a], alpha=sgd.weight_decay)
            if velocity is not None:
                speed = velocity[model.position(tensor)][:a]
                gradient = speed.mul_(sgd.momentum).add_(gradient)
            tensor[:active].add_(gradient[:active], alpha=-lr)


def _padded(rows: torch.Tensor, a: int) -> torch.Tensor:
    """Return the first `a` rows [g, B], with zeros behind where there are fewer."""
    return functional.pad(rows, (0, 0, 0, a - len(rows))) if a > len(rows) else rows[:a]


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
