"""A few clients are very slow: computing time with a heavy tail.

A client's time per sample is that of `devices` times its slowdown S, cut at `most`:

    pareto      S = U^(-1/shape)                      P(S > s) = s^-shape; infinite mean for shape <= 1
    zipf        P(S = k) proportional to k^-shape     k = 1, 2, ..., most
    lognormal   S = exp(shape Z)                      Z standard normal
    half_normal S = shape |Z|, at least 0.001         FedBuff's training times
    uniform     S = 1 + (most - 1) U                  as likely anywhere from 1 to `most`

Plato's simulations draw times from Pareto, Zipf and uniform laws; a log-normal law is FedScale's alternative.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

import numpy as np

from fedsim.common.option_requirements import Unless
from fedsim.scenarios.processes.devices import Devices, Speeds
from fedsim.scenarios.processes.presence import MeanOn, Presence, Sessions
from fedsim.worlds.scenario import Clock, Life, Me, Scenario, number_option

EQUAL = Devices(compute_sigma=0.0)
"""Devices whose computing speeds differ in the slowdown alone."""


def stragglers(
    *,
    law: Literal["pareto", "zipf", "lognormal", "half_normal", "uniform"] = "pareto",
    shape: Annotated[float, Unless("law", "uniform")] = 1.5,
    most: float = 100.0,
    slow_network: bool = False,
    mean_on: MeanOn = "2h",
    mean_off: str | float = 0,
    devices: Devices = EQUAL,
) -> Scenario:
    """Clients whose speeds have a heavy tail; those with `mean_off` above 0 come and go as in `churn`.

    `Trace.about` holds the slowdown.

    Args:
        law: law of a client's slowdown S, the factor on its time per sample; U is uniform on [0, 1), Z standard normal.
            "pareto": S = U^(-1/shape). "zipf": S is a whole number k with probability proportional to k^-shape.
            "lognormal": S = exp(shape Z). "half_normal": S = shape |Z|, at least 0.001; FedBuff's training times.
            "uniform": S = 1 + (most - 1) U.
        shape: exponent of "pareto" and "zipf", sigma of "lognormal" and "half_normal"; 0.1 to 10.
        most: greatest slowdown, 1 to 1e6; greater ones are cut to it.
        slow_network: whether down- and uplink are slower by the same factor, too.
        mean_on: mean time online.
        mean_off: mean time offline; 0: clients are always online.
    """
    number_option("shape", shape, 0.1, 10)
    number_option("most", most, 1, 1e6)
    sessions, draw = Sessions.of(mean_on, mean_off), _slowdowns(law, shape, most)

    def client(env: Clock, me: Me) -> Life:
        slowdown, speeds = draw(me.stream("slowdown")), devices.speeds(me)
        me.about("slowdown", slowdown)
        network = slowdown if slow_network else 1.0
        slow = Speeds(speeds.compute * slowdown, speeds.downlink / network, speeds.uplink / network)
        slow.write(me)
        devices.start_faults(env, me)
        return sessions.run(env, Presence(me), me.rng)

    return Scenario(client)


def _slowdowns(law: str, shape: float, most: float) -> Callable[[np.random.Generator], float]:
    """Return a function that draws a slowdown."""
    if law == "pareto":
        return lambda rng: min(most, float((1 - rng.random()) ** (-1 / shape)))
    if law == "lognormal":
        return lambda rng: min(most, float(np.exp(shape * rng.standard_normal())))
    if law == "half_normal":
        return lambda rng: min(most, max(0.001, float(shape * np.abs(rng.standard_normal()))))
    if law == "uniform":
        return lambda rng: 1 + (most - 1) * float(rng.random())
    weights = np.arange(1, int(most) + 1, dtype=np.float64) ** -shape
    shares = np.cumsum(weights) / weights.sum()
    return lambda rng: 1.0 + min(int(np.searchsorted(shares, rng.random(), side="right")), len(shares) - 1)
