"""The client dynamics of FLGo (easyFL, `flgo/simulator`), for comparisons with that simulator.

Time goes in rounds of length `round`. At the start of each (with `roundwise = false`: of each `unit` of time) every
client is online with its probability p_i, independently of the past: FLGo's offline clients become idle with
probability p_i and its idle ones stay so with p_i. R counts rounds, n_i samples, b is `beta`:

    IDL    1
    YMF    b (min label of i) / max(1, labels - 1) + 1 - b
    MDF    n_i^b / max_j n_j^b                     docstring: tanh(-n_i ln(b + 1e-8)), scaled to maximum 1
    LDF    n_i^-b / max_j n_j^-b                   docstring: (1 - b)^-n_i, scaled to maximum 1
    YFF    b (different labels of i) / labels + 1 - b
    HOMO   1 - b
    LN     q_i = T_i / max_j T_j                   T_i log-normal (0, -ln(1 - b - 1e-6))
    SLN    q_i (0.4 sin(theta_R) + 0.5)            theta: 24 evenly spaced points on [0, 2 pi], in turn
    YC     b [min label of i <= r L <= max label of i] + 1 - b      r = (1 + R mod 24) / 24, L the greatest label

These are the formulas of FLGo's code; where its docstrings differ, `formula = "docstring"` takes theirs.
The latency of a job, in units of time, is drawn once per client: 0 (IDL), int of a log-normal number with
`latency_mean` and `latency_var` (LN), or a uniform integer from `latency_min` up to `latency_max`, not included (UNI).

Unlike in FLGo, rounds follow the clock and not the server's steps, a client that works is as likely to leave as
others, and one that has reported stays online: worlds do not depend on training.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

import numpy as np

from fedsim.common.arrays import Floats
from fedsim.common.errors import ConfigError
from fedsim.common.option_requirements import Unless, Where, With
from fedsim.common.units import US
from fedsim.scenarios.processes.devices import Devices
from fedsim.worlds.scenario import Clock, Life, Me, Place, Scenario, duration_option, number_option

BETA = {
    "IDL": 0.0,
    "YMF": 0.1,
    "MDF": 1e-4,
    "LDF": 0.5,
    "YFF": 0.2,
    "HOMO": 0.2,
    "LN": 0.1,
    "SLN": 0.1,
    "YC": 0.5,
}
"""FLGo's defaults."""
GREATEST_BETA = {"MDF": 100.0, "LDF": 100.0, "LN": 0.999, "SLN": 0.999}
COMPARING = ("MDF", "LDF", "LN", "SLN")
"""Modes in which a client's probability depends on the other clients of the federation."""
THETA = np.linspace(0, 2 * np.pi, 24)
LEAST_S = 1e-12
"""Seconds per sample where FLGo's latency is 0: a trace has no zero."""

Chance = Callable[[int], float]
"""The probability to be online, a function of the number of the round."""

