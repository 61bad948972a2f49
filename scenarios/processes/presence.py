"""Sessions of clients, for scenarios that model something else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from fedsim.common.option_requirements import Unless
from fedsim.scenarios.processes.laws import exponential_us
from fedsim.worlds.scenario import Clock, Life, Me, duration_option

MeanOn = Annotated[str | float, Unless("mean_off", 0, "0", "0s", "0m", "0min", "0h", "0d")]
"""The option `mean_on` of scenarios in which `mean_off = 0` keeps all clients online."""


class Presence:
    """Keeps a client online while it has at least one reason to be online and no block."""

    def __init__(self, me: Me) -> None:
        self._me, self._reasons, self._blocks = me, 0, 0

    def come(self, now_us: int) -> None:
        """Add a reason to be online."""
        self._reasons += 1
        self._update(now_us)

    def leave(self, now_us: int) -> None:
        """Remove a reason to be online."""
        self._reasons -= 1
        self._update(now_us)

    def block(self, now_us: int) -> None:
        """Add a block: the client is offline whatever its reasons."""
        self._blocks += 1
        self._update(now_us)

    def unblock(self, now_us: int) -> None:
        """Remove a block."""
        self._blocks -= 1
        self._update(now_us)

    def _update(self, now_us: int) -> None:
        change = self._me.begin if self._reasons and not self._blocks else self._me.end
        change("online", now_us)


@dataclass(frozen=True, slots=True)
class Sessions:
    """Exponential times online and offline in turn, with these means; `off_us = 0` means online all the time."""

    on_us: int
    off_us: int

    @staticmethod
    def of(mean_on: str | float, mean_off: str | float) -> Sessions:
        """Return the sessions of the options `mean_on` and `mean_off`. Raises ConfigError that names a wrong one."""
        return Sessions(
            duration_option("mean_on", mean_on), duration_option("mean_off", mean_off, least_us=0)
        )

    def run(self, env: Clock, presence: Presence, rng: np.random.Generator, *, here: bool = False) -> Life:
        """Come and go for ever: in the stationary law from the start, or online first if `here`."""
        if self.off_us == 0:
            presence.come(env.now)
            return
        if not here and rng.random() >= self.on_us / (self.on_us + self.off_us):
            yield env.timeout(exponential_us(rng, self.off_us))
        while True:
            presence.come(env.now)
            yield env.timeout(exponential_us(rng, self.on_us))
            presence.leave(env.now)
            yield env.timeout(exponential_us(rng, self.off_us))
