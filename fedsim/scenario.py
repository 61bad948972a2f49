"""What a scenario is: a program for one client that writes down what happens to it.

A scenario's factory (`scenarios/<name>.py: <name>(*, ...options) -> Scenario`) returns a `Scenario` whose
`client(env, me)` is a SimPy process: it waits with `yield env.timeout(microseconds)` and writes with `me`.
What it writes may depend only on its options and on randomness from `me`; then a client's life is the same
however many clients there are.
"""

from __future__ import annotations

import importlib
import json
import math
from array import array
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from fedsim import plugins
from fedsim.errors import ConfigError, closest
from fedsim.rng import rng
from fedsim.trace import KINDS, AfterEnd, Trace
from fedsim.units import duration_us


@dataclass(frozen=True, slots=True)
class Rows:
    """Where all clients write: columns that grow."""

    horizon_us: int
    client: array[int] = field(default_factory=lambda: array("i"))
    start_us: array[int] = field(default_factory=lambda: array("q"))
    end_us: array[int] = field(default_factory=lambda: array("q"))
    kind: array[int] = field(default_factory=lambda: array("b"))
    value: array[float] = field(default_factory=lambda: array("d"))


class Me:
    """The client that a scenario is speaking for."""

    def __init__(self, client: int, seed: int, rows: Rows) -> None:
        self.id = client
        self._seed, self._rows = seed, rows
        self.rng = self.stream("client")
        """Randomness of this client, derived from (seed, client)."""

    @property
    def horizon_us(self) -> int:
        """Where the world ends; nothing is kept beyond it."""
        return self._rows.horizon_us

    def stream(self, purpose: str) -> np.random.Generator:
        """Return further randomness of this client, so that draws for one purpose never shift another."""
        return rng(self._seed, f"scenario {purpose}", self.id)

    def online(self, start_us: int, end_us: int) -> None:
        """Be online over [start_us, end_us)."""
        self.write("online", start_us, end_us)

    def fault(self, start_us: int, end_us: int) -> None:
        """Lose any job that runs inside [start_us, end_us)."""
        self.write("fault", start_us, end_us)

    def write(self, kind: str, start_us: int, end_us: int, value: float = 1.0) -> None:
        """Write an interval of a kind (see `fedsim.trace.KINDS`); what lies beyond the horizon is cut off."""
        for name, time in (("start_us", start_us), ("end_us", end_us)):
            if not isinstance(time, int):
                raise TypeError(
                    f"client {self.id}, {kind}: {name} should be whole microseconds (int), found {time!r}"
                )
        if kind not in KINDS:
            raise ValueError(f"client {self.id}: there is no kind {kind!r}{closest(kind, KINDS)}")
        if start_us >= self._rows.horizon_us:
            return
        self._rows.client.append(self.id)
        self._rows.start_us.append(start_us)
        self._rows.end_us.append(min(end_us, self._rows.horizon_us))
        self._rows.kind.append(KINDS.index(kind))
        self._rows.value.append(value)


Life = Generator[Any, Any, None]
"""A SimPy process: what a client does, from waiting to waiting."""


class Clock(Protocol):
    """The part of `simpy.Environment` that scenarios need most; its time is whole microseconds."""

    @property
    def now(self) -> int:
        """Virtual time in microseconds."""

    def timeout(self, delay: int, /) -> Any:
        """Return an event to wait for: `yield env.timeout(microseconds)`."""

    def process(self, generator: Life, /) -> Any:
        """Start another process beside this one."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """What a scenario's factory returns: the SimPy process of one client, `client(env, me)`."""

    client: Callable[[Any, Me], Life]


def make_trace(
    name: str,
    options: Mapping[str, Any],
    *,
    clients: int,
    horizon_us: int,
    seed: int,
    after_end: AfterEnd = "error",
) -> Trace:
    """Write down the world of a scenario (its name, or `path/to/file.py:factory`) with options from a config.

    The first clients of a larger world are the same as those of a smaller one, and a longer horizon begins as
    a shorter one. Raises ConfigError for an unknown scenario or option, TraceError if the scenario writes a
    malformed trace.
    """
    scenario = plugins.build("scenario", name, options)
    if not isinstance(scenario, Scenario):
        raise ConfigError(f"scenario {name!r}: expected its factory to return a Scenario, found {scenario!r}")
    source = json.dumps(
        {"scenario": name, "options": dict(options), "seed": seed}, sort_keys=True, default=str
    )
    simulate = importlib.import_module("scenarios._simulate").simulate
    trace: Trace = simulate(
        scenario, clients=clients, horizon_us=horizon_us, seed=seed, after_end=after_end, source=source
    )
    return trace


def duration_option(name: str, text: str | float, least_us: int = 1) -> int:
    """Read an option that is a duration such as `"8h"`. Returns microseconds; raises ConfigError."""
    try:
        found = duration_us(text)
    except ValueError as error:
        raise ConfigError(f"scenario option {name!r}: {error}") from error
    if found < least_us:
        raise ConfigError(f"scenario option {name!r}: expected at least {least_us} us, found {text!r}")
    return found


def number_option(
    name: str, value: float, low: float, high: float = math.inf, *, open_ends: bool = False
) -> float:
    """Check that a scenario's option is a number from `low` to `high` (strictly between with `open_ends`)."""
    inside = low < value < high if open_ends else low <= value <= high
    if not (inside and math.isfinite(value)):
        between = f"strictly between {low:g} and {high:g}" if open_ends else f"from {low:g} to {high:g}"
        raise ConfigError(f"scenario option {name!r}: expected a number {between}, found {value!r}")
    return float(value)