Drawn = Unless("availability", "IDL")
OfLN, OfUNI = With("responsiveness", "LN"), With("responsiveness", "UNI")
Unit = Where(
    lambda o: o.responsiveness != "IDL" or (o.availability != "IDL" and not o.roundwise),
    'without latencies, and with availability drawn round by round; it needs responsiveness = "LN" or "UNI", or '
    "roundwise = false",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlgoOptions:
    """Options of `flgo`."""

    availability: Literal["IDL", "YMF", "MDF", "LDF", "YFF", "HOMO", "LN", "SLN", "YC"] = "IDL"
    """FLGo's mode. YMF, MDF, LDF, YFF and YC need facts about the federation's data, which a run's `[world]` has."""
    beta: Annotated[float | None, Unless("availability", "IDL")] = None
    """b: 0 to 1, for LN and SLN less than 1, for MDF and LDF up to 100; by default FLGo's for the mode."""
    formula: Annotated[Literal["code", "docstring"], With("availability", "MDF", "LDF")] = "code"
    """Whether the formula is that of FLGo's code or of its docstring."""
    round: Annotated[str | float, Drawn] = "10min"
    """Length of a round."""
    unit: Annotated[str | float, Unit] = "1min"
    """The unit of time."""
    roundwise: Annotated[bool, Drawn] = True
    """Whether clients come and go once a round, or once a unit of time."""
    federation: Annotated[int | None, With("availability", "LN", "SLN")] = None
    """Number of clients over which the maximum is taken; by default that of the run."""
    responsiveness: Literal["IDL", "LN", "UNI"] = "IDL"
    """FLGo's mode of latencies."""
    latency_mean: Annotated[float, OfLN] = 100.0
    """Mean of LN, in units of time."""
    latency_var: Annotated[float, OfLN] = 10.0
    """Variance of LN."""
    latency_min: Annotated[int, OfUNI] = 0
    """Least latency of UNI, in units of time."""
    latency_max: Annotated[int, OfUNI] = 1
    """Above the greatest latency of UNI."""
    job_samples: Annotated[float | None, Unless("responsiveness", "IDL")] = None
    """Samples of a job that takes the latency; by default one epoch over the client's data."""
    devices: Devices | None = None
    """Speeds and faults, in place of latencies."""


def flgo(options: FlgoOptions) -> Scenario:
    """FLGo's modes of availability and responsiveness."""
    o = options
    beta = BETA[o.availability] if o.beta is None else o.beta
    number_option("beta", beta, 0, GREATEST_BETA.get(o.availability, 1.0))
    round_us, unit_us = duration_option("round", o.round), duration_option("unit", o.unit)
    latency_s = _latencies(o, unit_us / US)
    _check_speeds(o.responsiveness, o.devices, o.job_samples)

    def client(env: Clock, me: Me) -> Life:
        chance = _chance(me, o.availability, beta)
        if o.devices is not None:
            o.devices.describe(env, me)
        if o.responsiveness != "IDL":
            _write_latency(me, latency_s(me.stream("latency")), o.job_samples)
        return _redrawn(env, me, chance, round_us if o.roundwise else unit_us, round_us)

    comparing = partial(_relative, o=o, beta=beta) if o.availability in COMPARING else None
    return Scenario(client, world=comparing)


def _check_speeds(responsiveness: str, devices: Devices | None, job_samples: float | None) -> None:
    if responsiveness != "IDL" and devices is not None:
        raise ConfigError(
            "scenario options 'responsiveness' and 'devices': both say how fast clients are; give one"
        )
    if job_samples is not None:
        number_option("job_samples", job_samples, 0, open_ends=True)


def _write_latency(me: Me, latency_s: float, job_samples: float | None) -> None:
    samples = me.fact("n_samples") if job_samples is None else job_samples
    me.write("compute", 0, me.horizon_us, max(latency_s / max(samples, 1e-9), LEAST_S))


def _redrawn(env: Clock, me: Me, chance: Chance, draws_us: int, round_us: int) -> Life:
    while True:
        change = me.begin if me.rng.random() < chance(env.now // round_us) else me.end
        change("online", env.now)
        yield env.timeout(draws_us)


def _relative(env: Clock, place: Place, o: FlgoOptions, beta: float) -> Floats:
    """Return [clients] the probabilities of a mode that compares clients, relative to the greatest."""
    mode, n = o.availability, o.federation
    if mode in ("LN", "SLN"):
        n = _size(place) if n is None else int(number_option("federation", n, 1))
        logs = -math.log(1 - beta - 1e-6) * place.stream("inclination").standard_normal(n)
    else:
        n_samples = np.maximum(place.facts("n_samples").astype(np.float64), 1.0)
        if o.formula == "code":
            logs = (beta if mode == "MDF" else -beta) * np.log(n_samples)
        elif mode == "LDF":
            number_option("beta", beta, 0, 0.999)
            logs = -n_samples * math.log(1 - beta)
        else:
            number_option("beta", beta, 0, 0.999)
            logs = np.log(np.tanh(-n_samples * math.log(beta + 1e-8)))
    return np.asarray(np.exp(logs - logs.max()))


def _size(place: Place) -> int:
    try:
        return len(place.facts("n_samples"))
    except ConfigError as error:
        raise ConfigError(
            "scenario option 'federation': expected the number of clients over which the maximum is taken,"
            " found none outside a run"
        ) from error


def _chance(me: Me, mode: str, beta: float) -> Chance:
    """Return a client's probability to be online as a function of the round."""
    if mode in COMPARING:
        p = _own(me)
        return (lambda r: p * (0.4 * math.sin(THETA[r % 24]) + 0.5)) if mode == "SLN" else (lambda r: p)
    if mode == "YC":
        low, high = me.fact("min_label"), me.fact("max_label")
        last = me.fact("labels") - 1
        return lambda r: beta * (low <= (1 + r % 24) / 24 * last <= high) + 1 - beta
    if mode == "YMF":
        p = beta * me.fact("min_label") / max(1, me.fact("labels") - 1) + 1 - beta
    elif mode == "YFF":
        p = beta * me.fact("n_labels") / me.fact("labels") + 1 - beta
    else:
        p = 1 - beta
    return lambda r: p


def _own(me: Me) -> float:
    if me.id >= len(me.world):
        raise ConfigError(
            f"scenario option 'federation': expected at least {me.id + 1}, the number of clients of the world,"
            f" found {len(me.world)}"
        )
    return float(me.world[me.id])


def _latencies(o: FlgoOptions, unit_s: float) -> Callable[[np.random.Generator], float]:
    """Return a function that draws a latency in seconds."""
    mean, var, low, high = o.latency_mean, o.latency_var, o.latency_min, o.latency_max
    if o.responsiveness == "UNI":
        number_option("latency_min", low, 0)
        number_option("latency_max", high, low + 1)
        return lambda rng: float(rng.integers(low, high)) * unit_s
    number_option("latency_mean", mean, 0, open_ends=True)
    sigma = math.sqrt(math.log(1 + number_option("latency_var", var, 0) / mean**2))
    mu = math.log(mean) - sigma**2 / 2
    return lambda rng: float(int(math.exp(mu + sigma * rng.standard_normal()))) * unit_s
