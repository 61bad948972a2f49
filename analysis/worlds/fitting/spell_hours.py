"""Fit the law of spells, and how their ends vary over the hours of the day.

Lengths are measured with a clock that runs m[h] times as fast in hour h; by that clock, spells follow one law all day.
Given the law, m is multiplied by observed over expected ends in each hour until both agree; given m, the law is fitted
again. Akaike's criterion decides between this model and even hours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedsim.analysis.worlds.fitting.spell_laws import Factors, LawFit, Lengths, factors, fit_law
from fedsim.analysis.worlds.fitting.spells import HOURS, Parts, Spells, parts_of
from fedsim.common.arrays import Floats, Ints
from fedsim.common.units import HOUR_US
from fedsim.scenarios.processes.hazards import Day

_ROUNDS = 25
_LEAST_MULTIPLIER = 1e-3
_FINE_STEP = 0.01
"""Share of the median length below which a sampling step is ignored."""
_PRIOR_ENDS = 1.0
"""Added to the observed and expected ends of each hour, so that an hour without ends keeps a rate."""


@dataclass(frozen=True, slots=True)
class Side:
    """The fitted model of spells online, or of spells offline."""

    fit: LawFit
    hours: tuple[float, ...]
    """24 multipliers with mean 1; empty for even hours."""
    clients: Ints
    """Clients with such a spell."""
    factors: Factors
    """Factors of these clients."""
    n: int
    """Number of spells with a known start."""
    n_ended: int
    """Number of these with a known end."""


def fit_side(spells: Spells, with_hours: bool, step_us: int = 0) -> Side:
    """Fit spells of one state, all with known starts and at least one with a known end.

    `step_us` is the step of a sampled trace; a step much shorter than the median length is ignored.
    """
    clients, numbers = np.unique(spells.client, return_inverse=True)
    if step_us < _FINE_STEP * np.median(spells.length_us):
        step_us = 0
    even = _lengths(spells, numbers, Day(), step_us)
    fit, lengths = fit_law(even), even
    hours: tuple[float, ...] = ()
    if with_hours and fit.law.name != "constant":
        shaped = _shaped(spells, numbers, fit, step_us)
        if shaped is not None:
            fit, lengths, hours = shaped
    return Side(fit, hours, clients, factors(lengths, fit), len(numbers), int(spells.ended.sum()))


def _shaped(
    spells: Spells, numbers: Ints, even: LawFit, step_us: int
) -> tuple[LawFit, Lengths, tuple[float, ...]] | None:
    """Return the fit with hours, or None if it is no better than the fit with even hours."""
    parts, fit, hours = parts_of(spells), even, np.ones(HOURS)
    lengths = _lengths(spells, numbers, Day(), step_us)
    for final in (False, True):
        hours = _hours(spells, parts, numbers, fit, factors(lengths, fit).mode, hours)
        lengths = _lengths(spells, numbers, Day(tuple(hours.tolist())), step_us)
        fit = fit_law(lengths, (fit.law.name,)) if final else fit_law(lengths)
    # The density in true time is the density by the clock times the clock's speed at the end.
    speed = np.log(hours[_end_hour(spells)]).sum()
    better = fit.aic - 2 * speed + 2 * (HOURS - 1) < even.aic
    return (fit, lengths, tuple(hours.tolist())) if better and math.isfinite(fit.aic) else None


def _hours(
    spells: Spells, parts: Parts, numbers: Ints, fit: LawFit, log_factor: Floats, start: Floats
) -> Floats:
    """Return multipliers with which the expected number of ends in each hour equals the observed one."""
    seen = np.bincount(_end_hour(spells), minlength=HOURS)
    scale = np.exp(-log_factor)[numbers][parts.spell]
    hours = start
    for _ in range(_ROUNDS):
        day = Day(tuple(hours.tolist()))
        begin = day.told_h(spells.start_us)[parts.spell]
        until = fit.law.cumulative(scale * (day.told_h(parts.end_us) - begin))
        before = fit.law.cumulative(scale * np.maximum(day.told_h(parts.start_us) - begin, 0.0))
        expected = np.bincount(parts.hour, until - before, minlength=HOURS)
        expected *= seen.sum() / expected.sum()
        hours = hours * (seen + _PRIOR_ENDS) / (expected + _PRIOR_ENDS)
        hours = np.maximum(hours / hours.mean(), _LEAST_MULTIPLIER)
    return np.asarray(hours)


def _end_hour(spells: Spells) -> Ints:
    """Return the hours of the known ends."""
    return np.asarray((spells.end_us[spells.ended] - 1) // HOUR_US % HOURS)


def _lengths(spells: Spells, numbers: Ints, day: Day, step_us: int) -> Lengths:
    start, end, half = day.told_h(spells.start_us), day.told_h(spells.end_us), step_us // 2
    step = day.told_h(spells.end_us + half) - day.told_h(spells.end_us - half)
    return Lengths(end - start, numbers, spells.ended, step)
