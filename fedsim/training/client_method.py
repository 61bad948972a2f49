"""What a client-side method is: how a client trains, what it remembers, and which model it would use itself.

A method is a pure function of the start parameters, the client's data, the job and the vector that the client
`kept` from its job before. `Local` are its tools. Most methods are a few lines around `local.sgd`: FedProx corrects
each gradient, Ditto calls it a second time for the client's own model, FedCKA descends another objective.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from fedsim.common import arguments
from fedsim.common.errors import RunError

if TYPE_CHECKING:
    import torch  # it takes seconds; a configuration that names a method is read without it

Tensors = tuple["torch.Tensor", ...]
"""One tensor per parameter of the model, in the order of `named_parameters`; usually views into a flat vector [P]."""
Correct = Callable[[Tensors, Tensors, float], Tensors]
"""`correct(grads, weights, lr) -> grads`: changes a minibatch's gradient before weight decay, momentum and step."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples [B, ...] and labels [B] on the device that trains."""

    x: torch.Tensor
    y: torch.Tensor


Objective = Callable[[Batch], tuple["torch.Tensor", "torch.Tensor"]]
"""`objective(batch) -> (descended, losses)`: a scalar that is differentiable in `local.weights`, and [B] the loss of
each sample, of which the client reports the mean and the root mean square."""


@dataclass(frozen=True, slots=True)
class Trained:
    """What comes out of a job."""

    end: torch.Tensor
    """[P] The update is `start - end`."""
    loss: float
    """Mean loss over the samples trained on."""
    kept: torch.Tensor | None = None
    """[P] What the client remembers for its next job. Forgotten if the update is not finite or never used."""
    loss_before: float = math.nan
    """Where the method declared `reports_loss`: the loss that the rule is told."""


class Local(Protocol):
    """One client's tools for one job. Everything random is drawn from (seed, purpose, client, nth job)."""

    @property
    def weights(self) -> Tensors:
        """The parameters that `sgd` moves, which an objective differentiates by."""

    @property
    def rows(self) -> torch.Tensor:
        """[n] rows of the client's training samples."""

    @property
    def wants_loss(self) -> bool:
        """Whether the rule asked for losses."""

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
        """Run the configured minibatch SGD from `start` [P]; return the end [P], a new tensor, and the mean loss.

        `purpose` names the draws: equal purposes give equal minibatches. `lr` is before the decay by server steps.
        What is not given is as configured; the objective is then the cross-entropy. Without a single step (no epochs,
        no rows) the loss is NaN.
        """

    def draws(self, purpose: str) -> np.random.Generator:
        """Return the generator of a purpose."""

    def batch(self, rows: torch.Tensor) -> Batch:
        """Return the samples of rows."""

    def batches(self, rows: torch.Tensor) -> Iterator[Batch]:
        """Cut rows into minibatches of the configured size, in their order."""

    def views(self, flat: torch.Tensor) -> Tensors:
        """Return views into `flat` [P], parameter by parameter."""

    def logits(self, weights: Tensors, x: torch.Tensor) -> torch.Tensor:
        """Return the logits [B, classes] of the model with these weights, differentiable in them."""

    def features(
        self, weights: Tensors, x: torch.Tensor, layers: int
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Return the logits, and what the first `layers` layers with parameters put out, each [B, ...]."""

    def mean_loss(self, flat: torch.Tensor, rows: torch.Tensor) -> float:
        """Return the mean cross-entropy of the model `flat` [P] on rows, without dropout."""


Train = Callable[[Local, "torch.Tensor", "torch.Tensor | None"], Trained]
"""`train(local, start [P], kept [P] or None)`; kept is None in the first job of a client."""
Personal = Callable[[Local, "torch.Tensor", "torch.Tensor | None"], "torch.Tensor"]
"""`personal(local, model [P], kept [P] or None) -> [P]`: the model that the client would use itself."""


_FUNCTION = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class ClientMethod:
    """How clients train. The default is local SGD and nothing else."""

    train: Train | None = None
    """None: plain local SGD from the received model."""
    draws: bool = True
    """Whether `train` and `personal` may draw from torch's own generator, beside what `Local` draws for them.

    It is then seeded for each job; where they do not, clients may train in several threads."""
    keeps: bool = False
    """Whether `train` returns something to keep: [P] per client."""
    personal: Personal | None = None
    """None: clients use the global model."""
    reports_loss: bool = False
    """Whether `train` itself finds the loss that is reported to the rule; otherwise it is that of the start model."""
    passes: Callable[[int], float] = float
    """From the configured epochs to the passes over the training samples that a job costs in virtual time."""

    def __post_init__(self) -> None:
        for name, kind in (
            ("train", _FUNCTION | None),
            ("personal", _FUNCTION | None),
            ("passes", _FUNCTION),
        ):
            arguments.check(f"a client method's {name}", getattr(self, name), kind)


def pull(strength: float, anchor: Tensors) -> Correct:
    """Return the correction `grad + strength * (weights - anchor)`, the gradient of a proximal term."""

    import torch

    def correct(grads: Tensors, weights: Tensors, lr: float) -> Tensors:
        apart = torch._foreach_sub(weights, anchor)
        return tuple(torch._foreach_add(grads, apart, alpha=strength))

    return correct


def checked(found: Any, parameters: int, client: int) -> Trained:
    """Return what a method's `train` returned, a Trained with vectors of so many parameters. Raises RunError."""
    where = f"client {client}: the client method's train"
    if not isinstance(found, Trained):
        raise RunError(f"{where} must return a Trained, it returned {type(found).__name__}")
    end = _vector(found.end, parameters, f"{where} must return 'end' as")
    kept = None if found.kept is None else _vector(found.kept, parameters, f"{where} must return 'kept' as")
    losses = {
        name: _number(getattr(found, name), f"{where} must return {name!r}")
        for name in ("loss", "loss_before")
    }
    return replace(found, end=end, kept=kept, **losses)


def checked_personal(found: Any, parameters: int, client: int) -> torch.Tensor:
    """Return what a method's `personal` returned, a vector of so many parameters. Raises RunError."""
    return _vector(found, parameters, f"client {client}: the client method's personal must return")


def checked_losses(found: Any, samples: int, client: int) -> torch.Tensor:
    """Return the losses [B] that an objective returned, without the history of how they were computed.

    Raises RunError.
    """
    must = f"client {client}: the objective must return the loss of each sample,"
    return _vector(found, samples, must)


def _number(found: Any, must: str) -> float:
    try:
        return float(found)
    except (TypeError, ValueError, RuntimeError) as error:
        raise RunError(f"{must} as a number, found {type(found).__name__}") from error


def _vector(found: Any, parameters: int, must: str) -> torch.Tensor:
    """Return a vector [P] of a method, without the history of how it was computed. Raises RunError."""
    shape = getattr(found, "shape", None)
    if shape is None or tuple(shape) != (parameters,) or not hasattr(found, "detach"):
        what = f"shape {list(shape)}" if shape and hasattr(found, "detach") else type(found).__name__
        raise RunError(f"{must} a tensor [{parameters}], found {what}")
    vector: torch.Tensor = found.detach()
    return vector
