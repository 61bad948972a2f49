"""Running a scenario in SimPy, one process per client, and writing it down as a Trace."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import simpy

from fedsim.errors import ConfigError
from fedsim.scenario import Clock, Facts, Life, Me, Place, Rows, Scenario, Streams, in_parts
from fedsim.trace import AfterEnd, Trace

GROUP = 64
"""Clients that are simulated together where they share nothing."""
_LEAST = 8
"""Groups from which on a process of their own is worth its start."""


def simulate(
    scenario: Scenario,
    *,
    clients: int,
    horizon_us: int,
    seed: int,
    after_end: AfterEnd = "error",
    source: str = "",
    origin: str = "",
    facts: Facts | None = None,
) -> Trace:
    """Write down what happens to `clients` clients over [0, horizon_us); see `fedsim.scenario.make_trace`."""
    if scenario.cell_clients < 1:
        raise ConfigError(f"a cell of a scenario: expected at least 1 client, found {scenario.cell_clients}")

    def write(groups: Sequence[range]) -> Rows:
        rows, streams = Rows(horizon_us), Streams(seed)
        with _collecting_by_hand():
            for group in groups:
                _live(scenario, group, clients, streams, rows, facts)
                gc.collect(0)
        return rows

    rows = Rows.joined(in_parts(write, list(_groups(scenario, clients)), _LEAST))
    about = rows.about_table(clients)
    return Trace(rows.table(), clients, horizon_us, after_end, source, origin, about=about)


def _groups(scenario: Scenario, clients: int) -> Iterator[range]:
    """Divide the clients, and those that complete the last cell, into groups that share nothing.

    Each is simulated for itself, as what a few clients need fits into the processor's caches.
    """
    size = scenario.cell_clients
    everybody = -(-clients // size) * size
    together = everybody if scenario.world else max(1, GROUP // size) * size
    for first in range(0, everybody, together):
        yield range(first, min(first + together, everybody))


@contextmanager
def _collecting_by_hand() -> Iterator[None]:
    """Look for cyclic garbage only when told to: while a group lives, there is none."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _live(
    scenario: Scenario, group: range, clients: int, streams: Streams, rows: Rows, facts: Facts | None
) -> None:
    """Write down what happens to a group of clients."""
    env = simpy.Environment(initial_time=0)
    clock = cast(Clock, env)  # whole numbers in, whole numbers out
    everyone = list(_inhabitants(clock, scenario, group, clients, streams, rows, facts))
    env.run(until=rows.horizon_us)
    for me in everyone:
        me.finish()


def _inhabitants(
    env: Clock,
    scenario: Scenario,
    group: range,
    clients: int,
    streams: Streams,
    rows: Rows,
    facts: Facts | None,
) -> Iterator[Me]:
    """Start the world, its cells and their clients; those that only complete the last cell write for nobody."""
    horizon_us, size, nobody = rows.horizon_us, scenario.cell_clients, Rows(rows.horizon_us)
    whole = Place("world of a scenario", 0, streams, horizon_us, facts)
    world = scenario.world(env, whole) if scenario.world else None
    for first in group[::size]:
        cell = None
        if scenario.cell:
            cell = scenario.cell(env, Place("cell of a scenario", first // size, streams, horizon_us, facts))
        for client in range(first, first + size):
            me = Me(client, streams, rows if client < clients else nobody, facts, world, cell)
            life: Life = scenario.client(env, me)
            if not hasattr(life, "throw"):
                raise ConfigError(
                    "a scenario's client: expected a process with at least one `yield`, such as "
                    f"`yield env.timeout(1)`, found a function that returns {type(life).__name__}"
                )
            env.process(life)
            yield me
