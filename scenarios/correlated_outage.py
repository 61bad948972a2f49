"""Regional outages: each takes a share of a region's clients offline at once and for the same time.

Each of R regions fails and recovers in turn, for exponential times with means `outage_every` and `outage_length`, in
the stationary law: it is down with probability d = outage_length / (outage_every + outage_length). An outage hits
each client of its region with probability h, independently. With a the probability that a client would be online
otherwise, it is online with probability

    a (1 - h d),    two of one region with    a^2 ((1 - d) + d (1 - h)^2),    two of different ones with the square

so clients of a region are correlated by d (1 - d) h^2 a^2 / (p (1 - p)), p = a (1 - h d).
"""

from __future__ import annotations

import numpy as np

from fedsim.scenarios.processes.devices import PHONES, Devices
from fedsim.scenarios.processes.laws import exponential_us
from fedsim.scenarios.processes.presence import MeanOn, Presence, Sessions
from fedsim.worlds.scenario import Clock, Life, Me, Place, Scenario, duration_option, number_option


def correlated_outage(
    *,
    regions: int = 4,
    outage_every: str | float = "1d",
    outage_length: str | float = "1h",
    hit_share: float = 0.9,
    mean_on: MeanOn = "2h",
    mean_off: str | float = "1h",
    devices: Devices = PHONES,
) -> Scenario:
    """Clients of `regions` regions, which have outages.

    Apart from outages clients come and go as in `churn`. `Trace.about` holds a client's region.

    Args:
        regions: R, the number of regions, 1 to 10,000; each client's region is drawn uniformly.
        outage_every: mean time from the end of an outage of a region to the next.
        outage_length: mean length of an outage.
        hit_share: h, the probability that an outage hits a client of the region, 0 to 1.
        mean_on: mean time online, apart from outages.
        mean_off: mean time offline, apart from outages; 0: only outages take clients offline.
    """
    number_option("regions", regions, 1, 10_000)
    number_option("hit_share", hit_share, 0, 1)
    every_us = duration_option("outage_every", outage_every)
    length_us = duration_option("outage_length", outage_length)
    sessions = Sessions.of(mean_on, mean_off)

    def world(env: Clock, place: Place) -> list[Region]:
        all_regions = [Region(hit_share) for _ in range(regions)]
        for number, region in enumerate(all_regions):
            env.process(region.run(env, place.stream(f"region {number}"), every_us, length_us))
        return all_regions

    def client(env: Clock, me: Me) -> Life:
        devices.describe(env, me)
        presence, number = Presence(me), int(me.rng.integers(regions))
        me.about("region", number)
        me.world[number].join(presence, me.stream("outages"), env.now)
        return sessions.run(env, presence, me.rng)

    return Scenario(client, world=world)


class Region:
    """A region that blocks clients during its outages; it does not react to clients."""

    def __init__(self, hit_share: float) -> None:
        self._hit_share, self._down = hit_share, False
        self._clients: list[tuple[Presence, np.random.Generator]] = []
        self._hit: list[Presence] = []

    def join(self, presence: Presence, rng: np.random.Generator, now_us: int) -> None:
        """Add a client; a current outage may hit it at once."""
        self._clients.append((presence, rng))
        if self._down:
            self._strike(presence, rng, now_us)

    def run(self, env: Clock, rng: np.random.Generator, every_us: int, length_us: int) -> Life:
        """Fail and recover in turn, without end."""
        if rng.random() >= length_us / (every_us + length_us):
            yield env.timeout(exponential_us(rng, every_us))
        while True:
            self._down = True
            for presence, own in self._clients:
                self._strike(presence, own, env.now)
            yield env.timeout(exponential_us(rng, length_us))
            self._recover(env.now)
            yield env.timeout(exponential_us(rng, every_us))

    def _strike(self, presence: Presence, rng: np.random.Generator, now_us: int) -> None:
        if rng.random() < self._hit_share:
            presence.block(now_us)
            self._hit.append(presence)

    def _recover(self, now_us: int) -> None:
        for presence in self._hit:
            presence.unblock(now_us)
        self._down, self._hit = False, []
