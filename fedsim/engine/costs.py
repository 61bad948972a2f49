"""The cost of a job in virtual time, with jitter and losses by chance: a pure function of (seed, client, nth job).

Compute time is the samples passed over, times the client's seconds per sample, times the model's operations relative
to those of the model that the seconds were measured with. Transfer time is bytes over the client's bandwidth, which
changes over time. `Formula` lists the formulas of two other simulators as alternatives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedsim.common.arrays import Floats, Ints
from fedsim.common.errors import ConfigError, closest
from fedsim.common.rng import uniforms
from fedsim.worlds.job_outcomes import PHASES, Work

Formula = Literal["fedsim", "fedscale", "flash"]
"""fedsim: epochs x samples. fedscale: batch size x a fixed number of steps; a kbit of a payload has 1024 bits, one of a
bandwidth 1000. flash: epochs x whole minibatches of at most `most_samples` samples; a kB going down has 1024 bytes."""

_BINARY = 1000 / 1024
_PARTS = ("downlink", "compute", "uplink")


@dataclass(frozen=True, slots=True)
class Jitter:
    """Variation of a phase's time from job to job: relative spread of `downlink`, `compute` and `uplink`.

    `lognormal`: time is multiplied by exp(s Z). `normal`: the speed of a transfer, or the time of a computation, is
    multiplied by a normal number of mean 1 and standard deviation s, truncated to positive values (FLASH draws again
    while it is negative).
    """

    law: Literal["lognormal", "normal"] = "lognormal"
    spread: Mapping[str, Floats | float] = field(default_factory=dict)

    def slowness(
        self, seed: int, clients: Ints, nths: Ints
    ) -> tuple[Floats | float, Floats | float, Floats | float]:
        """Return the factors on the time of download, computation and upload."""
        down, compute, up = (self._factor(part, seed, clients, nths) for part in _PARTS)
        return down, compute, up

    def _factor(self, part: str, seed: int, clients: Ints, nths: Ints) -> Floats | float:
        if part not in self.spread:
            return 1.0
        from scipy.special import ndtr, ndtri  # slow to import, and most runs have no jitter

        spread = np.asarray(self.spread[part], dtype=np.float64)
        if spread.ndim:
            spread = spread[clients]
        u = uniforms(seed, f"jitter {part}", clients, nths)
        if self.law == "lognormal":
            return np.asarray(np.exp(spread * ndtri(u)))
        with np.errstate(divide="ignore"):
            below = ndtr(-1.0 / spread)
        factor = np.maximum(1.0 + spread * ndtri(below + u * (1.0 - below)), 1e-6)
        return np.asarray(factor if part == "compute" else 1.0 / factor)


@dataclass(frozen=True, slots=True)
class Completeness:
    """The share of its local work that a client does.

    - `all`: the whole job, a share of 1.
    - `epochs`: with probability `chance`, a whole number of epochs uniform on [low, high] (FedProx: low 1, high E;
      FedNova: 2 to 5). With `fixed`, one draw per client instead of one per job.
    - `PDU`, `FSU`, `ADU`, `ASU`: FLGo's modes, as its code behaves. PDU: at each job, with probability `chance`, the
      client's steps become uniform on [0, steps), at least 1, for all later jobs too. FSU: one draw per client, steps
      x U(0, 1). ADU: at each job, epochs uniform on the integers from min(low, 1) to `high` - 1. ASU: the same, one
      draw per client.
    """

    mode: Literal["all", "epochs", "PDU", "FSU", "ADU", "ASU"] = "all"
    chance: float = 1.0
    low: int = 1
    high: int = 1
    fixed: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.chance <= 1:
            raise ValueError(f"chance: expected a share from 0 to 1, found {self.chance}")
        if self.mode == "epochs" and not 1 <= self.low <= self.high:
            raise ValueError(f"expected 1 <= low <= high, found low = {self.low} and high = {self.high}")
        if self.mode in ("ADU", "ASU") and self.high <= min(self.low, 1):
            raise ValueError(
                f"mode {self.mode!r} draws epochs from min(low, 1) to high - 1: expected high of at least "
                f"{min(self.low, 1) + 1}, found {self.high} (FLGo's own default of 1 fails as well)"
            )

    def shares(self, seed: int, clients: Ints, nths: Ints, steps: Ints, epochs: int) -> Floats:
        """Return the share [k] that each job does of its local `steps` [k], which take `epochs` epochs."""
        once = np.zeros_like(nths)
        if self.mode == "all":
            return np.ones(len(clients))
        if self.mode == "PDU":
            return self._shrunk(seed, clients, nths, steps) / steps
        if self.mode == "epochs":
            nth = once if self.fixed else nths
            drawn = self.low + np.floor(uniforms(seed, "epochs", clients, nth) * (self.high - self.low + 1))
            chosen = uniforms(seed, "epochs chance", clients, nth) < self.chance
            return np.where(chosen, drawn / epochs, 1.0)
        if self.mode == "FSU":
            return np.maximum(1, np.floor(steps * uniforms(seed, "completeness", clients, once))) / steps
        low = min(self.low, 1)
        u = uniforms(seed, "completeness", clients, nths if self.mode == "ADU" else once)
        return np.asarray(np.maximum(low + np.floor(u * (self.high - low)), 1) / epochs)

    def _shrunk(self, seed: int, clients: Ints, nths: Ints, steps: Ints) -> Floats:
        """Return the steps [k] left to each client by PDU, which shrinks them at its jobs up to `nths`."""
        left = steps.astype(np.float64)
        for nth in range(int(nths.max(initial=-1)) + 1):
            if (left <= 1).all() or not self.chance:
                break
            now = np.full_like(nths, nth)
            hit = (nth <= nths) & (uniforms(seed, "completeness chance", clients, now) < self.chance)
            drawn = np.maximum(1, np.floor(uniforms(seed, "completeness", clients, now) * left))
            left = np.where(hit, drawn, left)
        return left


@dataclass(frozen=True, slots=True)
class Chance:
    """Losses by chance, on top of those that the world causes.

    `same`: each job is lost with probability `chance` (FLGo's HOMO). `uniform`: a share `chance` of the clients each
    draw a loss probability, uniform on [0, 1]; the others lose no job (FLGo's UNI). The job is lost at a point drawn
    uniformly from the phase `within`, or from its whole duration (`any`).
    """

    chance: float = 0.0
    law: Literal["same", "uniform"] = "same"
    within: Literal["any", "download", "compute", "upload"] = "any"

    def lost_at(self, seed: int, clients: Ints, nths: Ints) -> Floats:
        """Return [k] the share of the phase or job after which each job is lost, infinity if it is not lost."""
        probability = np.full(len(clients), self.chance)
        if self.law == "uniform":
            once = np.zeros_like(nths)
            prone = uniforms(seed, "loss prone", clients, once) < self.chance
            probability = np.where(prone, uniforms(seed, "loss probability", clients, once), 0.0)
        lost = uniforms(seed, "loss", clients, nths) < probability
        return np.where(lost, uniforms(seed, "loss point", clients, nths), np.inf)


@dataclass(frozen=True, slots=True)
class Costs:
    """The work of the jobs of all K clients."""

    work: Work
    """Arrays [K]: one whole job of each client."""
    steps: Ints
    """[K] Local steps of a whole job, as configured."""
    epochs: int
    seed: int
    jitter: Jitter = Jitter()
    completeness: Completeness = Completeness()
    chance: Chance = Chance()
    most_steps: int | None = None
    """Most local steps that the client method takes, however many are configured."""

    @property
    def plain(self) -> bool:
        """Whether all jobs of a client cost the same."""
        return not (self.jitter.spread or self.chance.chance) and self.completeness.mode == "all"

    def shares(self, clients: Ints, nths: Ints) -> Floats:
        """Return [k] the share of its local steps that each client does in job number `nths` [k], from 0."""
        return self.completeness.shares(self.seed, clients, nths, self.steps[clients], self.epochs)

    def steps_done(self, clients: Ints, shares: Floats) -> Ints:
        """Return [k] the local steps of jobs that do these shares of their steps: rounded down, and at least one."""
        whole = self.steps[clients]
        done = np.minimum(
            np.floor(shares * whole + 1e-9), np.ceil(shares * self.epochs) * (whole // self.epochs)
        )
        steps = np.where(shares == 1.0, whole, np.maximum(done, 1)).astype(np.int64)
        return steps if self.most_steps is None else np.minimum(steps, self.most_steps)

    def of(self, clients: Ints, nths: Ints, shares: Floats) -> Work:
        """Return the work of one job for each client; `shares` [k] are of its local steps."""
        work, jitter = self.work, self.jitter.slowness(self.seed, clients, nths)
        slow = [np.asarray(a, dtype=np.float64) * b for a, b in zip(work.slowness, jitter, strict=True)]
        return Work(
            download_bytes=work.download_bytes[clients],
            samples=work.samples[clients] * shares,
            upload_bytes=work.upload_bytes[clients],
            slowness=(slow[0], slow[1], slow[2]),
            lost_at=self.chance.lost_at(self.seed, clients, nths) if self.chance.chance else np.inf,
            lost_in=PHASES.index(self.chance.within) if self.chance.within != "any" else 0,
        )


@dataclass(frozen=True, slots=True)
class WorkFormula:
    """How the work of a whole job follows from a client's samples."""

    name: Formula = "fedsim"
    scale: float = 1.0
    """Factor on the samples."""
    fedscale_steps: int = 20
    """Local steps in the formula `fedscale`."""
    flash_most_samples: int | None = None
    """Upper limit of the samples in the formula `flash`."""

    def work(
        self, sizes: Ints, payload_bytes: int, passes: float, epochs: int, batch_size: int | None
    ) -> Work:
        """Return the work of one whole job of each client with `sizes` [K] training samples.

        Compute time covers `passes` over the samples; an epoch of plain training is one.
        """
        payload = np.full(len(sizes), payload_bytes, dtype=np.int64)
        if self.name == "fedsim":
            return Work(payload, sizes * passes * self.scale, payload)
        extra, batch = passes / epochs, np.minimum(sizes, batch_size or sizes)
        if self.name == "fedscale":
            samples = (batch_size or sizes) * self.fedscale_steps * extra * self.scale
            samples = np.broadcast_to(samples, len(sizes))
            return Work(payload, samples, payload, slowness=(_BINARY, 1.0, _BINARY))
        most = self.flash_most_samples
        used = sizes if most is None else np.minimum(sizes, most)
        samples = np.ceil(used / np.maximum(batch, 1)) * (batch_size or used) * passes * self.scale
        return Work(payload, samples, payload, slowness=(_BINARY, 1.0, 1.0))


def trace_spread(about: Mapping[str, NDArray[Any]], part: str) -> Floats:
    """Return [K] the relative spread in the trace's client column `<part>_cv`. Raises ConfigError if it is missing.

    Values that are negative or not finite count as 0.
    """
    name = f"{part}_cv"
    if name not in about:
        raise ConfigError(
            f"cost.jitter.{part}: 'trace' needs a trace with the client column {name!r}{closest(name, about)}"
        )
    values = np.asarray(about[name], dtype=np.float64)
    return np.where(np.isfinite(values) & (values >= 0), values, 0.0)
