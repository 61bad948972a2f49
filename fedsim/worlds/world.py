"""Answer questions about a world, in any order: who is online, when that changes, what becomes of a job.

A job downloads the model, computes and uploads its update, at the speeds that its client has at each instant.
Each phase ends on a whole microsecond, rounded up. A phase whose kind no client of the trace describes takes no
time (`World.unmodelled`). A job that runs into a fault is lost. What happens to a job when its client leaves is one
of `LEAVES`:

- `abort`: the job is lost at the first instant before its end at which the client is offline.
- `pause_resume`: the job stands still while the client is offline (FLASH).
- `end_instant`: the job continues, and is lost if the client is offline when it ends (FedScale).
- `ignore`: the job continues and arrives (Plato, FLSim).
- `bernoulli`: as `ignore`, but chance loses some jobs (FLGo; see `Work.lost_at`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from functools import cached_property
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from fedsim.common import arguments
from fedsim.common.arrays import Floats, Ints, Mask
from fedsim.common.errors import TraceError
from fedsim.common.units import US, show_us
from fedsim.worlds.availability import UNKNOWNS, Unknown, availability, sessions_of
from fedsim.worlds.interval_index import NEVER, Intervals, Progress, Series
from fedsim.worlds.job_outcomes import PHASES, Jobs, Outcome, Outcomes, Work, outcomes_of, without
from fedsim.worlds.scalar_outcome import SingleJobs
from fedsim.worlds.trace import KINDS, MODELLED, AfterEnd, Spans, Trace

_PHASE_KINDS = ("downlink", "compute", "uplink")
_IDLE_SESSIONS = 1000
"""Sessions without progress after which a paused and resumed job counts as stuck."""
_MOST_LAPS = 100
"""Laps of the longest period after which clients of different periods count as online together as before."""

__all__ = ["LEAVES", "PHASES", "UNKNOWNS", "Leave", "Outcome", "Outcomes", "Unknown", "Work", "World"]

Leave = Literal["abort", "pause_resume", "end_instant", "ignore", "bernoulli"]
LEAVES: tuple[str, ...] = get_args(Leave)
"""What may happen to a job when its client leaves."""

_AFTER_END: Mapping[AfterEnd, str] = {
    "repeat": 'begins again (world.after_end = "repeat")',
    "stop": 'has nobody online, which ends the run (world.after_end = "stop")',
    "error": 'no more, which fails the run (world.after_end = "error")',
}


class World:
    """The world that a trace describes, for its first `n_clients` clients.

    Args:
        leave: what happens to a job when its client leaves, one of LEAVES.
        unknown: how to read stretches of unknown availability, one of UNKNOWNS.

    Raises TraceError if the trace has fewer clients, has unknown stretches while `unknown` is `error`, or lacks speeds
    of a client that is online.
    """

    @arguments.checked
    def __init__(
        self,
        trace: Trace,
        n_clients: int | None = None,
        *,
        leave: Leave = "abort",
        unknown: Unknown = "error",
    ) -> None:
        n = trace.clients if n_clients is None else n_clients
        if n > trace.clients:
            raise TraceError(
                f"world: the trace has {trace.clients} clients, but {n} are wanted: expected one for each client of "
                "[task] that trains"
            )
        if n < 1:
            raise ValueError(f"n_clients: expected at least 1, found {n}")
        self.clients, self.horizon_us, self.leave = n, int(trace.horizon_us), leave
        self.lap_us = max(self.horizon_us, *(int(trace.period_us(kind).max(initial=0)) for kind in KINDS))
        """The longest time after which a kind of interval of a client begins again."""
        self.after_end: AfterEnd = trace.after_end
        self._end = NEVER if trace.after_end == "repeat" else self.horizon_us
        self._sessions = self._intervals(trace, "online", sessions_of(trace, n, unknown))
        self._availability = availability(self._sessions, n, trace.after_end)
        self._faults = self._intervals(trace, "fault", trace.spans("fault"))
        self._series = {kind: self._read(trace, kind) for kind in MODELLED}
        speeds = [self._series[kind] for kind in _PHASE_KINDS]
        self.single = (
            SingleJobs(self._sessions, self._faults, speeds, self._end) if leave == "abort" else None
        )
        """Outcomes of single jobs in plain numbers; None unless `leave` is `abort`."""
        self.unmodelled = tuple(kind for kind in MODELLED if self._series[kind] is None)

    @cached_property
    def common_lap_us(self) -> int:
        """The time after which the clients are online together as before, at most 100 times `lap_us`."""
        laps = np.unique(self._sessions.lap_us[np.unique(self._sessions.client)]).tolist()
        if self.after_end != "repeat":
            return self.lap_us
        return max(self.lap_us, min(math.lcm(*laps), _MOST_LAPS * self.lap_us))

    def duration_text(self) -> str:
        """Return how long the world is described, and what happens after that, in words."""
        return f"described for {show_us(self.horizon_us)} and then {_AFTER_END[self.after_end]}"

    def most_online(self) -> int:
        """Return how many clients are online together at most; where their periods differ, how many ever are."""
        client, start, end = self._sessions.client, self._sessions.start, self._sessions.end
        if len(np.unique(self._sessions.lap_us)) > 1:
            return len(np.unique(client))
        change = np.repeat([1, -1], len(client))
        order = np.lexsort((change, np.concatenate([start, end])))  # at equal times, leaving comes first
        return int(np.cumsum(change[order]).max(initial=0))

    def online(self, t_us: int) -> Mask:
        """Return [n] whether each client is online at an instant; the array is read-only."""
        self._check_time(t_us)
        return self._availability.online(t_us)

    def peek(self, t_us: int) -> memoryview:
        """Return the same as a view of truth values, at less cost; it is valid until the next question."""
        self._check_time(t_us)
        return self._availability.peek(t_us)

    def online_at(self, clients: Ints, times_us: Ints) -> Mask:
        """Return [k] whether `clients[i]` is online at `times_us[i]`."""
        return self._sessions.covers(clients, times_us) & (times_us < self._end)

    def leaves_us(self, clients: Ints, times_us: Ints) -> Ints:
        """Return [k] when `clients[i]`, online at `times_us[i]`, goes offline; NEVER if it does not."""
        return np.minimum(self._sessions.until(clients, times_us), self._end)

    def fault_us(self, clients: Ints, times_us: Ints) -> Ints:
        """Return [k] the first fault of `clients[i]` from `times_us[i]` on, NEVER if there is none."""
        return self._faults.next_start(clients, times_us)

    def next_change(self, t_us: int) -> int | None:
        """Return the earliest time after `t_us` at which a client's online state may change, or None.

        With `after_end` `error`, the horizon is such a time, unless no state ever changes before it.
        """
        self._check_time(t_us)
        return self._availability.next_change(t_us)

    def outcome(self, client: int, t_us: int, work: Work) -> Outcome:
        """Return the outcome of one job; see `outcomes`."""
        outcomes = self.outcomes(np.array([client]), t_us, work)
        values = {name: column.item() for name, column in asdict(outcomes).items()}
        return Outcome(**values | {"phase": PHASES[values["phase"]]})

    def outcomes(
        self, clients: ArrayLike, t_us: int | Ints, work: Work, until_us: int | Ints | None = None
    ) -> Outcomes:
        """Return the outcome of one job for each of `clients` [k], dispatched at `t_us`, one time or [k].

        A job that is still running at `until_us`, one time or [k], ends there, not ok. Raises ValueError for a client
        that is offline or does not exist, TraceError for a job that runs past the end of a trace whose `after_end` is
        `error`.
        """
        ids = np.atleast_1d(np.asarray(clients, dtype=np.int64))
        self._check_dispatch(ids, t_us)
        jobs = Jobs.of(ids, t_us, work)
        limit = np.minimum(self._abort_at(ids, t_us), self._end)
        lost = np.broadcast_to(np.asarray(work.lost_at) < 1, len(ids))
        if lost.any():
            limit = np.where(lost, np.minimum(limit, self._lost_at(jobs, work)), limit)
        if until_us is not None:
            limit = np.minimum(limit, np.maximum(until_us, t_us))
        result = self._run(jobs, limit)
        if lost.any():
            result = without(result, lost)
        self._check_end(ids, result, until_us)
        if self.leave == "end_instant":
            end_us = result.end_us
            online = self.online_at(ids, end_us) | self._sessions.covers(ids, np.maximum(end_us - 1, t_us))
            result = without(result, ~online)
        return result

    def in_time(self, clients: Ints, t_us: int, work: Work, limit_us: int) -> Mask:
        """Return [k] whether one job of each client would be done by `limit_us` if no job were lost.

        Leaving matters only if it pauses jobs. A limit beyond the end of the trace is no limit.
        """
        if limit_us > self._end:
            return np.ones(len(clients), dtype=bool)
        return self._run(Jobs.of(clients, t_us, work), np.full(len(clients), limit_us)).ok

    def expected_us(self, clients: Ints, t_us: int, work: Work) -> Ints:
        """Return [k] how long one job of each client would take if its speeds stayed as they are at `t_us`.

        Where a client has no speed at `t_us`, its next one counts. Faults and leaving do not.
        """
        jobs = Jobs.of(clients, t_us, work)
        total = np.zeros(len(clients))
        for kind, amount in zip(_PHASE_KINDS, jobs.amounts, strict=True):
            series = self._series[kind]
            if series is not None:
                total += np.ceil(amount * series.cost_now(clients, jobs.start_us))
        return np.asarray(np.minimum(total, NEVER), dtype=np.int64)

    def _intervals(self, trace: Trace, kind: str, spans: Spans) -> Intervals:
        period = trace.period_us(kind)[: self.clients]
        world_lap = self.horizon_us if self.after_end == "repeat" else NEVER
        return Intervals.of(spans, self.clients, self.horizon_us, np.where(period > 0, period, world_lap))

    def _read(self, trace: Trace, kind: str) -> Series | None:
        spans = trace.spans(kind)
        if not len(spans.client):
            return None
        used = spans.value[: np.searchsorted(spans.client, self.clients)]
        second, unit = np.full(len(used), float(US)), np.ones(len(used))
        cost_us, per = (used * second, unit) if kind == "compute" else (second, used)
        series = Series.of(self._intervals(trace, kind, spans), cost_us, per)
        lacking = np.flatnonzero((np.diff(series.spans.first) == 0) & (np.diff(self._sessions.first) > 0))
        if len(lacking):
            raise TraceError(
                f"client {lacking[0]} is online at times but has no {kind!r} interval, while others have"
            )
        return series

    def _run(self, jobs: Jobs, limit: Ints, *, may_pause: bool = True) -> Outcomes:
        phases, clients, start = [], jobs.clients, jobs.start_us
        for kind, amount in zip(_PHASE_KINDS, jobs.amounts, strict=True):
            series = self._series[kind]
            if series is None:
                progress = Progress(start, np.ones(len(clients), dtype=bool), amount)
            elif may_pause and self.leave == "pause_resume":
                progress = self._advance_while_online(series, clients, start, amount, limit)
            else:
                progress = series.advance(clients, start, amount, limit)
            phases.append(progress)
            start = progress.end_us
        return outcomes_of(phases, jobs)

    def _advance_while_online(
        self, series: Series, clients: Ints, start: Ints, amount: Floats, limit: Ints
    ) -> Progress:
        """Work session by session; between sessions jobs stand still."""
        now, left, done = start.copy(), amount.copy(), amount <= 0
        idle = np.zeros(len(clients), dtype=np.int64)
        active = np.flatnonzero(~done & (now < limit))
        while len(active):
            if idle[active].max() > _IDLE_SESSIONS:
                stuck = clients[active[np.argmax(idle[active])]]
                raise TraceError(
                    f"a job of client {stuck} got no further in {_IDLE_SESSIONS} of its sessions: they never meet a "
                    "time at which it can compute or transfer"
                )
            now[active] = np.minimum(self._sessions.next_start(clients[active], now[active]), limit[active])
            active = active[now[active] < limit[active]]
            leaves = np.minimum(self._sessions.until(clients[active], now[active]), limit[active])
            part = series.advance(clients[active], now[active], left[active], leaves)
            now[active], done[active] = part.end_us, part.done
            left[active] = np.maximum(left[active] - part.moved, 0.0)
            idle[active] = np.where(part.moved > 0, 0, idle[active] + 1)
            active = active[~part.done & (part.end_us < limit[active])]
        return Progress(np.where(done, now, limit), done, np.where(done, amount, amount - left))

    def _lost_at(self, jobs: Jobs, work: Work) -> Ints:
        """Return [k] when chance loses each job: after a share of its duration, or of the duration of a phase.

        These are the durations of an undisturbed job, so that the instant does not depend on faults, leaving and
        pauses. A job that would last beyond the end of the world's speeds is not lost before it.
        """
        k = len(jobs.clients)
        whole = self._run(jobs, np.full(k, NEVER), may_pause=False)
        share = np.clip(np.broadcast_to(np.asarray(work.lost_at, dtype=np.float64), k), 0.0, 1.0)
        phase = np.broadcast_to(np.asarray(work.lost_in), k)
        ends = [np.where(e >= 0, e, whole.end_us) for e in (whole.download_us, whole.compute_us)]
        begin = np.choose(phase, [jobs.start_us, jobs.start_us, *ends])
        end = np.choose(phase, [whole.end_us, *ends, whole.end_us])
        return np.asarray(begin + np.floor(share * (end - begin)).astype(np.int64))

    def _abort_at(self, clients: Ints, t_us: int | Ints) -> Ints:
        """Return [k] the first instant from `t_us` on at which a fault, or leaving, ends a job."""
        now = np.full(len(clients), t_us)
        faults = self.fault_us(clients, now)
        return np.minimum(self._sessions.until(clients, now), faults) if self.leave == "abort" else faults

    def _check_time(self, t_us: int) -> None:
        if t_us < 0:
            raise ValueError(f"expected a time of at least 0 us, found {t_us}")
        if self.after_end == "error" and t_us >= self.horizon_us:
            raise TraceError(self._end_message(f"asked about {show_us(t_us)} ({t_us} us)"))

    def _check_dispatch(self, clients: Ints, t_us: int | Ints) -> None:
        for extreme in (t_us,) if isinstance(t_us, int) else (t_us.min(initial=0), t_us.max(initial=0)):
            self._check_time(int(extreme))
        foreign = clients[(clients < 0) | (clients >= self.clients)]
        if len(foreign):
            raise ValueError(f"expected clients from 0 to {self.clients - 1}, found {foreign[0]}")
        online = self.online(t_us)[clients] if isinstance(t_us, int) else self.online_at(clients, t_us)
        offline = np.flatnonzero(~online)
        if len(offline):
            when = np.broadcast_to(t_us, len(clients))[offline[0]]
            raise ValueError(
                f"client {clients[offline[0]]} is offline at {when} us: it cannot be given a job"
            )

    def _check_end(self, clients: Ints, result: Outcomes, until_us: int | Ints | None) -> None:
        endless = clients[~result.ok & (result.end_us >= NEVER)]
        if len(endless):
            raise TraceError(
                f"a job of client {endless[0]} would not end within {NEVER} us: its speeds are too low"
            )
        if self.after_end == "error":
            beyond = np.asarray(until_us is None or np.asarray(until_us) > self.horizon_us)
            running = clients[beyond & ~result.ok & (result.end_us == self.horizon_us)]
            if len(running):
                raise TraceError(self._end_message(f"a job of client {running[0]} would still be running"))

    def _end_message(self, conflict: str) -> str:
        return (
            f"the trace ends at {show_us(self.horizon_us)} ({self.horizon_us} us), {conflict};"
            " make a trace with a longer horizon, or with after_end = 'repeat' or 'stop'"
        )
