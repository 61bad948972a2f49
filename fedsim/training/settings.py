"""Settings of local training as plain values, which a configuration yields and worker processes receive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from fedsim import plugins
from fedsim.common.errors import ConfigError
from fedsim.training.attack import Adversary
from fedsim.training.augmentation import Augment
from fedsim.training.client_method import ClientMethod
from fedsim.training.losses import Loss
from fedsim.training.precision import Precision

Mode = Literal["loop", "vmap", "dense"]
"""A batching mode: how a group of clients trains; see `fedsim.training.modes`."""


@dataclass(frozen=True, slots=True)
class LocalSGD:
    """How a client trains."""

    epochs: int = 1
    batch_size: int | None = 32
    """None: the whole local training set."""
    lr: float = 0.1
    lr_decay: float = 1.0
    momentum: float = 0.0
    weight_decay: float = 0.0
    augment: Augment | None = None
    loss_samples: int | None = None
    """Most samples on which a client measures the loss of a received model. None: the whole local training set."""
    loss: Loss = "cross_entropy"
    """The loss of a sample, which training minimizes and evaluation reports."""
    precision: Precision = "float32"
    """Numeric precision of training; see `fedsim.training.precision`."""

    def rate(self, version: int) -> float:
        """Return the learning rate of a job that starts from this model version."""
        return self.lr * self.lr_decay**version


@dataclass(frozen=True, slots=True)
class WorkbenchSpec:
    """Everything that a Workbench needs besides the data, as plain values that another process can receive."""

    model: str
    model_options: Mapping[str, Any]
    in_shape: tuple[int, ...]
    n_classes: int
    sgd: LocalSGD
    seed: int
    losses: bool
    """Whether the aggregation rule asks for the loss before training."""
    after: bool = False
    """Whether the aggregation rule asks for loss and accuracy after training."""
    device: str = "cpu"
    client: str = "plain"
    """Name of the client method."""
    client_options: Mapping[str, Any] = field(default_factory=dict)
    some: tuple[int, ...] | None = None
    """The clients of partial evaluations; None if there are none."""
    mode: Mode | Literal["auto"] = "auto"
    """The batching mode; see `fedsim.training.modes`."""
    adversaries: tuple[Adversary, ...] = ()
    attack_seed: int | None = None
    """Seed of what attacks draw; None: `seed`."""
    longest: float | None = None
    """Norm above which the server leaves an update out; None: it leaves out none for its length."""

    def method(self) -> ClientMethod:
        """Build the client method, which keeps a vector from job to job also if an attack needs it.

        Raises ConfigError if an attack needs the memory that the method uses itself.
        """
        method: ClientMethod = plugins.build("client", self.client, self.client_options)
        attack = next((a.name for a in self.adversaries if a.attack().remembers), None)
        if attack is None:
            return method
        if method.keeps or method.personal is not None:
            raise ConfigError(
                f"adversary {attack!r}: needs the memory that the client method {self.client!r} uses itself: use "
                "'plain' or 'fedprox'"
            )
        return replace(method, keeps=True)
