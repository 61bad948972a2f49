"""Batching mode `dense`: many clients side by side through linear layers and ReLU.

Batched matrix products train all clients of a group at once; the gradient of the cross-entropy is written out by hand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsim.common.arrays import Floats, Ints
from fedsim.training.augmentation import Augmenter
from fedsim.training.evaluation import EVAL_ROWS
from fedsim.training.losses import Loss, losses_of
from fedsim.training.minibatches import Group, GroupLimits, Terms, minibatch_losses
from fedsim.training.modes.linear_layers import Layer, linear_layers
from fedsim.training.precision import Precision, lowered
from fedsim.training.settings import LocalSGD

_GROUP_BYTES = 2**24
"""Most bytes of a group's parameters, and on a CPU of its samples in a step: larger ones take longer to allocate."""
_ON_A_CPU, _ON_A_GPU = (1, 512), (32, 128)
"""Fewest and most clients of a group."""
_NARROW = 4096
"""Models with fewer parameters: updates are written at once, and losses computed for many clients at once."""
_TILE = 64
"""Samples of one client in a tile, where losses of many clients are computed at once."""
_VECTOR = 8
"""Numbers in a SIMD vector of the CPU. A client's products have the same bits at any position in a group only if its
matrices start at whole vectors."""


def largest_group(columns: int, gpu: bool) -> int:
    """Return the most clients of a group: the smaller the model, the more."""
    least, most = _ON_A_GPU if gpu else _ON_A_CPU
    return max(least, min(_GROUP_BYTES // (4 * columns), most))


def width_multiple_of(columns: Sequence[int]) -> int:
    """Return the number whose multiples are valid widths of minibatches.

    With such a width, layer inputs of the given numbers of columns fill whole SIMD vectors.
    """
    return _VECTOR // math.gcd(_VECTOR, *columns)


def must_train_alone(shapes: Sequence[Sequence[int]]) -> bool:
    """Return whether a group must have one client, so that the position in a group does not change bits.

    This holds if matrices of these shapes do not fill whole SIMD vectors, or have a dimension of 1: a batched product
    of one client then takes another kernel than that of several.
    """
    return any(math.prod(shape) % _VECTOR or 1 in shape for shape in shapes)


def group_limits(layers: Sequence[Layer], sgd: LocalSGD, gpu: bool) -> GroupLimits:
    """Return how large a group of clients may be."""
    columns = sum(layer.rows * (layer.columns + 1) for layer in layers)
    # A group that is filled up with idle clients takes too much memory if minibatches are whole training sets.
    single = _alone(layers, gpu) or (gpu and sgd.batch_size is None)
    return GroupLimits(
        clients=1 if single else largest_group(columns, gpu),
        width_multiple=1 if gpu else width_multiple_of([layer.columns for layer in layers]),
        samples=None if gpu else max(1, _GROUP_BYTES // (4 * layers[0].columns)),
    )


def _alone(layers: Sequence[Layer], gpu: bool) -> bool:
    return not gpu and must_train_alone([(layer.rows, layer.columns) for layer in layers])


class Dense:
    """Trains groups of clients on samples `x` [N, ...] with labels `y` [N]."""

    def __init__(
        self,
        module: nn.Module,
        sgd: LocalSGD,
        x: Tensor,
        y: Tensor,
        augmenter: Augmenter | None,
    ) -> None:
        self.layers, self.sgd, self.augmenter = linear_layers(module), sgd, augmenter
        self.x, self.y = x.flatten(1), y
        self.alone = _alone(self.layers, x.is_cuda)
        self.limits = group_limits(self.layers, sgd, x.is_cuda)
        self.filled = x.is_cuda
        """Whether idle clients fill up groups: a GPU may take other kernels for another number of clients."""

    def train(self, group: Group, starts: Sequence[Tensor], rows: Tensor, terms: Terms) -> Tensor:
        """Train from `starts` [g] x [P] into `rows` [k, P], start minus end; return `minibatch_losses` [2, S, g]."""
        g = len(group.jobs)
        padded = self.limits.clients if self.filled else g
        model = _Models(self.layers, starts, padded, group.lr, bool(self.sgd.momentum), terms)
        losses = torch.zeros(group.weight.shape, device=self.x.device)
        with torch.inference_mode():
            for s, active in enumerate(group.active):
                a = padded if self.filled else active
                index, weight = _padded(group.index[s], a), _padded(group.weight[s], a)
                x = self.x.index_select(0, index.reshape(-1))
                if self.augmenter is not None and group.views is not None:
                    x = self.augmenter(x, _padded(group.views[s], a).reshape(-1))
                self._step(model, x.view(*index.shape, -1), index, weight, losses[s, :active])
            model.differences(starts, rows, group.jobs.tolist())
            return minibatch_losses(losses, group.weight)

    def across(self, params: Tensor, x: Tensor, precision: Precision) -> Tensor:
        """Return the logits [classes, N] of a model [P] for samples `x` [N, ...], a class per row."""
        out = x.flatten(1)
        with lowered(precision, x.device):
            for layer in self.layers[:-1]:
                out = functional.linear(out, *layer.of(params))
                out = out.relu_() if layer.relu else out
            weight, bias = self.layers[-1].of(params)
            out = weight @ out.T if bias is None else torch.addmm(bias[:, None], weight, out.T)
        return out.float()

    def mean_losses(self, starts: Sequence[Tensor], rows: Sequence[Ints], precision: Precision) -> Floats:
        """Return the mean loss [k] of each of k models [P] on its own rows of samples."""
        if not starts:
            return np.zeros(0)
        with torch.inference_mode():
            if len(starts[0]) >= _NARROW or self.alone:
                each = [self._mean_loss(start, r, precision) for start, r in zip(starts, rows, strict=True)]
                return np.asarray(torch.stack(each).cpu().numpy())
            losses, by_model = np.empty(len(rows)), dict[int, list[int]]()
            for i, start in enumerate(starts):
                by_model.setdefault(id(start), []).append(i)
            for places in by_model.values():
                losses[places] = self._tiled_losses(starts[places[0]], [rows[i] for i in places], precision)
            return losses

    def _mean_loss(self, params: Tensor, rows: Ints, precision: Precision) -> Tensor:
        parts = torch.split(torch.from_numpy(rows).to(self.x.device), EVAL_ROWS)
        each = [
            losses_of(self.sgd.loss, self.across(params, self.x[part], precision), self.y[part])
            for part in parts
        ]
        return torch.cat(each).double().mean()

    def _tiled_losses(self, params: Tensor, rows: Sequence[Ints], precision: Precision) -> Floats:
        """Return the mean loss [k] of one model on each of k groups of rows, computed in tiles of equal size."""
        sizes = np.array([len(r) for r in rows])
        tiles = -(-sizes // _TILE)
        first = np.cumsum(tiles) - tiles
        at = np.repeat(first * _TILE - (np.cumsum(sizes) - sizes), sizes) + np.arange(sizes.sum())
        index = np.zeros(tiles.sum() * _TILE, dtype=np.int64)
        index[at] = np.concatenate(rows)
        parts = torch.split(torch.from_numpy(index).to(self.x.device).view(-1, _TILE), EVAL_ROWS // _TILE)
        tiled = torch.cat([self._tile_losses(params, part, precision) for part in parts])
        each = tiled.double().cpu().numpy()
        owner = np.repeat(np.arange(len(sizes)), sizes)
        return np.asarray(np.bincount(owner, weights=each.ravel()[at], minlength=len(sizes)) / sizes)

    def _tile_losses(self, params: Tensor, index: Tensor, precision: Precision) -> Tensor:
        """Return the losses [T, _TILE] of rows `index` [T, _TILE]; the bits of a tile are independent of the others."""
        count = len(index)
        idle = EVAL_ROWS // _TILE - count if self.filled else 0
        index = functional.pad(index, (0, 0, 0, idle)) if idle else index
        out = self.x.index_select(0, index.reshape(-1)).view(len(index), _TILE, -1).transpose(1, 2)
        with lowered(precision, self.x.device):
            for layer in self.layers:
                weight, bias = layer.of(params)
                each = weight.expand(len(index), -1, -1)
                out = torch.bmm(each, out) if bias is None else torch.baddbmm(bias[:, None], each, out)
                out = out.relu_() if layer.relu else out
        labels = self.y.index_select(0, index.reshape(-1)).view(-1, _TILE)
        return losses_of(self.sgd.loss, out.float(), labels)[:count]

    def _step(self, model: _Models, x: Tensor, index: Tensor, weight: Tensor, losses: Tensor) -> None:
        """Take a step on the minibatches `x` [a, B, columns], whose rows are `index` [a, B].

        Writes the losses [active, B] of the samples before the step into `losses`.
        """
        weights, inputs = self._forward(model, x)
        labels = self.y.index_select(0, index.reshape(-1)).view(*index.shape, 1)
        delta = _logit_gradient(self.sgd.loss, inputs.pop(), labels, weight, losses)
        for number in reversed(range(len(self.layers))):
            below, before = inputs[number], delta
            if number:
                before = torch.bmm(delta, weights[number])
                if self.layers[number - 1].relu:
                    before = torch.ops.aten.threshold_backward(before, below, 0.0)
            self._descend(model, number, delta, below, len(losses))
            delta = before

    def _forward(self, model: _Models, x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Return the weights in the precision of training, and the input of each layer, the logits last."""
        a, kind = len(x), torch.bfloat16 if self.sgd.precision == "bfloat16" else x.dtype
        inputs, weights = [x.to(kind)], [w[:a].to(kind) for w in model.weights]
        for w, b, layer in zip(weights, model.biases, self.layers, strict=True):
            below, transposed = inputs[-1], w.transpose(1, 2)
            if b is None:
                out = torch.bmm(below, transposed)
            else:
                out = torch.baddbmm(b[:a].to(kind), below, transposed)
            inputs.append(out.relu_() if layer.relu else out)
        return weights, inputs

    def _descend(self, model: _Models, number: int, delta: Tensor, below: Tensor, active: int) -> None:
        """Step with one layer's gradients, which are 0 for the clients from `active` on: they have finished."""
        a, sgd = len(delta), self.sgd
        w, b = model.weights[number], model.biases[number]
        if model.velocity is None and not sgd.weight_decay and delta.dtype == w.dtype:
            self._descend_in_place(model, (w, b), delta, below, active)
            return
        terms = model.terms
        gradients = [(w, torch.bmm(delta.transpose(1, 2), below).to(w.dtype))]
        if b is not None:
            gradients.append((b, delta.sum(dim=1, keepdim=True, dtype=b.dtype)))
        for tensor, gradient in gradients:
            if terms.factor != 1:
                gradient.mul_(terms.factor)
            if model.anchors is not None:
                gradient.add_(tensor[:a] - model.anchors[id(tensor)][:a], alpha=terms.proximal)
            if model.offsets is not None:
                gradient[:active].add_(model.offsets[id(tensor)][:active])
            if sgd.weight_decay:
                gradient.add_(tensor[:a], alpha=sgd.weight_decay)
            if model.velocity is not None:
                gradient = model.velocity[id(tensor)][:a].mul_(sgd.momentum).add_(gradient)
            tensor[:active].add_(gradient[:active], alpha=-model.lr)

    def _descend_in_place(
        self, model: _Models, layer: tuple[Tensor, Tensor | None], delta: Tensor, below: Tensor, active: int
    ) -> None:
        """As `_descend`, for steps along the gradient itself: no tensor holds it."""
        a, lr, (w, b) = len(delta), model.lr, layer
        for tensor in layer:
            if tensor is not None and model.anchors is not None:
                tensor[:active].lerp_(model.anchors[id(tensor)][:active], lr * model.terms.proximal)
            if tensor is not None and model.offsets is not None:
                tensor[:active].add_(model.offsets[id(tensor)][:active], alpha=-lr)
        step = lr * model.terms.factor
        w[:a].baddbmm_(delta.transpose(1, 2), below, alpha=-step)
        if b is not None:
            b[:a].add_(delta.sum(dim=1, keepdim=True), alpha=-step)


def _logit_gradient(loss: Loss, logits: Tensor, labels: Tensor, weight: Tensor, losses: Tensor) -> Tensor:
    """Return the gradient [a, B, classes] of the weighted loss, and write the losses of the active clients."""
    if loss == "hinge":
        rivals, rival = logits.float().scatter(2, labels, -torch.inf).max(dim=2, keepdim=True)
        margin = 1 + rivals - logits.float().gather(2, labels)
        losses.copy_(margin.relu().squeeze(2)[: len(losses)])
        short = (margin > 0).float()
        delta = torch.zeros_like(logits, dtype=torch.float32)
        delta.scatter_(2, rival, short).scatter_(2, labels, -short)
        return delta.mul_(weight.unsqueeze(2)).to(logits.dtype)
    log_p = torch.log_softmax(logits.float(), dim=2)
    own = log_p.gather(2, labels)
    torch.neg(own.squeeze(2)[: len(losses)], out=losses)
    delta = log_p.exp_()
    delta.scatter_add_(2, labels, torch.full_like(own, -1.0))
    return delta.mul_(weight.unsqueeze(2)).to(logits.dtype)


def _padded(rows: Tensor, a: int) -> Tensor:
    """Return the first `a` of `rows` [g, B], followed by rows of zeros if there are fewer."""
    return functional.pad(rows, (0, 0, 0, a - len(rows))) if a > len(rows) else rows[:a]


def _stacked(
    layers: Sequence[Layer], vectors: Sequence[Tensor], padded: int
) -> tuple[list[Tensor], list[Tensor | None]]:
    """Return copies of g vectors [P] by layer: weights [padded, rows, columns] and biases [padded, 1, rows].

    The first dimension is 1 if all vectors are the same.
    """
    same = all(vector is vectors[0] for vector in vectors)
    every = [vectors[0]] if same else [*vectors, *[vectors[0]] * (padded - len(vectors))]

    def stacked(at: int, *shape: int) -> Tensor:
        return torch.stack([vector[at : at + shape[0] * shape[1]].view(shape) for vector in every])

    weights = [stacked(layer.weight, layer.rows, layer.columns) for layer in layers]
    return weights, [stacked(layer.bias, 1, layer.rows) if layer.bias >= 0 else None for layer in layers]


def _whole(stacked: Tensor, padded: int) -> Tensor:
    """Return [padded, ...] of a tensor whose first dimension is 1 or `padded`."""
    return stacked.expand(padded, *stacked.shape[1:]).contiguous()


def _in_order(weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> list[Tensor]:
    """Return weights and biases in the order of the flat vector."""
    by_layer = zip(weights, biases, strict=True)
    return [tensor for pair in by_layer for tensor in pair if tensor is not None]


class _Models:
    """The parameters of g clients by layer: weights [g, rows, columns], biases [g, 1, rows]."""

    def __init__(
        self,
        layers: Sequence[Layer],
        starts: Sequence[Tensor],
        padded: int,
        lr: float,
        momentum: bool,
        terms: Terms,
    ) -> None:
        self.lr, self.terms = lr, terms
        self.weights, self.biases = _stacked(layers, starts, padded)
        self.weights = [_whole(weight, padded) for weight in self.weights]
        self.biases = [None if bias is None else _whole(bias, padded) for bias in self.biases]
        self.tensors = _in_order(self.weights, self.biases)
        self.velocity = {id(t): torch.zeros_like(t) for t in self.tensors} if momentum else None
        self.anchors: dict[int, Tensor] | None = None
        """The models that the proximal term pulls to, of one client if all clients have the same."""
        if terms.proximal:
            near = _in_order(*_stacked(layers, terms.anchors or starts, padded))
            self.anchors = {id(t): anchor for t, anchor in zip(self.tensors, near, strict=True)}
        self.offsets = None if terms.offsets is None else self._by_tensor(terms.offsets)

    def _by_tensor(self, rows: Tensor) -> dict[int, Tensor]:
        """Return views of `rows` [g, P] in the shapes of the parameters, by the id of their tensors."""
        parts = torch.split(rows, [tensor[0].numel() for tensor in self.tensors], dim=1)
        return {id(t): part.view(-1, *t.shape[1:]) for t, part in zip(self.tensors, parts, strict=True)}

    def differences(self, starts: Sequence[Tensor], rows: Tensor, jobs: Sequence[int]) -> None:
        """Write start minus end of client i into row `jobs[i]`."""
        if rows.shape[1] < _NARROW:
            base = starts[0] if all(start is starts[0] for start in starts) else torch.stack(list(starts))
            flat = torch.cat([t[: len(jobs)].flatten(1) for t in self.tensors], dim=1)
            rows[torch.tensor(jobs, device=rows.device)] = base - flat
            return
        start = 0
        for tensor in self.tensors:
            ends, stop = tensor.flatten(1), start + tensor[0].numel()
            for i, job in enumerate(jobs):
                torch.sub(starts[i][start:stop], ends[i], out=rows[job, start:stop])
            start = stop
