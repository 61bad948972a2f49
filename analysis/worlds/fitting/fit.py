"""Fit a model of clients that come and go to a trace: the options of the scenario `fitted`.

The trace censors spells. A spell without a known start is left out; one without a known end has at least its observed
length. Estimates are maximum likelihood (`analysis/worlds/fitting/spell_laws.py`,
`analysis/worlds/fitting/spell_hours.py`). The only randomness is a simulated world that separates rare visitors from
clients that never come.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar

from fedsim.analysis.worlds.fitting.devices import device_options, duration_text
from fedsim.analysis.worlds.fitting.spell_hours import Side, fit_side
from fedsim.analysis.worlds.fitting.spells import Spells, spells_of
from fedsim.common import arguments
from fedsim.common.arrays import Floats
from fedsim.common.errors import TraceError
from fedsim.common.units import DAY_US, US
from fedsim.worlds.trace import Trace

Simulate = Callable[[Mapping[str, Any]], Trace]
"""Makes a world of the scenario `fitted` from options, with the trace's number of clients and length."""

LEAST_SPELLS = 10
"""Fewest complete spells to fit a law of lengths to."""
MOST_SPELLS = 8_000
"""With more spells, only every second, third ... client is used."""
LEAST_PAIRS = 20
MOST_CORRELATION = 0.95


@dataclass(frozen=True, slots=True)
class WorldFit:
    """A model fitted to a trace: laws of spells online and offline, shares of constant clients, and devices."""

    on: Side | None
    """The law of spells online; None if no client comes or goes."""
    off: Side | None
    spread_correlation: float
    always: float
    never: float
    devices: Mapping[str, Any]
    notes: tuple[str, ...]
    """Remarks on the fit, in words."""

    def options(self) -> dict[str, Any]:
        """Return the options of the scenario `fitted`, rounded to five digits."""
        options: dict[str, Any] = {"always": self.always, "never": self.never}
        if self.on is not None and self.off is not None:
            options |= {"on": _length(self.on), "off": _length(self.off)}
            options |= {"leaving": list(self.on.hours), "coming": list(self.off.hours)}
            options["spread_correlation"] = self.spread_correlation
        rounded: dict[str, Any] = _rounded(options | {"devices": dict(self.devices)})
        rounded["never"] = min(rounded["never"], round(1 - rounded["always"], 10))  # both may be rounded up
        return rounded


@arguments.checked
def fit_world(trace: Trace, simulate: Simulate) -> WorldFit:
    """Fit the model to a trace.

    `simulate` makes a world from the options of a fit. Raises TraceError if all clients are unknown throughout, or if
    fewer than 10 spells online or offline have both ends in the trace (unless no client comes or goes).
    """
    spells = spells_of(trace)
    share = spells.online_share()
    known = share[~np.isnan(share)]
    if not len(known):
        raise TraceError(f"nothing is known of when any of the {trace.clients} clients is online")
    always, never = float((known == 1).mean()), float((known == 0).mean())
    on, off, notes = _sides(spells, trace)
    if on is None and always + never < 1:
        raise TraceError(
            f"{int(((known > 0) & (known < 1)).sum()):,} clients are online at times and offline at others, but come "
            "and go only where nothing is known: no length is seen, so there is no law to fit"
        )
    correlation = 0.0 if on is None or off is None else _correlation(on, off)
    fit = WorldFit(
        on, off, correlation, 0.0, 0.0, device_options(trace), (*_unknown_note(trace, known), *notes)
    )
    if on is not None and always + never > 0:
        chance = spells_of(simulate(fit.options()), seen_as=trace).online_share()
        always, never = _beyond_chance(always, never, chance[~np.isnan(chance)])
    return WorldFit(on, off, correlation, always, never, fit.devices, fit.notes)


def _sides(spells: Spells, trace: Trace) -> tuple[Side | None, Side | None, tuple[str, ...]]:
    began = spells.of(spells.began)
    if not len(began.client):
        return None, None, ("nobody comes or goes: there are no lengths to fit",)
    for name, online in (("online", True), ("offline", False)):
        complete = _complete(began, online)
        if complete < LEAST_SPELLS:
            raise TraceError(
                f"expected at least {LEAST_SPELLS} spells {name} that are seen to begin and to end, found {complete}:"
                " too few to fit a law of lengths; give a longer trace or one of more clients"
            )
    day_long, notes = trace.horizon_us >= DAY_US, []
    if not day_long:
        notes.append("shorter than a day: no hours of the day")
    step_us = spells.step_us
    if step_us >= US:
        notes.append(
            f"all changes are at multiples of {step_us / US:g} s: shorter spells may have been missed"
        )
    began, every = _thinned(began)
    if every > 1:
        notes.append(f"laws and hours are those of one client in {every}, from client 0 on")
    sides = [fit_side(began.of(began.online == online), day_long, step_us) for online in (True, False)]
    return sides[0], sides[1], tuple(notes)


def _thinned(began: Spells) -> tuple[Spells, int]:
    """Return the spells of every nth client, and n: the smallest sample that MOST_SPELLS and LEAST_SPELLS allow."""
    every = -(-int(max(began.online.sum(), (~began.online).sum())) // MOST_SPELLS)
    while every > 1:
        some = began.of(np.isin(began.client, np.unique(began.client)[::every]))
        if min(_complete(some, True), _complete(some, False)) >= LEAST_SPELLS:
            return some, every
        every //= 2
    return began, 1


def _complete(spells: Spells, online: bool) -> int:
    return int((spells.ended & (spells.online == online)).sum())


def _unknown_note(trace: Trace, known: Floats) -> tuple[str, ...]:
    dark = trace.clients - len(known)
    if not dark:
        return ()
    return (f"{dark:,} of {trace.clients:,} clients are unknown throughout and left out",)


def _beyond_chance(always: float, never: float, chance: Floats) -> tuple[float, float]:
    """Correct the observed shares for clients that come and go unobserved, as a simulated world suggests."""
    by_luck = float((chance == 1).mean()), float((chance == 0).mean())
    others = min((1 - always - never) / max(1 - sum(by_luck), 1e-9), 1.0)
    return max(always - others * by_luck[0], 0.0), max(never - others * by_luck[1], 0.0)


def _correlation(on: Side, off: Side) -> float:
    """Return the maximum-likelihood correlation of the logarithms of clients' two factors.

    Each client's two factors are observed with normal errors (Breslow and Clayton, "Approximate inference in
    generalized linear mixed models", 1993).
    """
    _, a, b = np.intersect1d(on.clients, off.clients, return_indices=True)
    s, t = on.fit.spread, off.fit.spread
    if not (s and t) or len(a) < LEAST_PAIRS:
        return 0.0
    x, y = on.factors.value[a], off.factors.value[b]
    xx, yy = s**2 + on.factors.variance[a], t**2 + off.factors.variance[b]

    def cost(rho: float) -> float:
        determinant = xx * yy - (rho * s * t) ** 2
        square = (yy * x**2 - 2 * rho * s * t * x * y + xx * y**2) / determinant
        return float((np.log(determinant) + square).sum())

    best = minimize_scalar(cost, bounds=(-MOST_CORRELATION, MOST_CORRELATION), method="bounded")
    return float(best.x)


def _length(side: Side) -> dict[str, Any]:
    law = side.fit.law
    shape = {} if law.name in ("exponential", "constant") else {"shape": law.shape}
    return {"law": law.name, "mean": duration_text(law.mean_h)} | shape | {"spread": side.fit.spread}


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_rounded(part) for part in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value
