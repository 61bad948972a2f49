"""Clients that do not play fair: what an attack is, who attacks, and when.

An attack is a plug-in (`fedsim/training/attacks/<name>.py`). It may change the labels that a client trains on, what the
client sends once it has trained, or keep the update from arriving at all. Who attacks is fixed before the run. Whether
a job is attacked depends on (seed, client, nth job), on when it is handed out and on the version that it starts from,
and on nothing that training computes: so it is known for any job at any time, in any process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedsim.common import arguments, plugins
from fedsim.common.errors import ConfigError
from fedsim.common.rng import rng, uniforms
from fedsim.training.job import Cohort, Ints, Report

if TYPE_CHECKING:
    import torch  # it takes seconds; a configuration that names an attack is read without it

    from fedsim.training.client_method import ClientMethod


@dataclass(frozen=True, slots=True)
class Message:
    """What a client is about to send."""

    row: torch.Tensor
    """[P] The update, start - end; an attack returns another tensor and leaves this one as it is."""
    report: Report
    before: torch.Tensor | None
    """[P] The honest update of the client's job before, for attacks that remember; None in its first job."""
    draws: np.random.Generator
    """Of (seed, client, nth job, place of the attack in the configuration)."""

    def with_row(self, row: torch.Tensor) -> Message:
        """Return the message with another update."""
        return replace(self, row=row)

    def with_losses(self, change: Callable[[float], float]) -> Message:
        """Return the message with each reported loss changed; NaN, which says that none was asked for, stays."""

        def told(loss: float) -> float:
            return loss if math.isnan(loss) else change(loss)

        said = self.report
        changed = replace(
            said,
            loss_before=told(said.loss_before),
            loss_train=told(said.loss_train),
            loss_rms=told(said.loss_rms),
            batch_rms=told(said.batch_rms),
            loss_after=told(said.loss_after),
        )
        return replace(self, report=changed)


@dataclass(frozen=True, slots=True)
class Attack:
    """What an attacker does in a job; what is not given it does honestly."""

    send: Callable[[Message], Message] | None = None
    """Changes what is sent, after training."""
    labels: Callable[[torch.Tensor, int], torch.Tensor] | None = None
    """From labels [N] and the number of classes to those that the attacker trains on."""
    remembers: bool = False
    """Whether `send` looks at `message.before`."""
    drops: bool = False
    """Whether the update never arrives."""

    def __post_init__(self) -> None:
        for name in ("send", "labels"):
            arguments.check(f"an attack's {name}", getattr(self, name), Callable[..., Any] | None)


@dataclass(frozen=True, slots=True)
class Adversary:
    """One `[[adversary]]` table as plain values: an attack, who commits it and when."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    clients: tuple[int, ...] | None = None
    """Who; None while a `share` of the clients is not drawn yet."""
    share: float | None = None
    after_us: int = 0
    until_us: int | None = None
    steps: tuple[int, int] | None = None
    """First and last version that attacked jobs start from, the last exclusive."""
    chance: float = 1.0
    _among: Ints = field(init=False, repr=False, compare=False)
    """`clients` in ascending order: to look for one of many takes microseconds, in a tuple milliseconds."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_among", np.unique(np.array(self.clients or (), dtype=np.int64)))

    def attack(self) -> Attack:
        """Build the plug-in."""
        made: Attack = plugins.build("adversary", self.name, self.options)
        return made

    def among(self, n_clients: int, seed: int) -> Adversary:
        """Return the same with its clients drawn: the first of one order of all clients, so that larger shares hold
        smaller ones.
        """
        if self.share is None:
            return self
        order = rng(seed, "adversary").permutation(n_clients)
        drawn = np.sort(order[: max(1, round(self.share * n_clients))])
        return replace(self, clients=tuple(drawn.tolist()), share=None)

    def strikes(self, seed: int, cohort: Cohort) -> NDArray[np.bool_]:
        """Return [k] which jobs are attacked."""
        first, end = (
            np.searchsorted(self._among, cohort.clients, "left"),
            np.searchsorted(self._among, cohort.clients, "right"),
        )
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
        """Return those of a run's adversaries that drop updates, if any do."""
        some = tuple(a for a in adversaries if a.attack().drops)
        return Droppers(some, seed) if some else None

    def drop(self, cohort: Cohort) -> NDArray[np.bool_]:
        """Return [k] of which jobs the update never arrives."""
        return np.asarray(np.any([a.strikes(self.seed, cohort) for a in self.adversaries], axis=0))


def rememberers(adversaries: Sequence[Adversary]) -> set[int]:
    """Return the clients that remember their updates, because an attack of theirs looks at them."""
    return {client for a in adversaries if a.attack().remembers for client in a.clients or ()}


def remembering(method: ClientMethod, name: str, adversaries: Sequence[Adversary]) -> ClientMethod:
    """Return the client method `name`, with memory from job to job if an attack needs that. Raises ConfigError."""
    attack = next((a.name for a in adversaries if a.attack().remembers), None)
    if attack is None:
        return method
    if method.keeps or method.personal is not None:
        raise ConfigError(
            f"adversary {attack!r}: needs the memory that the client method {name!r} uses itself: take 'plain' or "
            "'fedprox'"
        )
    return replace(method, keeps=True)


def attacked(
    adversaries: Sequence[Adversary], seed: int, jobs: Mapping[str, Any]
) -> dict[str, NDArray[np.bool_]]:
    """Return which jobs of a finished run were attacked, [J] for each of its adversaries.

    One adversary goes by its name, such as `scale`; of several each has its place before the name, such as `0 scale`.

    Args:
        adversaries: those of the run, with their clients drawn: `RunConfig.adversaries()`.
        seed: the run's.
        jobs: the columns `job`, `client`, `version`, `dispatch_us` of its whole table of jobs, as a frame or arrays.
    """
    ids, clients, versions, times = (
        np.asarray(jobs[name], dtype=np.int64) for name in ("job", "client", "version", "dispatch_us")
    )
    cohort = Cohort(ids, clients, nth_jobs(ids, clients), versions, np.ones(len(ids)), times)
    names = [a.name if len(adversaries) == 1 else f"{i} {a.name}" for i, a in enumerate(adversaries)]
    return {name: a.strikes(seed, cohort) for name, a in zip(names, adversaries, strict=True)}


def nth_jobs(ids: Ints, clients: Ints) -> Ints:
    """Return [J] how many jobs each job's client was given before."""
    order = np.lexsort((ids, clients))
    ordered = clients[order]
    first = np.flatnonzero(np.diff(ordered, prepend=-1))
    sizes = np.diff(np.append(first, len(ids)))
    nths = np.empty(len(ids), dtype=np.int64)
    nths[order] = np.arange(len(ids)) - np.repeat(first, sizes)
    return nths
