"""Clients of a cell share its uplink with other traffic: the more users, the slower each.

Background transfers arrive at a cell as a Poisson process with rate l, and each would take an exponential time with
mean m alone. A transfer goes at no more than 1/c of the cell's capacity C, and more than c of them share it equally.
So their number N is that of an M/M/c queue, started in its stationary law (Kleinrock, Queueing Systems I, 1975,
sections 3.2 and 3.5); with a = l m the offered load and r = a / c < 1 the option `load`,

    P(N = n) = p0 a^n / n!  for n < c,      p0 a^c / c! r^(n - c)  for n >= c
    c = 1:     P(N = n) = (1 - r) r^n,      mean r / (1 - r)

A client's uplink at t is the least of its own, of C / c and of C / (N(t) + 1), its share beside N others. Clients of
a cell do not slow each other down: a world does not know when they upload.
"""

from __future__ import annotations

import math
from typing import cast

import numpy as np
import simpy

from fedsim.scenarios.processes.devices import PHONES, Devices
from fedsim.scenarios.processes.laws import exponential_us
from fedsim.scenarios.processes.presence import MeanOn, Presence, Sessions
from fedsim.worlds.scenario import Clock, Life, Me, Place, Scenario, duration_option, number_option


def shared_uplink(
    *,
    cell_clients: int = 10,
    cell_bytes_per_s: float = 5e6,
    channels: int = 1,
    load: float = 0.7,
    mean_transfer: str | float = "5min",
    mean_on: MeanOn = "2h",
    mean_off: str | float = 0,
    devices: Devices = PHONES,
) -> Scenario:
    """Cells of `cell_clients` clients whose uplink is shared with other traffic.

    Clients with `mean_off` above 0 come and go as in `churn`. `Trace.about` holds a client's cell.

    Args:
        cell_clients: number of clients in a cell, 1 to 100,000; cells are filled in order of the clients' numbers.
        cell_bytes_per_s: C, the capacity of a cell's uplink, at least 1 byte per second.
        channels: c, the number of transfers that fill a cell, 1 to 1,000; a single transfer gets at most C / c.
        load: r, the share of the capacity that background traffic takes, 0 to 0.999.
        mean_transfer: m, the mean time of a background transfer that has a channel to itself.
        mean_on: mean time online.
        mean_off: mean time offline; 0: clients are always online.
    """
    number_option("cell_clients", cell_clients, 1, 100_000)
    number_option("cell_bytes_per_s", cell_bytes_per_s, 1)
    number_option("channels", channels, 1, 1000)
    number_option("load", load, 0, 0.999)
    transfer_us, sessions = duration_option("mean_transfer", mean_transfer), Sessions.of(mean_on, mean_off)

    def start_cell(env: Clock, place: Place) -> Cell:
        cell = Cell(env, place, cell_bytes_per_s, channels, transfer_us)
        cell.start(load)
        return cell

    def client(env: Clock, me: Me) -> Life:
        speeds = devices.speeds(me)
        speeds.write(me, ("compute", "downlink"))
        devices.start_faults(env, me)
        me.about("cell", me.cell.id)
        me.cell.join(me, speeds.uplink)
        return sessions.run(env, Presence(me), me.rng)

    return Scenario(client, cell=start_cell, cell_clients=cell_clients)


class Cell:
    """An uplink with background users, which sets its clients' share of it."""

    def __init__(self, env: Clock, place: Place, bytes_per_s: float, channels: int, transfer_us: int) -> None:
        self.id, self.users, self._capacity = place.id, 0, channels
        self._env, self._rng, self._bytes_per_s, self._transfer_us = env, place.rng, bytes_per_s, transfer_us
        self._channels = simpy.Resource(cast(simpy.Environment, env), capacity=channels)
        self._clients: list[tuple[Me, float]] = []

    def start(self, load: float) -> None:
        """Start the background traffic in its stationary law."""
        for _ in range(stationary_users(self._rng, load, self._capacity)):
            self._env.process(self._transfer())
        if load > 0:
            self._env.process(self._arrivals(self._transfer_us / (load * self._capacity)))

    def join(self, me: Me, own_bytes_per_s: float) -> None:
        """Add a client whose own uplink has this speed."""
        self._clients.append((me, own_bytes_per_s))
        self._update(me, own_bytes_per_s)

    def _arrivals(self, mean_gap_us: float) -> Life:
        while True:
            yield self._env.timeout(exponential_us(self._rng, mean_gap_us))
            self._env.process(self._transfer())

    def _transfer(self) -> Life:
        # Sizes are exponential, so sharing and waiting for a channel have the same law of N.
        self._count(1)
        with self._channels.request() as channel:
            yield channel
            yield self._env.timeout(exponential_us(self._rng, self._transfer_us))
        self._count(-1)

    def _count(self, change: int) -> None:
        self.users += change
        for me, own in self._clients:
            self._update(me, own)

    def _update(self, me: Me, own_bytes_per_s: float) -> None:
        share = self._bytes_per_s / max(self.users + 1, self._capacity)
        me.begin("uplink", self._env.now, min(own_bytes_per_s, share))


def stationary_users(rng: np.random.Generator, load: float, channels: int) -> int:
    """Draw the number in a stationary M/M/c system: by inversion below c, geometric from c on."""
    n = np.arange(channels)
    offered = load * channels
    logs = (
        n * math.log(offered) - [math.lgamma(i + 1) for i in n]
        if offered > 0
        else np.where(n == 0, 0.0, -np.inf)
    )
    below = np.exp(logs - logs.max())
    above = below[-1] * offered / channels / (1 - load)
    total = np.cumsum(np.append(below, above))
    users = int(np.searchsorted(total, rng.random() * total[-1], side="right"))
    return users if users < channels else channels - 1 + int(rng.geometric(1 - load))
