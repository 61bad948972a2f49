"""What a scenario is: a program for one client that writes down what happens to it.

A scenario's factory (`scenarios/<name>.py: <name>(*, ...options) -> Scenario`) returns a `Scenario` whose
`client(env, me)` is a SimPy process: it waits with `yield env.timeout(microseconds)` and writes with `me`.
What it writes may depend only on its options, on randomness from `me`, and on what it shares with its cell
or with the whole world; then a client's life is the same however many clients there are.
"""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedsim.common import arguments, plugins
from fedsim.common.errors import ConfigError, TraceError, closest
from fedsim.common.parallel import in_parts
from fedsim.common.rng import Streams
from fedsim.common.units import duration_us
from fedsim.worlds.metadata import metadata_problems
from fedsim.worlds.trace import KINDS, AfterEnd, Trace
from fedsim.worlds.trace_writer import CODES, Fact, Rows
from fedsim.worlds.validation import listed

__all__ = [
    "Clock",
    "Fact",
    "Facts",
    "Life",
    "Me",
    "Place",
    "Rows",
    "Scenario",
    "Streams",
    "duration_option",
    "in_parts",
    "make_trace",
    "number_option",
]

Facts = Mapping[str, NDArray[Any]]
"""What is known of a federation's clients and their data: by name, an array with one entry per client."""


class Place:
    """A part of a world with randomness of its own: one client (`Me`), a cell of clients, or the whole."""

    def __init__(
        self, what: str, number: int, streams: Streams, horizon_us: int, facts: Facts | None = None
    ) -> None:
        self.id = number
        """Which one it is, from 0."""
        self.horizon_us = horizon_us
        """Where the world ends; nothing is kept beyond it."""
        self._what, self._streams, self._facts = what, streams, facts if facts is not None else {}

    @cached_property
    def rng(self) -> np.random.Generator:
        """Randomness of this place, derived from (seed, what it is, number)."""
        return self.stream("client")

    def stream(self, purpose: str) -> np.random.Generator:
        """Return further randomness of this place, so that draws for one purpose never shift another."""
        return self._streams.at(f"{self._what} {purpose}", self.id)

    def facts(self, name: str) -> NDArray[Any]:
        """Return a fact about every client of the federation, such as `n_samples`; see `make_trace`.

        Raises ConfigError where nobody said: a world that is made without a federation knows no data.
        """
        if name not in self._facts:
            instead = closest(name, self._facts) if self._facts else "; fedsim trace make knows no data"
            raise ConfigError(
                f"the scenario needs the fact {name!r} about each client{instead}: use it in a run's [world]"
            )
        return self._facts[name]


