"""How clients train, as plain values: what a configuration says, and what other processes are told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from fedsim.common import plugins
from fedsim.training.attack import Adversary, remembering
from fedsim.training.augmentation import Augment
from fedsim.training.client_method import ClientMethod
from fedsim.training.precision import Precision

Mode = Literal["loop", "vmap", "dense"]
"""How a group of clients trains; see `fedsim.training.modes`."""


@dataclass(frozen=True, slots=True)
class LocalSGD:
    """How a client trains. `lr` decays by `lr_decay` for each server step that the job's start model is old."""

    epochs: int = 1
    batch_size: int | None = 32
    """None: the whole local training set."""
    lr: float = 0.1
    lr_decay: float = 1.0
    momentum: float = 0.0
    weight_decay: float = 0.0
    augment: Augment | None = None
    loss_samples: int | None = None
    """Most samples on which a client takes the loss of a received model. None: the whole local training set."""
    precision: Precision = "float32"
    """How precisely clients compute; see `fedsim.training.precision`."""


@dataclass(frozen=True, slots=True)
class WorkbenchSpec:
    """What a Workbench is made of besides the data; plain values, so that it can be built in another process."""

    model: str
    model_options: Mapping[str, Any]
    in_shape: tuple[int, ...]
    n_classes: int
    sgd: LocalSGD
    seed: int
    losses: bool
    """Whether the rule asks for the loss before training."""
    after: bool = False
    """Whether the rule asks for loss and accuracy after training."""
    device: str = "cpu"
    client: str = "plain"
    """Name of the client-side method."""
    client_options: Mapping[str, Any] = field(default_factory=dict)
    some: tuple[int, ...] | None = None
    """Clients that are evaluated alone at times."""
    mode: Mode | Literal["auto"] = "auto"
    """How groups of clients train; see `fedsim.training.modes`."""
    adversaries: tuple[Adversary, ...] = ()
    """Clients that do not play fair."""

    def method(self) -> ClientMethod:
        """Build the client-side method. Raises ConfigError if an attack needs the memory that it uses itself."""
        made: ClientMethod = plugins.build("client", self.client, self.client_options)
        return remembering(made, self.client, self.adversaries)
