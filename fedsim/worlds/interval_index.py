"""Search the intervals of many clients at once, in a few flat arrays.

The intervals of one client are sorted and do not overlap. Clients follow each other on one axis of integers
(`client * (horizon + 1) + time`), so one binary search answers for any mixture of clients. Where a client's
intervals begin again, time is counted in laps, whose length may differ from client to client.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsim.common.arrays import Floats, Ints, Mask
from fedsim.worlds.trace import Spans

NEVER = 2**62
"""A time beyond all times."""
CAUTION = 1e-9
"""Largest relative rounding error of a lap's work."""
SLACK = 1e-12
"""Relative rounding error forgiven before a duration is rounded up: 3 samples of 0.07 s are 210,000 us."""


@dataclass(frozen=True, slots=True)
class Intervals:
    """The intervals of one kind in order of (client, start)."""

    start: Ints
    end: Ints
    first: Ints
    """[n + 1] client c has the intervals from `first[c]` up to, not including, `first[c + 1]`."""
    axis_end: Ints
    """`end` on the common axis."""
    horizon_us: int
    lap_us: Ints
    """[n] time after which each client's intervals begin again; NEVER if they do not."""

    @staticmethod
    def of(spans: Spans, n: int, horizon_us: int, lap_us: Ints) -> Intervals:
        """Index the intervals of the first `n` clients. None may end after its client's lap."""
        keep = slice(0, int(np.searchsorted(spans.client, n)))
        client, start, end = spans.client[keep], spans.start_us[keep], spans.end_us[keep]
        first = np.searchsorted(client, np.arange(n + 1))
        return Intervals(start, end, first, client * (horizon_us + 1) + end, horizon_us, lap_us[:n])

    @property
    def client(self) -> Ints:
        """Client of each interval."""
        return np.repeat(np.arange(len(self.first) - 1), np.diff(self.first))

    def laps(self, clients: Ints, t_us: Ints) -> tuple[Ints, Ints]:
        """Return the start of each time's lap, and the time since then."""
        lap = self.lap_us[clients]
        begin = t_us // lap * lap
        return begin, t_us - begin

    def after(self, clients: Ints, time: Ints) -> Ints:
        """Return each client's first interval that ends after `time` in its lap, or `first[c + 1]`."""
        return np.searchsorted(self.axis_end, clients * (self.horizon_us + 1) + time, side="right")

    def next_start(self, clients: Ints, t_us: Ints) -> Ints:
        """Return the earliest time from `t_us` on at which an interval is active, NEVER if there is none."""
        begin, time = self.laps(clients, t_us)
        at = self.after(clients, time)
        in_lap = at < self.first[clients + 1]
        result = np.full(len(clients), NEVER)
        result[in_lap] = np.maximum(begin[in_lap] + self.start[at[in_lap]], t_us[in_lap])
        lap = self.lap_us[clients]
        wraps = ~in_lap & (self.first[clients] < self.first[clients + 1]) & (lap < NEVER)
        result[wraps] = begin[wraps] + lap[wraps] + self.start[self.first[clients[wraps]]]
        return result

    def covers(self, clients: Ints, t_us: Ints) -> Mask:
        """Return whether each client is in one of its intervals."""
        _, time = self.laps(clients, t_us)
        at = self.after(clients, time)
        inside = at < self.first[clients + 1]
        inside[inside] = self.start[at[inside]] <= time[inside]
        return inside

    def until(self, clients: Ints, t_us: Ints) -> Ints:
        """Return the end of the interval that each client is in at `t_us`; it must be in one.

        No two intervals may touch within a lap. An interval that ends with its lap continues in one that starts the
        next; if that is the same interval, it ends NEVER.
        """
        begin, time = self.laps(clients, t_us)
        at = self.after(clients, time)
        result = begin + self.end[at]
        lap, opening = self.lap_us[clients], self.first[clients]
        through = (self.end[at] == lap) & (self.start[opening] == 0)
        result[through] = (begin + lap)[through] + self.end[opening[through]]
        result[through & (self.end[opening] == lap)] = NEVER
        return result


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the work of k jobs got: arrays [k]."""

    end_us: Ints
    """When the work was done, or the limit."""
    done: Mask
    moved: Floats
    """Amount of work done by then."""


@dataclass(frozen=True, slots=True)
class Series:
    """Piecewise-constant speeds: `per` units of work take `cost_us`; between intervals nothing moves."""

    spans: Intervals
    cost_us: Floats
    per: Floats
    lap_capacity: Floats
    """[n] work that each client can do in a lap."""

    @staticmethod
    def of(spans: Intervals, cost_us: Floats, per: Floats) -> Series:
        """Pair intervals with their costs [intervals]."""
        work = (spans.end - spans.start) * per / cost_us
        capacity = np.bincount(spans.client, work, minlength=len(spans.first) - 1)
        return Series(spans, cost_us, per, capacity.astype(np.float64))

    def cost_now(self, clients: Ints, t_us: Ints) -> Floats:
        """Return the microseconds that a unit of work takes at the speed at `t_us`, else at the next one after it."""
        _, time = self.spans.laps(clients, t_us)
        at = self.spans.after(clients, time)
        past = at >= self.spans.first[clients + 1]
        at[past] = self.spans.first[clients[past]]
        return np.asarray(self.cost_us[at] / self.per[at])

    def advance(self, clients: Ints, start_us: Ints, amount: Floats, limit_us: Ints) -> Progress:
        """Do `amount` [k] of work of `clients` [k] from `start_us` on, as much as is possible by `limit_us`.

        The end is rounded up to whole microseconds once, at the end. An amount of 0 is done at once.
        """
        now, left = start_us.copy(), amount.copy()
        jobs = _Unfinished(clients, now, left, limit_us, left <= 0)
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            self._skip_laps(jobs)
            begin, time = self.spans.laps(clients, now)
            at = self.spans.after(clients, time)
            active = np.flatnonzero(~jobs.done & (now < limit_us))
            while len(active):
                active = self._enter(clients, at, begin, active)
                active = self._work(jobs, active, at, begin)
        end, moved = np.where(jobs.done, now, limit_us), np.maximum(amount - left, 0.0)
        return Progress(end, jobs.done, np.where(jobs.done, amount, moved))

    def _skip_laps(self, jobs: _Unfinished) -> None:
        """Pass over whole laps at once, keeping about one lap's work: a lap does the same work wherever it begins.

        More than rounding error stays to be done: that alone would cost a microsecond.
        """
        now, left, limit_us = jobs.now, jobs.left, jobs.limit_us
        capacity, lap = self.lap_capacity[jobs.clients], self.spans.lap_us[jobs.clients]
        long = np.flatnonzero((left > capacity) & (now < limit_us) & (lap < NEVER))
        wanted = np.maximum(np.ceil(left[long] / capacity[long] * (1 - CAUTION)) - 1, 0)
        laps = np.minimum(wanted, (limit_us[long] - now[long]) // lap[long]).astype(np.int64)
        now[long] += laps * lap[long]
        left[long] = np.maximum(left[long] - laps * capacity[long], 0.0)

    def _enter(self, clients: Ints, at: Ints, begin: Ints, active: Ints) -> Ints:
        """Move jobs past their client's last interval to the next lap's first; drop them if there is no next lap."""
        past = at[active] >= self.spans.first[clients[active] + 1]
        wraps = active[past & (self.spans.lap_us[clients[active]] < NEVER)]
        at[wraps] = self.spans.first[clients[wraps]]
        begin[wraps] += self.spans.lap_us[clients[wraps]]
        past[past] = self.spans.lap_us[clients[active[past]]] >= NEVER
        return active[~past]

    def _work(self, jobs: _Unfinished, active: Ints, at: Ints, begin: Ints) -> Ints:
        """Work through the current interval of each active job; return the jobs that continue in the next."""
        interval, offset, limit_us = at[active], begin[active], jobs.limit_us[active]
        opens = np.maximum(jobs.now[active], offset + self.spans.start[interval])
        stop = np.minimum(offset + self.spans.end[interval], limit_us)
        span = np.maximum(stop - opens, 0)
        cost, per = self.cost_us[interval], self.per[interval]
        needed = np.ceil(jobs.left[active] * cost / per * (1 - SLACK))
        ends = (needed <= span) & (opens <= limit_us)
        jobs.now[active[ends]] = opens[ends] + needed[ends].astype(np.int64)
        jobs.done[active[ends]] = True
        continues = ~ends
        jobs.left[active[continues]] -= span[continues] * per[continues] / cost[continues]
        jobs.now[active[continues]] = np.maximum(opens, stop)[continues]
        at[active[continues]] += 1
        unfinished: Ints = active[continues & (jobs.now[active] < limit_us)]
        return unfinished


@dataclass(frozen=True, slots=True)
class _Unfinished:
    """Jobs that `Series.advance` works on: arrays [k], all but `clients` and `limit_us` changed in place."""

    clients: Ints
    now: Ints
    left: Floats
    limit_us: Ints
    done: Mask
