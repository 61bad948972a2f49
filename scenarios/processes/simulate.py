"""Run a scenario in SimPy, one process per client, and collect what clients write."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

import simpy
from simpy.events import Process, Timeout

from fedsim.common.errors import ConfigError, Error
from fedsim.common.parallel import in_parts
from fedsim.common.rng import Streams
from fedsim.common.units import show_us
from fedsim.worlds.scenario import Facts, Life, Me, Place, Scenario
from fedsim.worlds.trace_writer import TraceWriter

GROUP = 64
"""Clients that are simulated together if they share nothing."""
_LEAST = 8
"""Groups from which on a process of their own is worth its start."""
_SIMPY = Path(simpy.__file__).parent
_MOST, _MOST_OF_EACH = 100_000, 1_000
"""Most events at one instant, and more for each client, before a world counts as standing still."""
_MOST_OF_CLIENT = 10_000_000
"""Most events of a client until the horizon; they take a quarter of a minute, and 250 MB if each writes an interval."""
_SURE, _SURE_OF_EACH = 1_000_000, 1_000
"""Events, and more for each client, from whose rate the number until the horizon is forecast."""


class _Mistake(Exception):
    """A mistake of a scenario that raises no error by itself: whose process it is in, where, and what it is."""


class _World(simpy.Environment):
    """A SimPy environment that remembers whose processes run, to name the culprit of an error."""

    def __init__(self, clients: int) -> None:
        super().__init__(initial_time=0)
        self._clients = clients
        self._most = _MOST + _MOST_OF_EACH * clients
        self._lives: WeakKeyDictionary[Process, tuple[str, Any]] = WeakKeyDictionary()
        self.starting = "its world"
        """Owner of the processes that no other process starts."""

    def timeout(self, delay: Any = 0, value: Any = None) -> Timeout:
        """Return an event to wait for. Raises TypeError or ValueError unless `delay` is whole microseconds."""
        if type(delay) is not int and delay != float("inf"):
            if not hasattr(delay, "__index__"):
                raise TypeError(f"env.timeout: expected whole microseconds (int), found {delay!r}")
            delay = int(delay)
        if delay < 0:
            raise ValueError(f"env.timeout: expected at least 0 microseconds, found {delay}")
        return Timeout(self, delay, value)

    def process(self, generator: Any) -> Process:
        """Start a process, which belongs to the owner of the running one."""
        if not hasattr(generator, "throw"):
            raise TypeError(f"env.process: expected a process, found {type(generator).__name__}")
        running = self.active_process
        owner = self._lives[running][0] if running is not None and running in self._lives else self.starting
        started = Process(self, _owned(generator, owner))
        self._lives[started] = owner, generator
        return started

    def run(self, until: Any = None) -> NoReturn:
        """Raise RuntimeError: a scenario must not run its own environment."""
        raise RuntimeError("env.run: a scenario's processes wait for time to pass, and do not make it pass")

    def live(self, horizon_us: int) -> None:
        """Process all events before the horizon. Raises _Mistake for a world that stands still or has too many."""
        instant: float = 0
        events, part = 0, _SURE + _SURE_OF_EACH * self._clients
        for total in count(1):
            if (now := self.peek()) >= horizon_us:
                break
            if now != instant:
                instant, events = now, 0
            events += 1
            if events > self._most:
                raise _Mistake(
                    f"{self._next()}: expected virtual time to pass, found {self._most:,} events at {now} us: wait "
                    "with `yield env.timeout(microseconds)`"
                )
            if total % part == 0:
                self._check_rate(total, now, horizon_us)
            self.step()
        self._check_waiting()

    def _check_rate(self, events: int, now_us: float, horizon_us: int) -> None:
        """Raise _Mistake if the events until now would become too many until the horizon."""
        if events * horizon_us > _MOST_OF_CLIENT * self._clients * now_us:
            raise _Mistake(
                f"{self._next()}: expected at most {_MOST_OF_CLIENT:,} events of a client in {show_us(horizon_us)}, "
                f"found {events:,} of {self._clients:,} clients in the first {show_us(int(now_us))}: waits are in "
                "microseconds; multiply seconds by US"
            )

    def who(self, error: BaseException) -> str:
        """Return the owner of the process that an error went through, and the line of its file."""
        frames = [frame for each in _causes(error) for frame in traceback.walk_tb(each.__traceback__)]
        owned = [frame for frame, _ in frames if frame.f_code is _owned.__code__]
        if owned:
            owner, life = owned[-1].f_locals["owner"], owned[-1].f_locals["life"]
        elif (running := self.active_process) is not None and running in self._lives:
            owner, life = self._lives[running]
            return f"{owner}{_waits_at(life)}"
        else:
            called = [(Path(frame.f_code.co_filename), line) for frame, line in frames]
            own = [(p.name, line) for p, line in called if p != Path(__file__) and _SIMPY not in p.parents]
            return self.starting + (f" ({own[0][0]}, line {own[0][1]})" if own else "")
        file = life.gi_code.co_filename if hasattr(life, "gi_code") else None
        lines = [line for frame, line in frames if frame.f_code.co_filename == file]
        return f"{owner} ({Path(file).name}, line {lines[-1]})" if file and lines else str(owner)

    def _next(self) -> str:
        """Return the owner of the process that runs next, and the line at which it waits."""
        while True:
            waiting = {process: process.target for process in self._lives}
            places = {process: _waits_at(self._lives[process][1]) for process in waiting}
            self.step()
            for process, target in waiting.items():
                if process.target is not target or not process.is_alive:
                    return f"{self._lives[process][0]}{places[process]}"

    def _check_waiting(self) -> None:
        """Raise _Mistake for a process that waits for an event of another environment, which never comes."""
        for process, (owner, life) in self._lives.items():
            target = process.target if process.is_alive else None
            if target is not None and target.env is not self:
                raise _Mistake(
                    f"{owner}{_waits_at(life)}: expected an event of the `env` that it is given, found one of another"
                )


def _owned(life: Any, owner: str) -> Generator[Any, Any, Any]:
    """Run a process in a frame that holds its owner, where `_World.who` finds it in a traceback."""
    return (yield from life)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes: simpy raises copies of errors."""
    while error is not None:
        yield error
        error = error.__cause__


