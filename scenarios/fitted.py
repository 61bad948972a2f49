"""A world like an observed one, with the lengths, hours of the day, habits and speeds that `fedsim trace fit` found.

Clients are online and offline in turn. A spell takes F L: L drawn from the law, and F = exp(spread Z) the client's own
factor, Z standard normal. A clock measures it that runs `leaving[h]` (while online) or `coming[h]` (while offline)
times as fast in the hour h after the world's start, and again every day. Where the hours differ, clients live for
some days before the world begins; they start in their stationary law.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

import pydantic
from pydantic import Field

from fedsim.common.errors import ConfigError
from fedsim.common.option_requirements import Unless
from fedsim.common.units import DAY_US, HOUR_US
from fedsim.scenarios.processes.devices import Devices, Positive, Speed, Speeds
from fedsim.scenarios.processes.hazards import HOURS, Day, Hazard, Remainder
from fedsim.scenarios.processes.laws import Options
from fedsim.worlds.scenario import Clock, Life, Me, Scenario, duration_option, number_option

LONGEST_WARM_UP_DAYS = 7
Correlation = Annotated[float, Field(ge=-1, le=1)]


class Length(Options):
    """How long spells last."""

    law: Literal["exponential", "weibull", "gamma", "lognormal", "constant"] = "exponential"
    """Law of the lengths; "constant" is always the mean."""
    mean: str | float = "2h"
    """Mean of a typical client, by the clock of the hours."""
    shape: Annotated[float, Field(gt=0, le=1000), Unless("law", "exponential", "constant")] = 1.0
    """Exponent of a Weibull, k of a gamma, sigma of the logarithm of a log-normal."""
    spread: Annotated[float, Field(ge=0, le=5)] = 0.0
    """Standard deviation of the logarithm of clients' own factors on their lengths."""

    def hours(self, name: str) -> Hazard:
        """Return the law of the option `name`. Raises ConfigError for a shape without a finite mean."""
        law = Hazard(self.law, duration_option(f"{name}.mean", self.mean) / HOUR_US, self.shape)
        try:
            sound = 0 < law.scale_h < math.inf
        except OverflowError:
            sound = False
        if not sound:
            raise ConfigError(
                f"scenario option '{name}.shape': a {self.law} law of shape {self.shape:g} has too long a tail for"
                " numbers of 64 bits"
            )
        return law


class FittedDevices(Devices):
    """Log-normal speeds as in `Devices`, correlated, of the kinds that the observed world has."""

    modelled: tuple[Speed, ...] = ("compute", "downlink", "uplink")
    """Kinds that are written down; a phase of any other kind takes no time."""
    compute_downlink: Correlation = 0.0
    """Correlation of the logarithms of seconds per sample and download speed."""
    compute_uplink: Correlation = 0.0
    """Correlation of the logarithms of seconds per sample and upload speed."""
    downlink_uplink: Correlation = 0.0
    """Correlation of the logarithms of download and upload speed."""

    @pydantic.model_validator(mode="after")
    def _possible(self) -> FittedDevices:
        a, b, c = self.compute_downlink, self.compute_uplink, self.downlink_uplink
        if 1 + 2 * a * b * c - a * a - b * b - c * c < -1e-9:
            raise ValueError(f"no three quantities have the correlations {a:g}, {b:g} and {c:g}")
        return self

    def describe(self, env: Clock, me: Me) -> None:
        """Give a client its speeds, and start the process of its faults."""
        self.speeds(me).write(me, self.modelled)
        self.start_faults(env, me)

    def speeds(self, me: Me) -> Speeds:
        """Draw a client's speeds and write nothing."""
        a, b, c = self.compute_downlink, self.compute_uplink, self.downlink_uplink
        first, second, third = me.stream("device").standard_normal(3).tolist()
        # The Cholesky factor of the three correlations, written out.
        rest = math.sqrt(max(1 - a * a, 0.0))
        lower = (c - a * b) / rest if rest > 1e-9 else 0.0
        down = a * first + rest * second
        up = b * first + lower * second + math.sqrt(max(1 - b * b - lower * lower, 0.0)) * third
        return Speeds(
            compute=self.seconds_per_sample * math.exp(self.compute_sigma * first),
            downlink=self.downlink_bytes_per_s * math.exp(self.downlink_sigma * down),
            uplink=self.uplink_bytes_per_s * math.exp(self.uplink_sigma * up),
        )


