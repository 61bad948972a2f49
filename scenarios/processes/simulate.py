"""Running a scenario in SimPy, one process per client, and writing it down as a Trace."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

import simpy
from simpy.events import Process, Timeout

from fedsim.common.errors import ConfigError, Error
from fedsim.worlds.scenario import Facts, Life, Me, Place, Rows, Scenario, Streams, in_parts
from fedsim.worlds.trace import AfterEnd, Trace

GROUP = 64
"""Clients that are simulated together where they share nothing."""
_LEAST = 8
"""Groups from which on a process of their own is worth its start."""
_SIMPY = Path(simpy.__file__).parent
_MOST, _MOST_OF_EACH = 100_000, 1_000
"""Events at one instant, and as many for each client, from which on a world is taken to stand still."""


class _Mistake(Exception):
    """What a scenario does wrong without an error of its own: whose process it is, where, and what."""


class _World(simpy.Environment):
    """Virtual time that knows whose processes run, to say who is at fault."""

    def __init__(self, clients: int) -> None:
        super().__init__(initial_time=0)
        self._most = _MOST + _MOST_OF_EACH * clients
        self._lives: WeakKeyDictionary[Process, tuple[str, Any]] = WeakKeyDictionary()
        self.starting = "its world"
        """For whom processes are started that no process starts."""

    def timeout(self, delay: Any = 0, value: Any = None) -> Timeout:
        """Return an event to wait for. Raises TypeError or ValueError for what is no number of microseconds."""
        if type(delay) is not int and delay != float("inf"):
            if not hasattr(delay, "__index__"):
                raise TypeError(f"env.timeout: expected whole microseconds (int), found {delay!r}")
            delay = int(delay)
        if delay < 0:
            raise ValueError(f"env.timeout: expected at least 0 microseconds, found {delay}")
        return Timeout(self, delay, value)

    def process(self, generator: Any) -> Process:
        """Start a process."""
        if not hasattr(generator, "throw"):
            raise TypeError(f"env.process: expected a process, found {type(generator).__name__}")
        running = self.active_process
        owner = self._lives[running][0] if running is not None and running in self._lives else self.starting
        started = Process(self, _lived(generator, owner))
        self._lives[started] = owner, generator
        return started

    def run(self, until: Any = None) -> NoReturn:
        """Refuse to run within itself."""
        raise RuntimeError("env.run: a scenario's processes wait for time to pass, and do not make it pass")

    def live(self, horizon_us: int) -> None:
        """Let everything happen before the horizon. Raises _Mistake for a world that stands still."""
        instant: float = 0
        events = 0
        while (now := self.peek()) < horizon_us:
            if now != instant:
                instant, events = now, 0
            events += 1
            if events > self._most:
                raise _Mistake(
                    f"{self._next()}: expected virtual time to pass, found {self._most:,} events at {now} us: wait "
                    "with `yield env.timeout(microseconds)`"
                )
            self.step()
        self._check_waiting()

    def who(self, error: BaseException) -> str:
        """Return whose process an error went through, and in which line of its file."""
        frames = [frame for each in _causes(error) for frame in traceback.walk_tb(each.__traceback__)]
        within = [frame for frame, _ in frames if frame.f_code is _lived.__code__]
        if within:
            owner, life = within[-1].f_locals["owner"], within[-1].f_locals["life"]
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
        """Return whose process is next, and where in its file it waits."""
        while True:
            waiting = {process: process.target for process in self._lives}
            places = {process: _waits_at(self._lives[process][1]) for process in waiting}
            self.step()
            for process, target in waiting.items():
                if process.target is not target or not process.is_alive:
                    return f"{self._lives[process][0]}{places[process]}"

    def _check_waiting(self) -> None:
        """Refuse what waits for an event that never comes, as it belongs to another environment."""
        for process, (owner, life) in self._lives.items():
            target = process.target if process.is_alive else None
            if target is not None and target.env is not self:
                raise _Mistake(
                    f"{owner}{_waits_at(life)}: expected an event of the `env` that it is given, found one of another"
                )


def _lived(life: Any, owner: str) -> Generator[Any, Any, Any]:
    """Live; the name of the owner stands in what a mistake leaves behind."""
    return (yield from life)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and what it came from: simpy raises copies."""
    while error is not None:
        yield error
        error = error.__cause__


def _waits_at(life: Any) -> str:
    """Return the line of its file at which a process waits, in brackets."""
    frame: FrameType | None = getattr(life, "gi_frame", None)
    return "" if frame is None else f" ({Path(frame.f_code.co_filename).name}, line {frame.f_lineno})"


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
    name: str = "",
) -> Trace:
    """Write down what happens to `clients` clients over [0, horizon_us); see `fedsim.worlds.scenario.make_trace`.

    `name` is that of the scenario in messages. Raises ConfigError for what it does wrong, which says who and where.
    """
    if not isinstance(scenario.cell_clients, int) or scenario.cell_clients < 1:
        raise ConfigError(f"a cell of a scenario: expected at least 1 client, found {scenario.cell_clients}")

    def write(groups: Sequence[range]) -> Rows:
        rows, streams = Rows(horizon_us), Streams(seed)
        with _collecting_by_hand():
            for group in groups:
                _live(scenario, name, group, clients, streams, rows, facts)
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
    scenario: Scenario,
    name: str,
    group: range,
    clients: int,
    streams: Streams,
    rows: Rows,
    facts: Facts | None,
) -> None:
    """Write down what happens to a group of clients."""
    env = _World(len(group))
    try:
        everyone = list(_inhabitants(env, scenario, group, clients, streams, rows, facts))
        env.starting = "an event that nobody waits for"
        env.live(rows.horizon_us)
        for me in everyone:
            me.finish()
    except Error:
        raise
    except _Mistake as error:
        raise ConfigError(f"scenario {name!r}, {error}") from error
    except (Exception, SystemExit) as error:
        raise ConfigError(f"scenario {name!r}, {env.who(error)}: {_said(error)}") from error


def _said(error: BaseException) -> str:
    """Return the last line of what simpy or a scenario says."""
    said = f"{type(error).__name__}: {error}".strip().split("\n")[-1]
    return (
        f"expected an event, such as `yield env.timeout(1)`: {said}"
        if said.startswith("Invalid yield")
        else said
    )


def _inhabitants(
    env: _World,
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
        cell, env.starting = None, f"cell {first // size}"
        if scenario.cell:
            cell = scenario.cell(env, Place("cell of a scenario", first // size, streams, horizon_us, facts))
        for client in range(first, first + size):
            me = Me(client, streams, rows if client < clients else nobody, facts, world, cell)
            env.starting = f"client {client}"
            life: Life = scenario.client(env, me)
            if not hasattr(life, "throw") or not hasattr(life, "__next__"):
                raise _Mistake(
                    f"client {client}: expected a process with at least one `yield`, such as `yield env.timeout(1)`, "
                    f"found a function that returns {type(life).__name__}"
                )
            env.process(life)
            yield me
