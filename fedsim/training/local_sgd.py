"""Minibatch SGD on a workbench: the loop of every client-side method, and the tools that a method is given."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.func import functional_call
from torch.nn import functional

from fedsim.common.rng import rng
from fedsim.training.client_method import Batch, Correct, Objective, Tensors, checked_losses
from fedsim.training.job import Floats, Ints, Job
from fedsim.training.minibatches import orders
from fedsim.training.precision import lowered

if TYPE_CHECKING:
    from fedsim.training.loaded_model import LoadedModel
    from fedsim.training.settings import LocalSGD


@dataclass(frozen=True, slots=True)
class Descent:
    """One call of local SGD; see `fedsim.training.client_method.Local.sgd`."""

    sgd: LocalSGD
    purpose: str = "batches"
    rows: torch.Tensor | None = None
    most_steps: int | None = None
    correct: Correct | None = None
    objective: Objective | None = None


class ClientBench:
    """A client's tools for one job on a workbench; see `fedsim.training.client_method.Local`."""

    def __init__(self, bench: LoadedModel, job: Job) -> None:
        self.bench, self.job, self.weights = bench, job, bench.weights
        self.rows = torch.from_numpy(bench.splits["train"].rows(job.client)).to(bench.device)
        self.wants_loss = bench.spec.losses
        self.loss_rms = self.batch_rms = math.nan
        """Root mean square of the losses of the samples of the job's first descent, from the received model, and of
        those of its last minibatch."""

    def sgd(
        self,
        start: torch.Tensor,
        *,
        purpose: str = "batches",
        rows: torch.Tensor | None = None,
        epochs: int | None = None,
        lr: float | None = None,
        most_steps: int | None = None,
        correct: Correct | None = None,
        objective: Objective | None = None,
    ) -> tuple[torch.Tensor, float]:
        """Run the configured SGD from `start` [P]; return the end [P], a new tensor, and the mean loss."""
        usual = self.bench.sgd
        sgd = replace(
            usual,
            epochs=usual.epochs if epochs is None else epochs,
            lr=usual.lr if lr is None else lr,
        )
        self.bench.flat.copy_(start)
        loss = self.descend(Descent(sgd, purpose, rows, most_steps, correct, objective))
        return self.bench.flat.clone(), loss

    def descend(self, how: Descent) -> float:
        """Run minibatch SGD on the workbench's parameters as they are; return the mean loss over the samples seen.

        Without a single step it is NaN.
        """
        bench, sgd, rows = self.bench, how.sgd, self.rows if how.rows is None else how.rows
        lr = sgd.lr * sgd.lr_decay**self.job.version
        epochs, most = self._allowed(how, len(rows))
        objective, correct = how.objective or self._cross_entropy, how.correct
        bench.module.train()
        velocity = [torch.zeros_like(w) for w in self.weights] if sgd.momentum else None
        losses: list[torch.Tensor] = []
        with bench.seeded(self.draws(how.purpose)) if bench.random else nullcontext():
            for batch in self._epochs(rows, epochs, how.purpose):
                if len(losses) == most:
                    break
                descended, each = objective(batch)
                grads = torch.autograd.grad(descended, self.weights, materialize_grads=True)
                _step(self.weights, correct(grads, self.weights, lr) if correct else grads, lr, sgd, velocity)
                losses.append(checked_losses(each, len(batch.y), self.job.client))
        if not losses:
            return math.nan
        found = (
            torch.cat(losses).double().cpu().numpy()
        )  # at once: on a GPU each look waits for the work before it
        if math.isnan(self.loss_rms):
            self.loss_rms, self.batch_rms = _rms(found), _rms(found[-len(losses[-1]) :])
        return float(found.mean())

    def _allowed(self, how: Descent, n: int) -> tuple[int, int | None]:
        """Return epochs and most steps, with the job's share of the work taken of both."""
        share, epochs = self.job.share, how.sgd.epochs
        if share == 1.0:
            return epochs, how.most_steps
        steps = epochs * math.ceil(n / (self.bench.sgd.batch_size or max(n, 1)))
        most = max(1, math.floor(share * steps + 1e-9))
        return math.ceil(share * epochs), most if how.most_steps is None else min(most, how.most_steps)

    def _epochs(self, rows: torch.Tensor, epochs: int, purpose: str) -> Iterator[Batch]:
        if not epochs or not len(rows):
            return
        same = np.ones(epochs, dtype=np.int64)
        client, nth, size = (value * same for value in (self.job.client, self.job.nth, len(rows)))
        order = orders(self.bench.seed, purpose, client, nth, np.arange(epochs), size)
        for number, places in enumerate(np.split(order, epochs)):
            whole = self.batch(rows[torch.from_numpy(places).to(self.bench.device)])
            yield from self._cut(self._augmented(whole, purpose, number, places))

    def _augmented(self, whole: Batch, purpose: str, epoch: int, places: Ints) -> Batch:
        """Return an epoch's samples, which are at `places` among the client's, as they look in it."""
        augmenter, how = self.bench.augmenter, self.bench.sgd.augment
        if augmenter is None or how is None:
            return whole
        same = np.ones_like(places)
        client, nth, lap = (value * same for value in (self.job.client, self.job.nth, epoch))
        views = how.drawn(self.bench.seed, purpose, client, nth, lap, places)
        return Batch(augmenter(whole.x, torch.from_numpy(views).to(whole.x.device)), whole.y)

    def _cross_entropy(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        each = functional.cross_entropy(self.bench.logits(batch.x), batch.y, reduction="none")
        return each.mean(), each

    def draws(self, purpose: str) -> np.random.Generator:
        """Return the generator of (seed, purpose, client, nth job)."""
        return rng(self.bench.seed, purpose, self.job.client, self.job.nth)

    def batch(self, rows: torch.Tensor) -> Batch:
        """Return the samples of rows."""
        return Batch(self.bench.x[rows], self.bench.y[rows])

    def batches(self, rows: torch.Tensor) -> Iterator[Batch]:
        """Cut rows into minibatches of the configured size, in their order."""
        return self._cut(self.batch(rows))

    def _cut(self, whole: Batch) -> Iterator[Batch]:
        size = self.bench.sgd.batch_size or len(whole.y)
        for a in range(0, len(whole.y), size):
            yield Batch(whole.x[a : a + size], whole.y[a : a + size])

    def views(self, flat: torch.Tensor) -> Tensors:
        """Return views into `flat` [P], parameter by parameter."""
        return tuple(self.bench.network.views(flat).values())

    def logits(self, weights: Tensors, x: torch.Tensor) -> torch.Tensor:
        """Return the logits of the model with these weights."""
        names = (slot.name for slot in self.bench.network.slots)
        own = dict(zip(names, weights, strict=True))
        with lowered(self.bench.sgd.precision, self.bench.device):
            found: torch.Tensor = functional_call(self.bench.module, own, (x,))
        return found.float()

    def features(
        self, weights: Tensors, x: torch.Tensor, layers: int
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Return the logits, and what the first `layers` layers with parameters put out, in order of execution."""
        found: list[torch.Tensor] = []
        known = dict(self.bench.module.named_modules())
        parts = [known.get(name, self.bench.module) for name in self.bench.network.block_names[:layers]]
        hooks = [
            part.register_forward_hook(lambda _m, _x, y: found.append(_first(y).float())) for part in parts
        ]
        try:
            return self.logits(weights, x), found
        finally:
            for hook in hooks:
                hook.remove()

    def mean_loss(self, flat: torch.Tensor, rows: torch.Tensor) -> float:
        """Return the mean cross-entropy of the model `flat` [P] on rows, without dropout."""
        return float(self.bench.losses(flat, rows).mean())


def _first(output: Any) -> torch.Tensor:
    """Return what a layer puts out, without the state that a recurrent one puts out beside it."""
    found: torch.Tensor = output[0] if isinstance(output, tuple) else output
    return found


def _step(
    weights: Tensors, grads: Tensors, lr: float, sgd: LocalSGD, velocity: list[torch.Tensor] | None
) -> None:
    """One step of SGD with heavy-ball momentum and L2 weight decay, as in torch.optim.SGD without dampening."""
    with torch.no_grad():
        if sgd.weight_decay:
            grads = torch._foreach_add(grads, weights, alpha=sgd.weight_decay)
        if velocity is not None:
            torch._foreach_mul_(velocity, sgd.momentum)
            torch._foreach_add_(velocity, grads)
            grads = tuple(velocity)
        torch._foreach_add_(weights, grads, alpha=-lr)


def _rms(losses: Floats) -> float:
    return math.sqrt(np.square(losses).mean())