@dataclass(frozen=True, slots=True)
class Habits:
    """The laws of all clients: those of the two kinds of spells, their clocks, and how clients differ."""

    on: Hazard
    off: Hazard
    on_rest: Remainder
    off_rest: Remainder
    leaving: Day
    coming: Day
    on_spread: float
    off_spread: float
    correlation: float

    @property
    def warm_up_us(self) -> int:
        """How long clients live before the world begins: whole days, or 0 if all hours are alike."""
        if not (self.leaving.multipliers or self.coming.multipliers):
            return 0
        days = math.ceil(min(3 * (self.on.mean_h + self.off.mean_h) / HOURS, LONGEST_WARM_UP_DAYS))
        return max(1, days) * DAY_US

    def spells(self, me: Me) -> Iterator[tuple[int, int]]:
        """Yield a client's spells online, [start, end) in microseconds, without end."""
        draw, now = me.rng, -self.warm_up_us
        on_factor, off_factor = self._factors(me)
        on_h, off_h = on_factor * self.on.mean_h, off_factor * self.off.mean_h
        if draw.random() * (on_h + off_h) < on_h:
            end = self.leaving.after(now, on_factor * self.on_rest.at(draw.random()))
            yield now, end
            now = self.coming.after(end, off_factor * float(self.off.inverse(draw.exponential())))
        else:
            now = self.coming.after(now, off_factor * self.off_rest.at(draw.random()))
        while True:
            end = self.leaving.after(now, on_factor * float(self.on.inverse(draw.exponential())))
            yield now, end
            now = self.coming.after(end, off_factor * float(self.off.inverse(draw.exponential())))

    def _factors(self, me: Me) -> tuple[float, float]:
        first, second = me.stream("habit").standard_normal(2).tolist()
        mixed = self.correlation * first + math.sqrt(1 - self.correlation**2) * second
        return math.exp(self.on_spread * first), math.exp(self.off_spread * mixed)


def fitted(
    *,
    on: Length = Length(),  # noqa: B008 - frozen
    off: Length = Length(mean="4h"),  # noqa: B008
    leaving: tuple[Positive, ...] = (),
    coming: tuple[Positive, ...] = (),
    spread_correlation: float = 0.0,
    always: float = 0.0,
    never: float = 0.0,
    devices: FittedDevices = FittedDevices(),  # noqa: B008
) -> Scenario:
    """Clients whose lengths, hours, habits and speeds were fitted to a trace by `fedsim trace fit`.

    `on` and `off` are the laws of the lengths of spells online and offline.

    Args:
        leaving: 24 multipliers, one for each hour after the world's start, and again every day. In an hour with the
            multiplier m, spells online pass m times as fast. Empty: all hours are alike.
        coming: the same for spells offline.
        spread_correlation: correlation of the logarithms of a client's two factors, on its lengths online and on those
            offline; -1 to 1.
        always: share of clients that are always online, 0 to 1.
        never: share of clients that are never online; together with `always` at most 1.
    """
    days = _day("leaving", leaving), _day("coming", coming)
    number_option("spread_correlation", spread_correlation, -1, 1)
    number_option("always", always, 0, 1)
    number_option("never", never, 0, 1 - always + 1e-9)
    laws = on.hours("on"), off.hours("off")
    rests = laws[0].remainder(), laws[1].remainder()
    habits = Habits(*laws, *rests, *days, on.spread, off.spread, spread_correlation)

    def client(env: Clock, me: Me) -> Life:
        devices.describe(env, me)
        fate = me.stream("fate").random()
        if fate < always:
            me.online(0, me.horizon_us)
        if fate < always + never:
            return
        for start, end in habits.spells(me):
            if start > env.now:
                yield env.timeout(start - env.now)
            if end > 0:
                me.online(max(start, 0), end)

    return Scenario(client)


def _day(name: str, multipliers: tuple[float, ...]) -> Day:
    if len(multipliers) not in (0, HOURS):
        raise ConfigError(
            f"scenario option {name!r}: expected {HOURS} numbers or none, found {len(multipliers)}"
        )
    return Day(multipliers)
