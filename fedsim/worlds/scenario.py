"""Define scenarios: SimPy processes, one per client, that write down what happens to the client.

A scenario's factory (`scenarios/<name>.py: <name>(*, ...options) -> Scenario`) returns a `Scenario` whose
`client(env, me)` is a SimPy process: it waits with `yield env.timeout(microseconds)` and writes with `me`.
It may write only what follows from its options, from the randomness of `me`, and from what it shares with its cell
or the whole world; then what happens to a client does not depend on the number of clients.
"""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedsim import plugins
from fedsim.common import arguments
from fedsim.common.errors import ConfigError, TraceError, closest
from fedsim.common.rng import Streams
from fedsim.common.units import duration_us
from fedsim.worlds.metadata import metadata_problems
from fedsim.worlds.trace import KINDS, AfterEnd, Trace
from fedsim.worlds.trace_writer import CODES, Fact, TraceWriter
from fedsim.worlds.validation import listed

Facts = Mapping[str, NDArray[Any]]
"""Facts about a federation's clients and their data: by name, an array with one entry per client."""


class Place:
    """A part of a world with its own randomness: one client (`Me`), a cell of clients, or the whole world."""

    def __init__(
        self, part: str, number: int, streams: Streams, horizon_us: int, facts: Facts | None = None
    ) -> None:
        self.id = number
        """Number of the client or cell, from 0."""
        self.horizon_us = horizon_us
        """Where the world ends; intervals are cut off there."""
        self._part, self._streams, self._facts = part, streams, facts if facts is not None else {}

    @cached_property
    def rng(self) -> np.random.Generator:
        """Randomness of this place, derived from the seed, the part of the world and its number."""
        return self.stream("client")

    def stream(self, purpose: str) -> np.random.Generator:
        """Return further randomness of this place, so that draws for one purpose never shift another."""
        return self._streams.at(f"{self._part} {purpose}", self.id)

    def facts(self, name: str) -> NDArray[Any]:
        """Return a fact about every client of the federation, such as `n_samples`; see `make_trace`.

        Raises ConfigError if the fact is unknown, as all are where a world is made without a federation.
        """
        if name not in self._facts:
            if self._facts:
                raise ConfigError(
                    f"there is no fact {name!r} about each client's data{closest(name, self._facts)}"
                )
            raise ConfigError(
                f"the scenario needs the fact {name!r} about each client's data: use it in a run's [world], without "
                "world.clients"
            )
        return self._facts[name]


class Me(Place):
    """The client whose process is running: what it knows, and what it may write."""

    def __init__(
        self,
        client: int,
        streams: Streams,
        writer: TraceWriter,
        facts: Facts | None = None,
        world: Any = None,
        cell: Any = None,
    ) -> None:
        super().__init__("scenario", client, streams, writer.horizon_us, facts)
        self.world, self.cell = world, cell
        """What `Scenario.world` and `Scenario.cell` returned for the world and for this client's cell."""
        self._writer = writer
        self._open: dict[str, tuple[int, float]] = {}

    def fact(self, name: str) -> Any:
        """Return a fact about this client, such as `n_samples`. Raises ConfigError if it is unknown."""
        values = self.facts(name)
        if self.id >= len(values):
            raise ConfigError(
                f"fact {name!r}: expected one for client {self.id}, found {len(values)} clients"
            )
        return values[self.id].item()

    def about(self, name: str, value: Fact) -> None:
        """Record a fact about this client (its region, its class) in a column of `Trace.about`."""
        plain = value.item() if isinstance(value, np.generic) else value
        if not isinstance(plain, Fact) or (isinstance(plain, float) and not math.isfinite(plain)):
            raise TypeError(
                f"client {self.id}, about {name!r}: expected a text, a truth value or a finite number, found {value!r}"
            )
        self._writer.about.setdefault(name, {})[self.id] = plain

    def online(self, start_us: int, end_us: int) -> None:
        """Be online over [start_us, end_us)."""
        self.write("online", start_us, end_us)

    def fault(self, start_us: int, end_us: int) -> None:
        """Lose any job that runs inside [start_us, end_us)."""
        self.write("fault", start_us, end_us)

    def write(self, kind: str, start_us: int, end_us: int, value: float = 1.0) -> None:
        """Write an interval of a kind (see `fedsim.worlds.trace.KINDS`), cut off at the horizon.

        Raises TypeError for times that are not whole microseconds, ValueError for an unknown kind.
        """
        if not (type(start_us) is type(end_us) is int):
            start_us, end_us = self._whole(kind, start_us=start_us, end_us=end_us)
        code = CODES.get(kind)
        if code is None:
            raise self._unknown(kind)
        writer, horizon_us = self._writer, self._writer.horizon_us
        if start_us >= horizon_us:
            return
        writer.client.append(self.id)
        writer.start_us.append(start_us)
        writer.end_us.append(end_us if end_us < horizon_us else horizon_us)
        writer.kind.append(code)
        writer.value.append(value)

    def _unknown(self, kind: str) -> ValueError:
        return ValueError(f"client {self.id}: there is no kind {kind!r}{closest(kind, KINDS)}")

    def _whole(self, kind: str, **times: object) -> list[int]:
        """Return times as Python's integers. Raises TypeError for any but whole numbers, such as NumPy's."""
        for name, value in times.items():
            if not isinstance(value, Integral):
                raise TypeError(
                    f"client {self.id}, {kind}: {name} should be whole microseconds (int), found {value!r}"
                )
        return [int(cast(Integral, value)) for value in times.values()]

    def begin(self, kind: str, now_us: int, value: float = 1.0) -> None:
        """Begin an interval of a kind; it lasts until `begin` with another value, `end`, or the horizon.

        Raises ValueError for an unknown kind.
        """
        current = self._open.get(kind)
        if current is None or current[1] != value:
            self.end(kind, now_us)
            self._open[kind] = (now_us, value)

    def end(self, kind: str, now_us: int) -> None:
        """Write the interval that `begin` began, if there is one. Raises ValueError for an unknown kind."""
        if kind not in CODES:
            raise self._unknown(kind)
        since_us, value = self._open.pop(kind, (now_us, 1.0))
        if since_us != now_us:
            self.write(kind, since_us, now_us, value)

    def finish(self) -> None:
        """End all intervals that have begun, at the horizon."""
        for kind in tuple(self._open):
            self.end(kind, self.horizon_us)


