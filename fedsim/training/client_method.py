"""The protocol of client methods: how a client trains, what it keeps between jobs, and its personal model.

A method is a pure function of the start parameters, the client's data, the job and the vector that the client
`kept` from its previous job. It trains with the tools of `Local`. Most methods are a few lines around `local.sgd`:
FedCKA minimizes another objective. Methods that add a proximal term (FedProx) or a constant vector (SCAFFOLD, FedDyn)
to each gradient, or train a model of the client's own beside the update (Ditto), declare it instead, and all batching
modes can train them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from fedsim.common import arguments
from fedsim.common.arrays import Ints
from fedsim.common.errors import ConfigError, RunError

if TYPE_CHECKING:
    from torch import Tensor  # slow to import, and not needed to read a configuration that names a method

Tensors = tuple["Tensor", ...]
"""One tensor per parameter of the model, in the order of `named_parameters`; usually views into a flat vector [P]."""
Correct = Callable[[Tensors, Tensors, float], Tensors]
"""`correct(grads, weights, lr) -> grads`: changes a minibatch's gradient before weight decay, momentum and step."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples [B, ...] and labels [B] on the device that trains."""

    x: Tensor
    y: Tensor


Objective = Callable[[Batch], tuple["Tensor", "Tensor"]]
"""`objective(batch) -> (objective, losses)`: a scalar to minimize, differentiable in `local.weights`, and the losses
[B] of the samples, of which the client reports the mean and the root mean square."""


@dataclass(frozen=True, slots=True)
class Trained:
    """The result of a job."""

    end: Tensor
    """[P] The parameters after training; the update is `start - end`."""
    loss: float
    """Mean loss over the samples trained on."""
    kept: Tensor | None = None
    """[P] A vector that the client keeps for its next job. It is discarded if the update is not finite or never used.
    """
    loss_before: float = math.nan
    """The loss that the aggregation rule receives, from methods that declare `reports_loss`."""
    sent: Mapping[str, Tensor] = field(default_factory=dict)
    """By name, the vectors [P] that the client sends beside the update; see `ClientMethod.sends`."""


