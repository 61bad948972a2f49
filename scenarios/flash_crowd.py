"""Sudden crowds that decay: at given times many clients arrive within minutes, and leave again one by one.

Each client joins each crowd with probability `share`. It arrives after an exponential delay with mean a and stays for
an exponential time with mean b, so a time s after the start of a crowd it is present with probability

    share b / (a - b) (exp(-s / a) - exp(-s / b)),    share s / a exp(-s / a)  if a = b

Apart from crowds it comes and goes as in `churn`; it is online while it has either reason.
"""

from __future__ import annotations

from fedsim.common.errors import ConfigError
from fedsim.scenarios.processes.devices import PHONES, Devices
from fedsim.scenarios.processes.presence import MeanOn, Presence, Sessions
from fedsim.worlds.scenario import Clock, Life, Me, Scenario, duration_option, number_option


def flash_crowd(
    *,
    times: tuple[str | float, ...] = ("12h", "36h"),
    share: float = 0.7,
    mean_delay: str | float = "10min",
    mean_stay: str | float = "1h",
    mean_on: MeanOn = "30min",
    mean_off: str | float = "6h",
    devices: Devices = PHONES,
) -> Scenario:
    """Clients that mostly stay away, and arrive together at `times`.

    Args:
        times: starts of the crowds, at least one, as durations from the start of the world.
        share: probability that a client joins a crowd, 0 to 1.
        mean_delay: a, the mean time from the start of a crowd to a client's arrival.
        mean_stay: b, the mean time that a client stays in a crowd.
        mean_on: mean time online, apart from crowds.
        mean_off: mean time offline, apart from crowds; 0: clients are always online.
    """
    starts_us = [duration_option(f"times[{i}]", time, least_us=0) for i, time in enumerate(times)]
    if not starts_us:
        raise ConfigError("scenario option 'times': expected at least one time, found none")
    number_option("share", share, 0, 1)
    delay_us, stay_us = duration_option("mean_delay", mean_delay), duration_option("mean_stay", mean_stay)
    sessions = Sessions.of(mean_on, mean_off)

    def client(env: Clock, me: Me) -> Life:
        devices.describe(env, me)
        presence, crowds = Presence(me), me.stream("crowds")
        for start_us in sorted(starts_us):
            joins, delay, stay = crowds.random() < share, crowds.exponential(), crowds.exponential()
            if joins:
                visit_us = start_us + round(delay * delay_us)
                env.process(_visit(env, presence, visit_us, max(1, round(stay * stay_us))))
        return sessions.run(env, presence, me.rng)

    return Scenario(client)


def _visit(env: Clock, presence: Presence, at_us: int, stay_us: int) -> Life:
    yield env.timeout(at_us)
    presence.come(env.now)
    yield env.timeout(stay_us)
    presence.leave(env.now)
