"""Bandwidth that changes in time: transfers speed up, slow down and last as long as that takes.

A client's down- and uplink are those of `devices` times one factor X(t), started in its stationary law:

    markov  X jumps between `levels`; it stays on level i for an exponential time with mean `stay[i]` and then goes to
            one of the others, each as likely (a Markov-modulated rate). The share of time on level i is
            stay[i] / sum(stay). With the levels (1, 0.05) it is the good and bad state of Gilbert and Elliott.
    ar1     log X is a first-order autoregression in steps of `step`: L' = r L + sigma sqrt(1 - r^2) Z with
            r = exp(-step / memory), so L is normal with deviation `sigma` and correlation exp(-lag / memory).
            Each client's steps begin at a random instant of the first one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from fedsim.common.errors import ConfigError
from fedsim.common.option_requirements import With
from fedsim.common.units import US
from fedsim.scenarios.processes.devices import PHONES, Devices, Speeds
from fedsim.scenarios.processes.laws import exponential_us
from fedsim.scenarios.processes.presence import MeanOn, Presence, Sessions
from fedsim.worlds.scenario import Clock, Life, Me, Scenario, duration_option, number_option

OfMarkov, OfAR1 = With("model", "markov"), With("model", "ar1")


def flaky_network(
    *,
    model: Literal["markov", "ar1"] = "markov",
    levels: Annotated[tuple[float, ...], OfMarkov] = (1.0, 0.3, 0.03),
    stay: Annotated[tuple[str | float, ...], OfMarkov] = ("40min", "15min", "5min"),
    sigma: Annotated[float, OfAR1] = 1.0,
    memory: Annotated[str | float, OfAR1] = "30min",
    step: Annotated[str | float, OfAR1] = "5min",
    mean_on: MeanOn = "2h",
    mean_off: str | float = 0,
    devices: Devices = PHONES,
) -> Scenario:
    """Clients whose bandwidth changes; those with `mean_off` above 0 come and go as in `churn`.

    Each change is two rows of the trace.

    Args:
        model: how X(t), the factor on a client's down- and uplink, changes. "markov": X jumps between `levels`. "ar1":
            log X is a first-order autoregression.
        levels: values of X, two or more and above 0; 1 is the client's own bandwidth.
        stay: mean time on each of the levels before X jumps to one of the others.
        sigma: standard deviation of log X, 0 to 5.
        memory: time over which the correlation of log X falls to 1/e.
        step: time between two changes of X, 1 s or more.
        mean_on: mean time online.
        mean_off: mean time offline; 0: clients are always online.
    """
    sessions = Sessions.of(mean_on, mean_off)
    stay_us = _checked_levels(levels, stay)
    number_option("sigma", sigma, 0, 5)
    memory_us, step_us = duration_option("memory", memory), duration_option("step", step, least_us=US)
    decay = math.exp(-step_us / memory_us)

    def client(env: Clock, me: Me) -> Life:
        speeds, rng = devices.speeds(me), me.stream("network")
        speeds.write(me, ("compute",))
        devices.start_faults(env, me)
        if model == "markov":
            env.process(_jumps(env, me, speeds, rng, levels, stay_us))
        else:
            env.process(_steps(env, me, speeds, rng, _Autoregression(sigma, decay, step_us)))
        return sessions.run(env, Presence(me), me.rng)

    return Scenario(client)


def _checked_levels(levels: tuple[float, ...], stay: tuple[str | float, ...]) -> list[int]:
    if len(levels) < 2 or len(levels) != len(stay):
        raise ConfigError(
            "scenario options 'levels' and 'stay': expected two or more levels and a time for each,"
            f" found {len(levels)} and {len(stay)}"
        )
    for i, level in enumerate(levels):
        number_option(f"levels[{i}]", level, 1e-6, 1e6)
    return [duration_option(f"stay[{i}]", time) for i, time in enumerate(stay)]


def _jumps(
    env: Clock,
    me: Me,
    speeds: Speeds,
    rng: np.random.Generator,
    levels: tuple[float, ...],
    stay_us: list[int],
) -> Life:
    at = int(np.searchsorted(np.cumsum(stay_us), rng.random() * sum(stay_us), side="right"))
    while True:
        _link(env, me, speeds, levels[at])
        yield env.timeout(exponential_us(rng, stay_us[at]))
        other = int(rng.integers(len(levels) - 1))
        at = other + (other >= at)


@dataclass(frozen=True, slots=True)
class _Autoregression:
    sigma: float
    decay: float
    """r, the correlation of one step with the next."""
    step_us: int


def _steps(env: Clock, me: Me, speeds: Speeds, rng: np.random.Generator, law: _Autoregression) -> Life:
    log, fresh = law.sigma * rng.standard_normal(), law.sigma * math.sqrt(1 - law.decay * law.decay)
    _link(env, me, speeds, math.exp(log))
    yield env.timeout(1 + int(rng.integers(law.step_us)))
    while True:
        log = law.decay * log + fresh * rng.standard_normal()
        _link(env, me, speeds, math.exp(log))
        yield env.timeout(law.step_us)


def _link(env: Clock, me: Me, speeds: Speeds, factor: float) -> None:
    me.begin("downlink", env.now, speeds.downlink * factor)
    me.begin("uplink", env.now, speeds.uplink * factor)
