"""Phones with a battery: plugged in at night, drained by day, online only when sufficiently charged.

The charge c in [0, 1] is a SimPy Container and changes linearly between events:

    plugged in   dc/dt =  1 / charge_time      up to 1
    in use       dc/dt = -1 / use_life         down to 0
    idle         dc/dt = -1 / idle_life        down to 0

A phone is plugged in from `plug_h` to `unplug_h` o'clock every night (shifted by its own habit, normal with deviation
`habit_shift`) except for nights that its owner forgets. Its owner uses it for exponential times with mean `use_length`
after exponential times with mean `use_every`. It is online while c >= `online_from` and, with `plugged_only`, while it
is plugged in. Virtual time 0 is midnight; the charge at that time is uniform on [0, 1], so the first day is a warm-up.
Training itself does not drain the battery: worlds do not depend on training.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

import numpy as np
import simpy

from fedsim.common.units import DAY_US, HOUR_US
from fedsim.scenarios.processes.devices import PHONES, Devices
from fedsim.scenarios.processes.laws import exponential_us
from fedsim.worlds.scenario import Clock, Life, Me, Scenario, duration_option, number_option


@dataclass(frozen=True, slots=True, kw_only=True)
class BatteryOptions:
    """Options of `battery`."""

    online_from: float = 0.8
    """Least charge at which a phone is online, 0 to 1."""
    plugged_only: bool = True
    """Whether a phone is online only while it is plugged in."""
    charge_time: str | float = "2h"
    """Duration of charging from empty to full."""
    idle_life: str | float = "48h"
    """Duration from full to empty of an idle phone."""
    use_life: str | float = "6h"
    """Duration from full to empty of a phone in use."""
    use_every: str | float = "90min"
    """Mean time from one use to the next."""
    use_length: str | float = "15min"
    """Mean length of a use."""
    plug_h: float = 23.0
    """Hour of the day, 0 to 24, at which the phone is plugged in."""
    unplug_h: float = 7.0
    """Hour of the day, 0 to 24, at which it is unplugged. 0 and 24 are the whole day, equal hours no time at all."""
    habit_shift: str | float = "1h"
    """Standard deviation of a client's own shift of these hours."""
    forget_share: float = 0.1
    """Share of nights without charging, 0 to 1."""
    devices: Devices = PHONES
    """Speeds and faults."""


def battery(options: BatteryOptions) -> Scenario:
    """Phones that are online once they are charged enough and, by default, while plugged in."""
    o = options
    number_option("online_from", o.online_from, 0, 1)
    number_option("forget_share", o.forget_share, 0, 1)
    number_option("plug_h", o.plug_h, 0, 24)
    hours = number_option("unplug_h", o.unplug_h, 0, 24) - o.plug_h
    night_us = round((24 if hours == 24 else hours % 24) * HOUR_US)
    names = ("charge_time", "idle_life", "use_life")
    rates = Rates(*(1 / duration_option(name, getattr(o, name)) for name in names))
    every_us, length_us = (
        duration_option("use_every", o.use_every),
        duration_option("use_length", o.use_length),
    )
    shift_us = duration_option("habit_shift", o.habit_shift, least_us=0)

    def client(env: Clock, me: Me) -> Life:
        o.devices.describe(env, me)
        phone = Phone(env, me, rates, o.online_from, o.plugged_only)
        plug_us = round(o.plug_h * HOUR_US + shift_us * me.rng.standard_normal()) % DAY_US
        env.process(_owner(env, phone, me.stream("use"), every_us, length_us))
        return _nights(env, phone, me.rng, plug_us, night_us, o.forget_share)

    return Scenario(client)


@dataclass(frozen=True, slots=True)
class Rates:
    """How fast the charge changes, per microsecond."""

    gain: float
    """Increase while plugged in."""
    idle: float
    """Decrease while idle."""
    use: float
    """Decrease while in use."""


class Phone:
    """A battery that is charged and drained, and decides when its client is online."""

    def __init__(self, env: Clock, me: Me, rates: Rates, online_from: float, plugged_only: bool) -> None:
        self.charge = simpy.Container(
            cast(simpy.Environment, env), capacity=1.0, init=me.stream("charge").random()
        )
        self.plugged = self.used = False
        self._env, self._me, self._since_us = env, me, env.now
        self._rates, self._online_from, self._plugged_only = rates, online_from, plugged_only
        self._changes = 0

    @property
    def flow(self) -> float:
        """How fast the charge changes, below 0 if it falls."""
        if self.plugged:
            return self._rates.gain
        return -self._rates.use if self.used else -self._rates.idle

    def change(self, *, plugged: bool | None = None, used: bool | None = None) -> None:
        """Update the charge, then the use of the phone, and put the client online or offline accordingly."""
        self._settle()
        self.plugged = self.plugged if plugged is None else plugged
        self.used = self.used if used is None else used
        self._changes += 1
        enough, may = self.charge.level >= self._online_from, self.plugged or not self._plugged_only
        (self._me.begin if enough and may else self._me.end)("online", self._env.now)
        if may and (self.flow > 0) != enough and self._online_from > 0:
            self._env.process(self._cross(self._changes))

    def _settle(self) -> None:
        moved = (self._env.now - self._since_us) * self.flow
        self._since_us = self._env.now
        if moved > 0 and (room := min(moved, self.charge.capacity - self.charge.level)) > 0:
            self.charge.put(room)
        elif moved < 0 and (left := min(-moved, self.charge.level)) > 0:
            self.charge.get(left)

    def _cross(self, change: int) -> Life:
        """Update again when the charge crosses `online_from`, unless something changes before."""
        away_us = abs(self._online_from - self.charge.level) / abs(self.flow)
        yield self._env.timeout(math.floor(away_us) + 1)
        if change == self._changes:
            self.change()


def _nights(
    env: Clock, phone: Phone, rng: np.random.Generator, plug_us: int, night_us: int, forget_share: float
) -> Life:
    night = plug_us - DAY_US  # the night that time 0 may lie in
    while True:
        yield env.timeout(max(night - env.now, 0))
        remembered, end_us = rng.random() >= forget_share, night + night_us
        if remembered and end_us > env.now:
            phone.change(plugged=True)
            yield env.timeout(end_us - env.now)
            phone.change(plugged=False)
        night += DAY_US


def _owner(env: Clock, phone: Phone, rng: np.random.Generator, every_us: int, length_us: int) -> Life:
    phone.change()
    while True:
        yield env.timeout(exponential_us(rng, every_us))
        phone.change(used=True)
        yield env.timeout(exponential_us(rng, length_us))
        phone.change(used=False)