def _waits_at(life: Any) -> str:
    """Return the file and line at which a process waits, in brackets."""
    frame: FrameType | None = getattr(life, "gi_frame", None)
    return "" if frame is None else f" ({Path(frame.f_code.co_filename).name}, line {frame.f_lineno})"


@dataclass(frozen=True, slots=True)
class _Simulation:
    """What all groups of a scenario's clients share."""

    scenario: Scenario
    name: str
    clients: int
    """Clients whose rows are kept; others only complete the last cell."""
    streams: Streams
    facts: Facts | None


def simulate(
    scenario: Scenario,
    *,
    clients: int,
    horizon_us: int,
    seed: int,
    facts: Facts | None = None,
    name: str = "",
) -> TraceWriter:
    """Return what `clients` clients write over [0, horizon_us); messages call the scenario `name`.

    Raises ConfigError for an error in the scenario, with the client and the line.
    """

    if not isinstance(scenario.cell_clients, int) or scenario.cell_clients < 1:
        found = scenario.cell_clients
        raise ConfigError(
            f"scenario {name!r}, cell_clients: expected a whole number from 1 on, found {found!r}"
        )

    def write(groups: Sequence[range]) -> TraceWriter:
        writer = TraceWriter(horizon_us)
        simulation = _Simulation(scenario, name, clients, Streams(seed), facts)
        with _collecting_by_hand():
            for group in groups:
                _live(simulation, group, writer)
                gc.collect(0)
        return writer

    return TraceWriter.joined(in_parts(write, list(_groups(scenario, clients)), _LEAST))


def _groups(scenario: Scenario, clients: int) -> Iterator[range]:
    """Divide the clients, and those that complete the last cell, into groups that share nothing.

    Each group is simulated separately: what a few clients need fits into the processor's caches.
    """
    size = scenario.cell_clients
    with_last_cell = -(-clients // size) * size
    together = with_last_cell if scenario.world else max(1, GROUP // size) * size
    for first in range(0, with_last_cell, together):
        yield range(first, min(first + together, with_last_cell))


@contextmanager
def _collecting_by_hand() -> Iterator[None]:
    """Switch automatic garbage collection off: while a group is simulated, there is no cyclic garbage."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _live(simulation: _Simulation, group: range, writer: TraceWriter) -> None:
    """Simulate a group of clients until the horizon."""
    env, scenario = _World(len(group)), f"scenario {simulation.name!r}"
    try:
        clients = list(_started(env, simulation, group, writer))
        env.starting = "an event that nobody waits for"
        env.live(writer.horizon_us)
        for me in clients:
            me.finish()
    except Error:
        raise
    except _Mistake as error:
        raise ConfigError(f"{scenario}, {error}") from error
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{scenario}, {env.who(error)}: {_last_line(error)}") from error


def _last_line(error: BaseException) -> str:
    """Return the last line of an error of simpy or a scenario."""
    line = f"{type(error).__name__}: {error}".strip().split("\n")[-1]
    if line.startswith("Invalid yield"):
        return f"expected an event, such as `yield env.timeout(1)`: {line}"
    return line


def _started(env: _World, simulation: _Simulation, group: range, writer: TraceWriter) -> Iterator[Me]:
    """Start the world, its cells and their clients. What surplus clients of the last cell write is dropped."""
    scenario, streams, facts = simulation.scenario, simulation.streams, simulation.facts
    size, dropped = scenario.cell_clients, TraceWriter(writer.horizon_us)

    def place(part: str, number: int) -> Place:
        return Place(f"{part} of a scenario", number, streams, writer.horizon_us, facts)

    world = _shared(scenario.world(env, place("world", 0)), env.starting) if scenario.world else None
    for cell_number in range(group.start // size, group.stop // size):
        env.starting = f"cell {cell_number}"
        cell = (
            _shared(scenario.cell(env, place("cell", cell_number)), env.starting) if scenario.cell else None
        )
        for client in range(cell_number * size, (cell_number + 1) * size):
            env.starting = f"client {client}"
            kept = client < simulation.clients
            me = Me(client, streams, writer if kept else dropped, facts, world, cell)
            env.process(_checked_process(scenario.client(env, me), client))
            yield me


def _shared(found: Any, owner: str) -> Any:
    """Return what clients find as their world or cell. Raises _Mistake for a process that was not started."""
    if isinstance(found, Generator):
        raise _Mistake(
            f"{owner}: expected a function that returns what its clients share, found a process: give it a name of its"
            " own, and start it with `env.process`"
        )
    return found


def _checked_process(life: Life, client: int) -> Life:
    if not hasattr(life, "throw") or not hasattr(life, "__next__"):
        raise _Mistake(
            f"client {client}: expected a process with at least one `yield`, such as `yield env.timeout(1)`, "
            f"found a function that returns {type(life).__name__}"
        )
    return life