class Local(Protocol):
    """One client's tools for one job. All random draws are seeded with (seed, purpose, client, nth job)."""

    weights: Tensors
    """The parameters that `sgd` changes and that an objective depends on."""
    rows: Tensor
    """[n] The positions of the client's training samples in the data set."""
    wants_loss: bool
    """Whether the aggregation rule asks for losses."""
    received: Mapping[str, Tensor]
    """By name, the server's vectors [P] that came with the model; see `ClientMethod.receives`."""

    def sgd(
        self,
        start: Tensor,
        *,
        purpose: str = "batches",
        rows: Tensor | None = None,
        epochs: int | None = None,
        lr: float | None = None,
        most_steps: int | None = None,
        correct: Correct | None = None,
        objective: Objective | None = None,
    ) -> tuple[Tensor, float]:
        """Run the configured minibatch SGD from `start` [P]; return the end [P], a new tensor, and the mean loss.

        Args:
            purpose: a name for the random draws; equal purposes give equal minibatches.
            rows: the samples to train on; by default all of the client's.
            epochs: passes over the samples; by default as configured.
            lr: learning rate before its decay by server steps; by default as configured.
            most_steps: upper limit of the number of steps.
            correct: changes each gradient.
            objective: minimized in place of the mean loss.

        The loss is NaN if no step is taken (no epochs or no rows).
        """

    def draws(self, purpose: str) -> np.random.Generator:
        """Return a new generator, seeded with (seed, purpose, client, nth job)."""

    def batch(self, rows: Tensor) -> Batch:
        """Return the samples at `rows`."""

    def batches(self, rows: Tensor) -> Iterator[Batch]:
        """Yield the samples at `rows` in minibatches of the configured size, in the given order."""

    def views(self, flat: Tensor) -> Tensors:
        """Return views into `flat` [P], one per parameter."""

    def logits(self, weights: Tensors, x: Tensor) -> Tensor:
        """Return the logits [B, classes] of the model with these weights, differentiable in them."""

    def features(self, weights: Tensors, x: Tensor, layers: int) -> tuple[Tensor, list[Tensor]]:
        """Return the logits and the outputs [B, ...] of the first `layers` layers that have parameters."""

    def losses(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return the losses [B] of samples with these logits [B, classes] and labels [B], as `train.loss` says."""

    def mean_loss(self, flat: Tensor, rows: Tensor) -> float:
        """Return the mean loss of the model `flat` [P] on the samples at `rows`, without dropout."""


Train = Callable[[Local, "Tensor", "Tensor | None"], Trained]
"""`train(local, start [P], kept [P] or None)`; `kept` is None in the first job of a client."""
Personal = Callable[[Local, "Tensor", "Tensor | None"], "Tensor"]
"""`personal(local, model [P], kept [P] or None) -> [P]`: the client's personal model."""


@dataclass(frozen=True, slots=True)
class Offset:
    """A vector [P] that a client adds to every gradient of a job, and what the client keeps and sends after it.

    In both functions `kept` [P] is what the client kept from its previous job, 0 before its first one, and `received`
    the server's vectors [P] by name.
    """

    vector: Callable[[Tensor, Mapping[str, Tensor]], Tensor]
    """`vector(kept, received) -> [P]`."""
    after: Callable[[Tensor, Tensor, Mapping[str, Tensor], float], tuple[Tensor, Mapping[str, Tensor]]]
    """`after(update, kept, received, rate) -> kept, sent`: the vector [P] to keep, and those [P] to send, by name.

    `update` [P] is start minus end; `rate` the sum of the learning rates of the job's steps, 0 if it took none."""

    def __post_init__(self) -> None:
        arguments.check("an offset's vector", self.vector, Callable[..., Any])
        arguments.check("an offset's after", self.after, Callable[..., Any])

    def checked(self, kept: Tensor, received: Mapping[str, Tensor], client: int) -> Tensor:
        """Return the vector [P]. Raises RunError, which names the client, if the function returns anything else."""
        must = f"client {client}: the client method's offset.vector must return"
        return checked_vector(self.vector(kept, received), len(kept), must)


@dataclass(frozen=True, slots=True)
class OwnModel:
    """A model that a client keeps and trains in each of its jobs, beside the update: plain local SGD near the received
    model.

    It starts as the first model that the client receives. Its minibatches have the purpose "personal".
    """

    proximal: float = 0.0
    """Strength lam, at least 0, of the term lam/2 ||v - w||^2 that is added to the loss; w is the received model."""
    epochs: int | None = None
    """Passes over the training samples; None: those of the update."""
    lr: float | None = None
    """Learning rate before its decay by server steps; None: that of the update."""

    def __post_init__(self) -> None:
        arguments.check("an own model's proximal", self.proximal, float)
        arguments.check("an own model's epochs", self.epochs, int | None)
        arguments.check("an own model's lr", self.lr, float | None)
        if not 0 <= self.proximal < math.inf:
            raise ConfigError(f"an own model's proximal: expected a number from 0, found {self.proximal}")
        if self.epochs is not None and self.epochs < 1:
            raise ConfigError(f"an own model's epochs: expected at least 1, found {self.epochs}")
        if self.lr is not None and not 0 < self.lr < math.inf:
            raise ConfigError(f"an own model's lr: expected a number above 0, found {self.lr}")


@dataclass(frozen=True, slots=True)
class ClientMethod:
    """How clients train. The default is plain local SGD."""

    train: Train | None = None
    """None: plain local SGD from the received model, with the terms below and, beside it, of the client's own model."""
    proximal: float = 0.0
    """Strength mu, at least 0, of the proximal term mu/2 ||v - w||^2 that plain local SGD adds to the loss; w is the
    received model. A method with its own `train` has none: it passes `pull` to `local.sgd`."""
    plain_step_first: bool = False
    """Whether each minibatch's gradient makes two steps of plain local SGD: one without the proximal term, then one
    with it."""
    offset: Offset | None = None
    """A vector [P] that is added to every gradient of a job. The method must keep something."""
    own: OwnModel | None = None
    """A model that clients keep and train beside the update. The method must keep something."""
    draws: bool = True
    """Whether `train` and `personal` may draw from torch's global generator, beside the draws of `Local`.

    fedsim then seeds that generator for each job. If they do not, clients may train in several threads."""
    keeps: bool = False
    """Whether `train` returns a vector [P] to keep."""
    personal: Personal | None = None
    """None: clients use the global model."""
    adapt: Personal | None = None
    """How a client that never trains makes its personal model; `kept` is None. None: unseen clients adapt nothing."""
    reports_loss: bool = False
    """Whether `train` computes the loss that the rule receives; by default that is the loss of the start model."""
    receives: tuple[str, ...] = ()
    """Names of the server's vectors [P] that come with the model: those that the rule sends."""
    sends: tuple[str, ...] = ()
    """Names of the vectors [P] that `train` returns beside the update: those that the rule receives."""
    second_derivatives: bool = False
    """Whether `train` differentiates gradients, as recurrent layers on a GPU cannot."""
    rule: str = ""
    """Name of the aggregation rule that the method is one half of, without which it is refused; empty for any rule."""
    passes: Callable[[int], float] = float
    """Maps the configured epochs to the passes over the training samples that a job costs in virtual time."""
    samples: Callable[[Ints], Ints] | None = None
    """Maps numbers of training samples [K] to those in whose minibatches an epoch of the update goes; None: all."""
    most_steps: int | None = None
    """Most minibatches that an update comes from, as the rule learns; None: those of the configured epochs."""

    def __post_init__(self) -> None:
        arguments.check("a client method's train", self.train, Callable[..., Any] | None)
        arguments.check("a client method's personal", self.personal, Callable[..., Any] | None)
        arguments.check("a client method's adapt", self.adapt, Callable[..., Any] | None)
        arguments.check("a client method's passes", self.passes, Callable[..., Any])
        arguments.check("a client method's samples", self.samples, Callable[..., Any] | None)
        arguments.check("a client method's proximal", self.proximal, float)
        arguments.check("a client method's plain_step_first", self.plain_step_first, bool)
        if not 0 <= self.proximal < math.inf:
            raise ConfigError(f"a client method's proximal: expected a number from 0, found {self.proximal}")
        arguments.check("a client method's offset", self.offset, Offset | None)
        arguments.check("a client method's own", self.own, OwnModel | None)
        if self.offset is not None and self.own is not None:
            raise ConfigError(
                "a client method's own: it cannot be combined with offset, as both keep a vector"
            )
        for name in ("offset", "own"):
            if getattr(self, name) is not None and not self.keeps:
                raise ConfigError(
                    f"a client method's {name}: it keeps a vector from job to job; set keeps=True"
                )
        for name in ("proximal", "plain_step_first", "offset", "own"):
            if getattr(self, name) and self.train is not None:
                raise ConfigError(
                    f"a client method's {name}: it has no effect beside train; use local.sgd there"
                )

    def gradient_factor(self, lr: float) -> float:
        """Return the factor of a minibatch's gradient g in a step `v - lr (factor g + proximal (v - w))`.

        Two steps with the same g, `v - lr g` and from there `v - lr (g + proximal (v - w))`, are one step with factor
        `2 - lr proximal`.
        """
        return 2 - lr * self.proximal if self.plain_step_first else 1.0

    def correction(self, anchor: Tensors, offset: Tensors | None = None) -> Correct | None:
        """Return the function that adds the method's terms to a gradient; None if it has none.

        `anchor` is the received model, `offset` the vector of `self.offset`.
        """
        if not (self.proximal or self.plain_step_first or self.offset):
            return None
        towards = pull(self.proximal, anchor)

        def correct(grads: Tensors, weights: Tensors, lr: float) -> Tensors:
            if self.plain_step_first:
                grads = tuple(grad * self.gradient_factor(lr) for grad in grads)
            if self.proximal:
                grads = towards(grads, weights, lr)
            return grads if offset is None else tuple(g + more for g, more in zip(grads, offset, strict=True))

        return correct

    def finished(
        self, update: Tensor, kept: Tensor, received: Mapping[str, Tensor], rate: float, client: int
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return what a client keeps and sends after a job with an offset; see `Offset.after`.

        Raises RunError, which names the client, if the function returns anything but vectors [P] with these names.
        """
        assert self.offset is not None
        result = self.offset.after(update, kept, received, rate)
        if not isinstance(result, tuple) or len(result) != 2:
            raise RunError(
                f"client {client}: the client method's offset.after must return the vector to keep and a mapping of "
                f"those to send, it returned {type(result).__name__}"
            )
        where, (keeps, sent) = f"client {client}: the client method's offset.after", result
        keeps = checked_vector(keeps, len(update), f"{where} must return first")
        return keeps, _checked_sent(sent, len(update), self.sends, where)


def pull(strength: float, anchor: Tensors) -> Correct:
    """Return the correction `grad + strength * (weights - anchor)`, the gradient of a proximal term."""

    def correct(grads: Tensors, weights: Tensors, lr: float) -> Tensors:
        pairs = zip(grads, weights, anchor, strict=True)
        return tuple(grad.add(weight - start, alpha=strength) for grad, weight, start in pairs)

    return correct


def checked(
    result: Any, parameters: int, client: int, sends: tuple[str, ...] = (), keeps: bool = True
) -> Trained:
    """Return the result of a method's `train` with detached vectors [parameters], and those named in `sends`.

    Raises RunError if the result is not such a `Trained`, or has a vector to keep of a method that keeps none.
    """
    where = f"client {client}: the client method's train"
    if not isinstance(result, Trained):
        raise RunError(f"{where} must return a Trained, it returned {type(result).__name__}")
    end = checked_vector(result.end, parameters, f"{where} must return 'end' as")
    kept = result.kept
    if kept is not None:
        kept = checked_vector(kept, parameters, f"{where} must return 'kept' as")
        if not keeps:
            raise RunError(f"{where} returned 'kept', but the method lacks keeps=True, so it would be lost")
    loss = _number(result.loss, f"{where} must return 'loss'")
    loss_before = _number(result.loss_before, f"{where} must return 'loss_before'")
    sent = _checked_sent(result.sent, parameters, sends, where)
    return replace(result, end=end, kept=kept, loss=loss, loss_before=loss_before, sent=sent)


def _checked_sent(sent: Any, size: int, sends: tuple[str, ...], where: str) -> dict[str, Tensor]:
    if not isinstance(sent, Mapping):
        raise RunError(f"{where} must return 'sent' as a mapping, found {type(sent).__name__}")
    if set(sent) != set(sends):
        raise RunError(f"{where} must return 'sent' with {sorted(sends)}, found {sorted(sent)}")
    must = f"{where} must return 'sent' with"
    return {name: checked_vector(vector, size, f"{must} {name!r} as") for name, vector in sent.items()}


def checked_vector(value: Any, size: int, must: str) -> Tensor:
    """Return `value` detached from autograd. Raises RunError, which begins with `must`, if it is no tensor [size]."""
    shape = getattr(value, "shape", None)
    if shape is None or tuple(shape) != (size,) or not hasattr(value, "detach"):
        fault = f"shape {list(shape)}" if shape and hasattr(value, "detach") else type(value).__name__
        raise RunError(f"{must} a tensor [{size}], found {fault}")
    vector: Tensor = value.detach()
    return vector


def _number(value: Any, must: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise RunError(f"{must} as a number, found {type(value).__name__}") from error