Life = Generator[Any, Any, None]
"""A SimPy process: a generator of events to wait for."""


class Clock(Protocol):
    """The part of `simpy.Environment` that scenarios use most; its time is whole microseconds."""

    @property
    def now(self) -> int:
        """Virtual time in microseconds."""

    def timeout(self, delay: int, /) -> Any:
        """Return an event to wait for: `yield env.timeout(microseconds)`."""

    def process(self, generator: Life, /) -> Any:
        """Start another process beside this one."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """The SimPy process of one client, and what clients share; returned by a scenario's factory.

    `world(env, place)` is called once, `cell(env, place)` once for every `cell_clients` clients in order of
    number. They may return any object, which clients find as `me.world` and `me.cell`, and may start processes with
    `env.process`. A cell may react to its clients: whole cells are simulated, and surplus clients are dropped.
    The world must not react to clients, or their lives would depend on the number of clients.
    """

    client: Callable[[Any, Me], Life]
    cell: Callable[[Any, Place], Any] | None = None
    cell_clients: int = 1
    world: Callable[[Any, Place], Any] | None = None
    after_end: AfterEnd = "repeat"
    """Default of `world.after_end`; `stop` for scenarios that model an end, such as permanent dropout."""


@arguments.checked
@plugins.contained()
def make_trace(
    name: str,
    options: Mapping[str, Any],
    *,
    clients: int,
    horizon_us: int,
    seed: int,
    after_end: AfterEnd | None = "error",
    facts: Mapping[str, ArrayLike] | None = None,
) -> Trace:
    """Return the trace of a scenario: its name, or `path/to/file.py:factory`, and its options.

    `facts` say what is known of the federation, one entry per client: `n_samples` for training; `min_label`,
    `max_label` and `n_labels` (different labels) of the samples for training and validation; `labels` (of the task, the
    same for all).

    If `after_end` is None, the scenario's own holds. The first clients of a larger world are those of a smaller one,
    and a longer horizon begins as a shorter one. Raises ConfigError for an unknown scenario or option and for a missing
    fact, TraceError if the scenario writes a malformed trace.
    """
    scenario = plugins.build("scenario", name, options)
    if not isinstance(scenario, Scenario):
        raise ConfigError(f"scenario {name!r}: expected its factory to return a Scenario, found {scenario!r}")
    after_end = after_end or scenario.after_end
    known = _checked_facts(facts or {}, clients)
    source: dict[str, Any] = {"scenario": name, "options": dict(options), "seed": seed}
    if known:
        source["facts"] = sorted(known)
    if problems := metadata_problems(clients, horizon_us, after_end, origin=""):
        raise TraceError(f"scenario {name!r}: {listed(problems)}")
    simulate = importlib.import_module("fedsim.scenarios.processes.simulate").simulate
    writer: TraceWriter = simulate(
        scenario, clients=clients, horizon_us=horizon_us, seed=seed, facts=known, name=name
    )
    try:
        return writer.trace(clients, after_end, json.dumps(source, sort_keys=True, default=str))
    except TraceError as error:
        raise TraceError(f"scenario {name!r}: {error}") from error


def _checked_facts(facts: Mapping[str, ArrayLike], clients: int) -> Facts:
    arrays = {name: np.asarray(values) for name, values in facts.items()}
    for name, values in arrays.items():
        if values.shape != (clients,):
            raise ConfigError(
                f"fact {name!r}: expected one entry for each of {clients} clients, found shape {values.shape}"
            )
    return arrays


def duration_option(name: str, text: str | float, least_us: int = 1) -> int:
    """Return a duration option such as `"8h"` in microseconds. Raises ConfigError that names the option."""
    try:
        time_us = duration_us(text)
    except ValueError as error:
        raise ConfigError(f"scenario option {name!r}: {error}") from error
    if time_us < least_us:
        raise ConfigError(f"scenario option {name!r}: expected at least {least_us} us, found {text!r}")
    return time_us


def number_option(
    name: str, value: float, low: float, high: float = math.inf, *, open_ends: bool = False
) -> float:
    """Return an option's value as a float, from `low` to `high`, or strictly between with `open_ends`.

    Raises ConfigError that names the option.
    """
    inside = low < value < high if open_ends else low <= value <= high
    if not (inside and math.isfinite(value)):
        between = f"strictly between {low:g} and {high:g}" if open_ends else f"from {low:g} to {high:g}"
        raise ConfigError(f"scenario option {name!r}: expected a number {between}, found {value!r}")
    return float(value)
