"""Minibatch SGD: the training loop of every client method, and the tools that a method receives."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedsim.common.arrays import Floats, Ints
from fedsim.common.errors import RunError, closest
from fedsim.common.rng import rng
from fedsim.training.client_method import Batch, Correct, Objective, Tensors, checked_vector
from fedsim.training.job import Job
from fedsim.training.loaded_model import LoadedModel
from fedsim.training.losses import training_losses
from fedsim.training.minibatches import orders
from fedsim.training.precision import lowered
from fedsim.training.settings import LocalSGD


@dataclass(frozen=True, slots=True)
class Descent:
    """One call of local SGD; see `fedsim.training.client_method.Local.sgd`."""

    sgd: LocalSGD
    purpose: str = "batches"
    rows: Tensor | None = None
    most_steps: int | None = None
    correct: Correct | None = None
    objective: Objective | None = None


_OPTIONS = {field.name for field in fields(Descent)} - {"sgd"}


class ClientTools:
    """A client's tools for one job; implements `fedsim.training.client_method.Local`."""

    def __init__(self, model: LoadedModel, job: Job) -> None:
        self.model, self.job, self.weights = model, job, model.weights
        self.rows = model.training_rows(job.client)
        self.wants_loss = model.spec.losses
        self.received: Mapping[str, Tensor] = {}
        self.loss_rms = self.batch_rms = math.nan
        """Root mean square of the sample losses in the job's first descent, and in that descent's last minibatch."""
        self.steps = 0
        """Steps of the last descent."""

    def sgd(
        self, start: Tensor, *, epochs: int | None = None, lr: float | None = None, **options: Any
    ) -> tuple[Tensor, float]:
        """Run the configured SGD from `start` [P]; return the end [P], a new tensor, and the mean loss.

        `options` are those of a `Descent`.
        """
        where = f"client {self.job.client}: local.sgd"
        if unknown := sorted(options.keys() - _OPTIONS):
            known = ("epochs", "lr", *_OPTIONS)
            raise RunError(f"{where}: unknown argument {unknown[0]!r}{closest(unknown[0], known)}")
        if epochs is not None and epochs < 0:
            raise RunError(f"{where}: epochs: expected a number from 0, found {epochs}")
        sgd = self.model.sgd
        sgd = replace(sgd, epochs=sgd.epochs if epochs is None else epochs, lr=sgd.lr if lr is None else lr)
        self.model.flat.copy_(start)
        loss = self.descend(Descent(sgd, **options))
        return self.model.flat.clone(), loss

    def descend(self, descent: Descent) -> float:
        """Run minibatch SGD from the model's present parameters; return the mean loss over the samples trained on.

        The loss is NaN if no step is taken.
        """
        self.model.module.train()
        with self.model.seeded(self.draws(descent.purpose)) if self.model.random else nullcontext():
            losses = self._minibatch_losses(descent)
        self.steps = len(losses)
        if not losses:
            return math.nan
        each = torch.cat(losses).double().cpu().numpy()  # once: every copy from a GPU waits for its work
        if math.isnan(self.loss_rms):
            self.loss_rms, self.batch_rms = _rms(each), _rms(each[-len(losses[-1]) :])
        return float(each.mean())

    def _minibatch_losses(self, descent: Descent) -> list[Tensor]:
        """Take the steps of a descent; return the losses [B] of each minibatch before its step."""
        sgd, rows = descent.sgd, self.rows if descent.rows is None else descent.rows
        lr = sgd.rate(self.job.version)
        epochs, most_steps = self._allowed(descent, len(rows))
        objective, correct = descent.objective or self._mean_loss, descent.correct
        velocity = [torch.zeros_like(w) for w in self.weights] if sgd.momentum else None
        must = f"client {self.job.client}: the objective must return the loss of each sample,"
        losses: list[Tensor] = []
        for batch in self._epochs(rows, epochs, descent.purpose):
            if len(losses) == most_steps:
                break
            value, each = objective(batch)
            grads = torch.autograd.grad(value, self.weights, materialize_grads=True)
            if correct:
                grads = self._corrected(correct(grads, self.weights, lr))
            _step(self.weights, grads, lr, sgd, velocity)
            losses.append(checked_vector(each, len(batch.y), must))
        return losses

    def _corrected(self, grads: Any) -> Tensors:
        """Return the gradients of a correction. Raises RunError if there is not one for each parameter."""
        if not isinstance(grads, tuple | list) or len(grads) != len(self.weights):
            found = f"{len(grads)} of them" if isinstance(grads, tuple | list) else type(grads).__name__
            raise RunError(
                f"client {self.job.client}: correct must return a gradient for each of the {len(self.weights)} "
                f"parameters, found {found}"
            )
        return tuple(grads)

    def _allowed(self, descent: Descent, n: int) -> tuple[int, int | None]:
        """Return the epochs and the most steps that the job's share of the work allows on n samples."""
        share, epochs = self.job.share, descent.sgd.epochs
        if share == 1.0:
            return epochs, descent.most_steps
        steps = epochs * math.ceil(n / (self.model.sgd.batch_size or max(n, 1)))
        most = max(1, math.floor(share * steps + 1e-9))
        if descent.most_steps is not None:
            most = min(most, descent.most_steps)
        return math.ceil(share * epochs), most

    def _epochs(self, rows: Tensor, epochs: int, purpose: str) -> Iterator[Batch]:
        if not epochs or not len(rows):
            return
        client, nth, size = (np.full(epochs, value) for value in (self.job.client, self.job.nth, len(rows)))
        order = orders(self.model.seed, purpose, client, nth, np.arange(epochs), size)
        for number, places in enumerate(np.split(order, epochs)):
            whole = self.batch(rows[torch.from_numpy(places).to(self.model.device)])
            yield from self._cut(self._augmented(whole, purpose, number, places))

    def _augmented(self, whole: Batch, purpose: str, epoch: int, places: Ints) -> Batch:
        """Return an epoch's samples in their views; `places` are their positions among the client's samples."""
        augmenter, augment = self.model.augmenter, self.model.sgd.augment
        if augmenter is None or augment is None:
            return whole
        client, nth, lap = (np.full(len(places), value) for value in (self.job.client, self.job.nth, epoch))
        views = augment.drawn(self.model.seed, purpose, client, nth, lap, places)
        return Batch(augmenter(whole.x, torch.from_numpy(views).to(whole.x.device)), whole.y)

    def _mean_loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        each = self.losses(self.model.logits(batch.x), batch.y)
        return each.mean(), each

    def draws(self, purpose: str) -> np.random.Generator:
        """Return a new generator, seeded with (seed, purpose, client, nth job)."""
        return rng(self.model.seed, purpose, self.job.client, self.job.nth)

    def batch(self, rows: Tensor) -> Batch:
        """Return the samples at `rows`."""
        return Batch(self.model.x[rows], self.model.y[rows])

    def batches(self, rows: Tensor) -> Iterator[Batch]:
        """Yield the samples at `rows` in minibatches of the configured size, in the given order."""
        return self._cut(self.batch(rows))

    def _cut(self, whole: Batch) -> Iterator[Batch]:
        size = self.model.sgd.batch_size or len(whole.y)
        for a in range(0, len(whole.y), size):
            yield Batch(whole.x[a : a + size], whole.y[a : a + size])

    def views(self, flat: Tensor) -> Tensors:
        """Return views into `flat` [P], one per parameter."""
        return tuple(self.model.network.views(flat).values())

    def logits(self, weights: Tensors, x: Tensor) -> Tensor:
        """Return the logits [B, classes] of the model with these weights."""
        slots = self.model.network.slots
        parameters = {slot.name: weight for slot, weight in zip(slots, weights, strict=True)}
        with lowered(self.model.sgd.precision, self.model.device):
            logits: Tensor = functional_call(self.model.module, parameters, (x,))
        return logits.float()

    def features(self, weights: Tensors, x: Tensor, layers: int) -> tuple[Tensor, list[Tensor]]:
        """Return the logits and the outputs of the first `layers` layers with parameters, in order of execution."""
        outputs: list[Tensor] = []

        def record(layer: nn.Module, inputs: Any, output: Any) -> None:
            own = output[0] if isinstance(output, tuple) else output  # without an RNN's state
            outputs.append(own.float())

        modules = dict(self.model.module.named_modules())
        blocks = self.model.network.block_names[:layers]
        with ExitStack() as hooks:
            for name in blocks:
                hooks.enter_context(modules.get(name, self.model.module).register_forward_hook(record))
            return self.logits(weights, x), outputs

    def losses(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return the losses [B] of samples with these logits [B, classes] and labels [B], as `train.loss` says."""
        return training_losses(self.model.sgd.loss, logits, y)

    def mean_loss(self, flat: Tensor, rows: Tensor) -> float:
        """Return the mean loss of the model `flat` [P] on the samples at `rows`, without dropout.

        The model in training stays as it is.
        """
        trained, training = self.model.flat.clone(), self.model.module.training
        try:
            return float(self.model.losses(flat, rows).mean())
        finally:
            self.model.flat.copy_(trained)
            self.model.module.train(training)


def _step(weights: Tensors, grads: Tensors, lr: float, sgd: LocalSGD, velocity: list[Tensor] | None) -> None:
    """Take a step of SGD with heavy-ball momentum and L2 weight decay, as torch.optim.SGD does without dampening."""
    with torch.no_grad():
        if sgd.weight_decay:
            grads = tuple(g.add(w, alpha=sgd.weight_decay) for g, w in zip(grads, weights, strict=True))
        if velocity is not None:
            grads = tuple(v.mul_(sgd.momentum).add_(g) for v, g in zip(velocity, grads, strict=True))
        for weight, grad in zip(weights, grads, strict=True):
            weight.add_(grad, alpha=-lr)


def _rms(losses: Floats) -> float:
    return math.sqrt(np.square(losses).mean())
