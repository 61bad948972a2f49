"""Clients come and go at random: an alternating process with exponential times, in its stationary law."""

from __future__ import annotations

from fedsim.scenarios.processes.devices import PHONES, Devices
from fedsim.scenarios.processes.presence import Presence, Sessions
from fedsim.worlds.scenario import Clock, Life, Me, Scenario, duration_option


def churn(
    *, mean_on: str | float = "2h", mean_off: str | float = "4h", devices: Devices = PHONES
) -> Scenario:
    """Clients that are online and offline in turn, for exponential times with means `mean_on` and `mean_off`.

    At every instant a client is online with probability mean_on / (mean_on + mean_off).

    Args:
        mean_on: mean time online.
        mean_off: mean time offline, above 0.
    """
    sessions = Sessions(duration_option("mean_on", mean_on), duration_option("mean_off", mean_off))

    def client(env: Clock, me: Me) -> Life:
        devices.describe(env, me)
        return sessions.run(env, Presence(me), me.rng)

    return Scenario(client)