class Me(Place):
    """The client that a scenario is speaking for."""

    def __init__(
        self,
        client: int,
        streams: Streams,
        rows: Rows,
        facts: Facts | None = None,
        world: Any = None,
        cell: Any = None,
    ) -> None:
        super().__init__("scenario", client, streams, rows.horizon_us, facts)
        self.world, self.cell = world, cell
        """What `Scenario.world` and `Scenario.cell` returned for the world and for this client's cell."""
        self._rows = rows
        self._open: dict[str, tuple[int, float]] = {}

    def fact(self, name: str) -> Any:
        """Return a fact about this client, such as `n_samples`. Raises ConfigError where nobody said."""
        known = self.facts(name)
        if self.id >= len(known):
            raise ConfigError(f"fact {name!r}: expected one for client {self.id}, found {len(known)} clients")
        return known[self.id].item()

    def about(self, name: str, value: Fact) -> None:
        """Say something about this client (its region, its class): a column of `Trace.about`."""
        plain = value.item() if isinstance(value, np.generic) else value
        if (
            not isinstance(plain, str | bool | int | float)
            or plain in (math.inf, -math.inf)
            or plain != plain
        ):
            raise TypeError(
                f"client {self.id}, about {name!r}: expected a text, a truth value or a finite number, found {value!r}"
            )
        self._rows.about.setdefault(name, {})[self.id] = plain

    def online(self, start_us: int, end_us: int) -> None:
        """Be online over [start_us, end_us)."""
        self.write("online", start_us, end_us)

    def fault(self, start_us: int, end_us: int) -> None:
        """Lose any job that runs inside [start_us, end_us)."""
        self.write("fault", start_us, end_us)

    def write(self, kind: str, start_us: int, end_us: int, value: float = 1.0) -> None:
        """Write an interval of a kind (see `fedsim.worlds.trace.KINDS`); what lies beyond the horizon is cut off."""
        if not (isinstance(start_us, int) and isinstance(end_us, int)):
            raise self._no_time(kind, start_us=start_us, end_us=end_us)
        code = CODES.get(kind)
        if code is None:
            raise ValueError(f"client {self.id}: there is no kind {kind!r}{closest(kind, KINDS)}")
        rows, horizon_us = self._rows, self._rows.horizon_us
        if start_us >= horizon_us:
            return
        rows.client.append(self.id)
        rows.start_us.append(start_us)
        rows.end_us.append(end_us if end_us < horizon_us else horizon_us)
        rows.kind.append(code)
        rows.value.append(value)

    def _no_time(self, kind: str, **times: object) -> TypeError:
        name, found = next((name, time) for name, time in times.items() if not isinstance(time, int))
        return TypeError(
            f"client {self.id}, {kind}: {name} should be whole microseconds (int), found {found!r}"
        )

    def begin(self, kind: str, now_us: int, value: float = 1.0) -> None:
        """Have a kind with a value from now on, until `begin` or `end` says otherwise or the world ends."""
        held = self._open.get(kind)
        if held is None or held[1] != value:
            self.end(kind, now_us)
            self._open[kind] = (now_us, value)

    def end(self, kind: str, now_us: int) -> None:
        """End what `begin` began; nothing where nothing is going on."""
        since_us, value = self._open.pop(kind, (now_us, 1.0))
        if since_us != now_us:
            self.write(kind, since_us, now_us, value)

    def finish(self) -> None:
        """End what is still going on at the end of the world."""
        for kind in tuple(self._open):
            self.end(kind, self.horizon_us)


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
    """What a scenario's factory returns: the SimPy process of one client, and what clients share.

    `world(env, place)` is called once, `cell(env, place)` once for each `cell_clients` clients in order of
    number. They return anything, which clients find as `me.world` and `me.cell`, and may start processes with
    `env.process`. A cell may listen to its clients: whole cells are simulated, and clients beyond those asked
    for are dropped. The world must not listen to clients, or they would depend on how many there are.
    """

    client: Callable[[Any, Me], Life]
    cell: Callable[[Any, Place], Any] | None = None
    cell_clients: int = 1
    world: Callable[[Any, Place], Any] | None = None
    after_end: AfterEnd = "repeat"
    """Default of `world.after_end`: `stop` for scenarios that model an end, such as permanent dropout."""


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
    """Write down the world of a scenario (its name, or `path/to/file.py:factory`) with options from a config.

    `facts` say what is known of the federation, one entry per client: `n_samples`, `min_label`, `max_label`,
    `n_labels` (different labels of a client) and `labels` (of the task, the same for all).

    Without `after_end` it is the scenario's own.

    The first clients of a larger world are the same as those of a smaller one, and a longer horizon begins as
    a shorter one. Raises ConfigError for an unknown scenario or option or a fact that is needed and absent,
    TraceError if the scenario writes a malformed trace.
    """
    scenario = plugins.build("scenario", name, options)
    if not isinstance(scenario, Scenario):
        raise ConfigError(f"scenario {name!r}: expected its factory to return a Scenario, found {scenario!r}")
    after_end = after_end or scenario.after_end
    known = _checked_facts(facts or {}, clients)
    source = json.dumps(
        {"scenario": name, "options": dict(options), "seed": seed}
        | ({"facts": sorted(known)} if known else {}),
        sort_keys=True,
        default=str,
    )
    if problems := metadata_problems(clients, horizon_us, after_end, origin=""):
        raise TraceError(listed(problems))
    simulate = importlib.import_module("fedsim.scenarios.processes.simulate").simulate
    trace: Trace = simulate(
        scenario,
        clients=clients,
        horizon_us=horizon_us,
        seed=seed,
        after_end=after_end,
        source=source,
        facts=known,
        name=name,
    )
    return trace


def _checked_facts(facts: Mapping[str, ArrayLike], clients: int) -> Facts:
    known = {key: np.asarray(values) for key, values in facts.items()}
    for key, values in known.items():
        if values.shape != (clients,):
            raise ConfigError(
                f"fact {key!r}: expected one entry for each of {clients} clients, found shape {values.shape}"
            )
    return known


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
