"""Adversarial clients: what an attack is, which clients attack, and when.

An attack is a plug-in (`fedsim/training/attacks/<name>.py`). It may change the labels that a client trains on, change
what the client sends after training, or keep the update from arriving. The attacking clients are fixed before the run.
Whether a job is attacked depends on (seed, client, nth job), on its dispatch time and on its model version, never on
results of training. Any process can therefore compute it for any job at any time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedsim import plugins
from fedsim.common import arguments
from fedsim.common.arrays import Ints
from fedsim.common.rng import rng, uniforms
from fedsim.training.job import Cohort, Report, nth_jobs

if TYPE_CHECKING:
    from torch import Tensor  # slow to import, and not needed to read a configuration that names an attack

Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Message:
    """The update and the report that a client is about to send."""

    row: Tensor
    """[P] The update, start - end. An attack must not change it in place; it returns another tensor."""
    report: Report
    before: Tensor | None
    """[P] The honest update of the client's previous job, for attacks that remember; None in its first job."""
    draws: np.random.Generator
    """Seeded with (seed, client, nth job, position of the attack in the configuration)."""

    def with_row(self, row: Tensor) -> Message:
        """Return the message with another update."""
        return replace(self, row=row)

    def with_losses(self, change: Callable[[float], float]) -> Message:
        """Return the message with `change` applied to each reported loss; losses that are NaN (not asked for) stay."""
        names = ("loss_before", "loss_train", "loss_rms", "batch_rms", "loss_after")
        losses = {name: getattr(self.report, name) for name in names}
        changed: dict[str, Any] = {k: v if math.isnan(v) else change(v) for k, v in losses.items()}
        return replace(self, report=replace(self.report, **changed))


@dataclass(frozen=True, slots=True)
class Attack:
    """What an attacker does in a job. It does honestly whatever the attack leaves at its default."""

    send: Callable[[Message], Message] | None = None
    """Changes the message after training."""
    labels: Callable[[Tensor, int], Tensor] | None = None
    """Maps the true labels [N] and the number of classes to the labels [N] that the attacker trains on."""
    remembers: bool = False
    """Whether `send` reads `message.before`."""
    drops: bool = False
    """Whether the update never arrives."""

    def __post_init__(self) -> None:
        for name in ("send", "labels"):
            arguments.check(f"an attack's {name}", getattr(self, name), Callable[..., Any] | None)


@dataclass(frozen=True, slots=True)
class Adversary:
    """One `[[adversary]]` table as plain values: an attack, the clients that carry it out, and when."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    clients: tuple[int, ...] | None = None
    """The attacking clients; None until `with_clients_drawn` draws the `share`."""
    share: float | None = None
    after_us: int = 0
    until_us: int | None = None
    steps: tuple[int, int] | None = None
    """First and last model version that attacked jobs start from, the last exclusive."""
    chance: float = 1.0
    _sorted_clients: Ints = field(init=False, repr=False, compare=False)
    """`clients` in ascending order, for a binary search in `strikes`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_sorted_clients", np.unique(np.array(self.clients or (), dtype=np.int64)))

    def attack(self) -> Attack:
        """Build the plug-in."""
        attack: Attack = plugins.build("adversary", self.name, self.options)
        return attack

    def with_clients_drawn(self, n_clients: int, seed: int) -> Adversary:
        """Return the adversary with its `share` of clients drawn.

        The clients are the first of one permutation, so that a larger share contains every smaller one.
        """
        if self.share is None:
            return self
        order = rng(seed, "adversary").permutation(n_clients)
        drawn = np.sort(order[: max(1, round(self.share * n_clients))])
        return replace(self, clients=tuple(drawn.tolist()), share=None)

    def strikes(self, seed: int, cohort: Cohort) -> Flags:
        """Return [k] which jobs are attacked."""
        first = np.searchsorted(self._sorted_clients, cohort.clients, "left")
        end = np.searchsorted(self._sorted_clients, cohort.clients, "right")
        struck = (first < end) & (cohort.dispatch_us >= self.after_us)
        if self.until_us is not None:
            struck &= cohort.dispatch_us < self.until_us
        if self.steps is not None:
            struck &= (cohort.versions >= self.steps[0]) & (cohort.versions < self.steps[1])
        if self.chance < 1:
            struck &= uniforms(seed, "adversary", cohort.clients, cohort.nths) < self.chance
        return np.asarray(struck)


@dataclass(frozen=True, slots=True)
class Droppers:
    """The attackers of a run whose updates never arrive."""

    adversaries: tuple[Adversary, ...]
    seed: int

    @staticmethod
    def among(adversaries: Sequence[Adversary], seed: int) -> Droppers | None:
        """Return the adversaries that drop updates, or None if none does."""
        droppers = tuple(a for a in adversaries if a.attack().drops)
        return Droppers(droppers, seed) if droppers else None

    def drop(self, cohort: Cohort) -> Flags:
        """Return [k] which jobs' updates never arrive."""
        return np.asarray(np.any([a.strikes(self.seed, cohort) for a in self.adversaries], axis=0))


def rememberers(adversaries: Sequence[Adversary]) -> set[int]:
    """Return the clients that must remember their updates, because one of their attacks reads them."""
    return {client for a in adversaries if a.attack().remembers for client in a.clients or ()}


def attacked(adversaries: Sequence[Adversary], seed: int, jobs: Mapping[str, Any]) -> dict[str, Flags]:
    """Return which jobs of a finished run were attacked, [J] for each of its adversaries.

    The key is the adversary's name, such as `scale`. With several adversaries its position precedes the name, such as
    `0 scale`.

    Args:
        adversaries: the run's adversaries with their clients drawn: `RunConfig.adversaries()`.
        seed: the run's `seeds.world`.
        jobs: the columns `job`, `client`, `version`, `dispatch_us` of the whole jobs table, as a frame or arrays.
    """
    ids, clients, versions, times = (
        np.asarray(jobs[name], dtype=np.int64) for name in ("job", "client", "version", "dispatch_us")
    )
    cohort = Cohort(ids, clients, nth_jobs(ids, clients), versions, np.ones(len(ids)), times)
    names = [a.name if len(adversaries) == 1 else f"{i} {a.name}" for i, a in enumerate(adversaries)]
    return {name: a.strikes(seed, cohort) for name, a in zip(names, adversaries, strict=True)}
