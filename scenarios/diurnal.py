"""Day and night: phones train while they charge, so most are online during the night of their time zone.

The probability that a client is online at local hour h is

    p(h) = expit(logit(day + (night - day) w(h)) + shift)
    w(h) = exp(k (cos(2 pi (h - centre) / 24) - 1))

with k such that w is 1/2 at `width / 2` from the centre. `shift` (normal, `habit_sigma`) and the client's own
centre (normal around `night_centre_h`, `habit_shift`) are its habit. Sessions are those of a two-state Markov
process whose online probability is p: clients leave at rate 1 / mean_session and return at rate (p' + p / mean_session)
/ (1 - p); where p falls faster than that, nobody returns and they leave at rate -p' / p. Rates are constant over 15
minutes, so p is kept up to half of what it changes in that time.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from fedsim.common.arrays import Floats
from fedsim.common.option_requirements import Unless
from fedsim.common.units import DAY_US, HOUR_US, US
from fedsim.scenarios.processes.devices import PHONES, Devices
from fedsim.scenarios.processes.laws import exponentials
from fedsim.worlds.scenario import Clock, Life, Me, Scenario, duration_option, number_option

CELLS = 96
"""Cells of a day over which rates are constant: 15 minutes."""
CELL_US = DAY_US // CELLS
EDGES_US = np.linspace(0.0, DAY_US, CELLS + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiurnalOptions:
    """Options of `diurnal`."""

    night_share: float = 0.6
    """A typical client's probability to be online at the centre of the night, between 0 and 1."""
    day_share: float = 0.08
    """A typical client's probability to be online far from the night, between 0 and 1."""
    night_centre_h: float = 2.0
    """Local hour of the centre of the night, 0 to 24."""
    night_width: str | float = "8h"
    """Width of the night, 30 minutes to 24 hours."""
    mean_session: str | float = "2h"
    """Mean length of a session where the probability is constant, at least a minute."""
    time_zones: int = 4
    """Number of time zones, 1 to 48; virtual time 0 is midnight in the easternmost, zone 0."""
    zone_spread: Annotated[str | float, Unless("time_zones", 1)] = "6h"
    """Time from the easternmost zone to the westernmost; the others lie evenly between them."""
    habit_sigma: float = 0.7
    """Standard deviation of a client's own shift of the log odds, 0 to 5."""
    habit_shift: str | float = "1h"
    """Standard deviation of a client's own shift of the night's centre."""
    devices: Devices = PHONES
    """Speeds and faults."""


def diurnal(options: DiurnalOptions) -> Scenario:
    """Clients that are online mostly at night, each with its own habit and time zone.

    `Trace.about` holds a client's `time_zone`.
    """
    o = options
    night = number_option("night_share", o.night_share, 0, 1, open_ends=True)
    day = number_option("day_share", o.day_share, 0, 1, open_ends=True)
    number_option("night_centre_h", o.night_centre_h, 0, 24)
    number_option("time_zones", o.time_zones, 1, 48)
    number_option("habit_sigma", o.habit_sigma, 0, 5)
    kappa = _concentration(duration_option("night_width", o.night_width) / HOUR_US)
    session_us = duration_option("mean_session", o.mean_session, least_us=60 * US)
    spread_us = duration_option("zone_spread", o.zone_spread, least_us=0)
    shift_us = duration_option("habit_shift", o.habit_shift, least_us=0)

    def client(env: Clock, me: Me) -> Life:
        o.devices.describe(env, me)
        zone = int(me.rng.integers(o.time_zones))
        me.about("time_zone", zone)
        zone_us = zone / max(o.time_zones - 1, 1) * spread_us
        late, inclination = me.rng.standard_normal(2).tolist()
        share = day + (night - day) * _window(kappa, o.night_centre_h * HOUR_US + zone_us + late * shift_us)
        odds = share / (1 - share) * math.exp(o.habit_sigma * inclination)
        return _sessions(env, me, odds / (1 + odds), session_us)

    return Scenario(client)


def _concentration(width_h: float) -> float:
    """Return k, with which w(h) is 1/2 at half the width from the centre of the night."""
    width_h = number_option("night_width (hours)", width_h, 0.5, 24)
    return math.log(2) / (1 - math.cos(math.pi * width_h / 24))


def _window(kappa: float, centre_us: float) -> Floats:
    """Return w at the edges of the day's cells."""
    return np.asarray(np.exp(kappa * (np.cos(2 * np.pi * (EDGES_US - centre_us) / DAY_US) - 1)))


def _sessions(env: Clock, me: Me, share: Floats, session_us: int) -> Life:
    """Come and go with the probability `share` to be online, given at the edges of the day's cells."""
    leave, come = _hazards(share, session_us)
    away, waits = me.rng.random() >= share[0], exponentials(me.rng)
    if away:
        yield env.timeout(_next_us(come, env.now, next(waits)) - env.now)
    while True:
        now_us = env.now
        leaves_us = _next_us(leave, now_us, next(waits))
        me.online(now_us, leaves_us)
        yield env.timeout(_next_us(come, leaves_us, next(waits)) - now_us)


def _hazards(share: Floats, session_us: int) -> tuple[array[float], array[float]]:
    """Return the cumulative hazards of leaving and of coming at the edges of the day's cells."""
    middle = (share[1:] + share[:-1]) / 2
    gain = share[1:] - share[:-1]
    turnover = middle * (CELL_US / session_us)
    come = np.maximum(gain + turnover, 0) / (1 - middle)
    leave = np.maximum(turnover, -gain) / middle
    return _cumulated(leave), _cumulated(come)


def _cumulated(hazard: Floats) -> array[float]:
    return array("d", [0.0, *hazard.cumsum().tolist()])


def _next_us(hazard: array[float], now_us: int, wait: float) -> int:
    """Return when the hazard since `now_us` reaches `wait`, an exponential number.

    The hazard is interpolated as `np.interp` does, which costs many times as much for a single number.
    """
    time_us = now_us % DAY_US
    cell = time_us // CELL_US
    before = hazard[cell]
    reached = (hazard[cell + 1] - before) / CELL_US * (time_us - cell * CELL_US) + before + wait
    day_us, whole = now_us - time_us, hazard[CELLS]
    if reached >= whole:
        days, reached = divmod(reached, whole)
        day_us += int(days) * DAY_US
    cell = bisect_right(hazard, reached) - 1
    before = hazard[cell]
    within_us = CELL_US / (hazard[cell + 1] - before) * (reached - before) + cell * CELL_US
    return max(day_us + round(within_us), now_us + 1)
