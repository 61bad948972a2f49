"""Clients come and go at random: an alternating process with exponential times, in its stationary law."""

from __future__ import annotations

from fedsim.scenario import Clock, Life, Me, Scenario, duration_option
from scenarios._devices import PHONES, Devices, exponential_us


def churn(
    *, mean_on: str | float = "2h", mean_off: str | float = "4h", devices: Devices = PHONES
) -> Scenario:
    """Clients that are online and offline in turn, for exponential times with means `mean_on` and `mean_off`.

    At every instant a client is online with probability mean_on / (mean_on + mean_off).
    """
    on_us, off_us = duration_option("mean_on", mean_on), duration_option("mean_off", mean_off)

    def client(env: Clock, me: Me) -> Life:
        devices.describe(env, me)
        # Exponential times have no memory: what is left of the first one is distributed as a whole one.
        if me.rng.random() >= on_us / (on_us + off_us):
            yield env.timeout(exponential_us(me.rng, off_us))
        while True:
            length = exponential_us(me.rng, on_us)
            me.online(env.now, env.now + length)
            yield env.timeout(length + exponential_us(me.rng, off_us))

    return Scenario(client)
