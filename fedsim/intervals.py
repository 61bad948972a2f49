"""Intervals of many clients in a few flat arrays, searched for many clients at once.

The intervals of one client are sorted and do not overlap. Clients follow each other on one axis of integers
(`client * (horizon + 1) + time`), so one binary search answers for any mixture of clients. If the world
repeats, time beyond the horizon is counted in laps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedsim.trace import Spans

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

NEVER = 2**62
"""A time beyond all times."""
_SLACK = 1e-12
"""Relative rounding error forgiven before a duration is rounded up: 3 samples of 0.07 s are 210,000 us."""


@dataclass(frozen=True, slots=True)
class Intervals:
    """The intervals of one kind. All arrays are in order of (client, start)."""

    start: Ints
    end: Ints
    first: Ints
    """[n + 1] client c has the intervals `first[c]` to `first[c + 1] - 1`."""
    axis_end: Ints
    """`end` on the common axis."""
    horizon_us: int

    @staticmethod
    def of(spans: Spans, n: int, horizon_us: int) -> Intervals:
        """Take the intervals of the first `n` clients."""
        keep = slice(0, int(np.searchsorted(spans.client, n)))
        client, start, end = spans.client[keep], spans.start_us[keep], spans.end_us[keep]
        first = np.searchsorted(client, np.arange(n + 1))
        return Intervals(start, end, first, client * (horizon_us + 1) + end, horizon_us)

    @property
    def client(self) -> Ints:
        """The client of each interval."""
        return np.repeat(np.arange(len(self.first) - 1), np.diff(self.first))

    def after(self, clients: Ints, time: Ints) -> Ints:
        """Return each client's first interval that ends after `time` in [0, horizon], or `first[c + 1]`."""
        return np.searchsorted(self.axis_end, clients * (self.horizon_us + 1) + time, side="right")

    def next_start(self, clients: Ints, t_us: int, repeat: bool) -> Ints:
        """Return the earliest time from `t_us` on at which an interval is active, NEVER if there is none."""
        lap, time = divmod(t_us, self.horizon_us) if repeat else (0, t_us)
        at = self.after(clients, np.full(len(clients), time))
        found = at < self.first[clients + 1]
        result = np.full(len(clients), NEVER)
        result[found] = np.maximum(lap * self.horizon_us + self.start[at[found]], t_us)
        if repeat:
            wraps = ~found & (self.first[clients] < self.first[clients + 1])
            result[wraps] = (lap + 1) * self.horizon_us + self.start[self.first[clients[wraps]]]
        return result

    def until(self, clients: Ints, t_us: int, repeat: bool) -> Ints:
        """Return the end of the interval that each client is in at `t_us` (it must be in one).

        For intervals of which none touch. Where the world repeats, one that ends at the horizon goes on in
        one that starts at 0; if they are the same, it ends NEVER.
        """
        lap, time = divmod(t_us, self.horizon_us) if repeat else (0, t_us)
        at = self.after(clients, np.full(len(clients), time))
        result = lap * self.horizon_us + self.end[at]
        if repeat:
            opening = self.first[clients]
            through = (self.end[at] == self.horizon_us) & (self.start[opening] == 0)
            result[through] = (lap + 1) * self.horizon_us + self.end[opening[through]]
            result[through & (self.end[opening] == self.horizon_us)] = NEVER
        return result


@dataclass(frozen=True, slots=True)
class Progress:
    """How far work got."""

    end_us: Ints
    """When it was done, or the limit."""
    done: NDArray[np.bool_]
    moved: Floats
    """Amount of work done until then."""


@dataclass(frozen=True, slots=True)
class Series:
    """Piecewise-constant speeds: `per` units of work take `cost_us`; between intervals nothing moves."""

    spans: Intervals
    cost_us: Floats
    per: Floats
    lap_capacity: Floats
    """[n] work that a client does over the whole horizon."""
    repeat: bool

    @staticmethod
    def of(spans: Intervals, cost_us: Floats, per: Floats, repeat: bool) -> Series:
        """Pair intervals with their costs."""
        work = (spans.end - spans.start) * per / cost_us
        capacity = np.bincount(spans.client, work, minlength=len(spans.first) - 1)
        return Series(spans, cost_us, per, capacity.astype(np.float64), repeat)

    def advance(self, clients: Ints, start_us: Ints, amount: Floats, limit_us: Ints) -> Progress:
        """Do `amount` of work per client from `start_us` on, as far as that is possible up to `limit_us`.

        The end is rounded up to whole microseconds, once, at the end. Work of nothing is done at once.
        """
        now, left = start_us.copy(), amount.copy()
        done = left <= 0
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            self._skip_laps(clients, now, left, limit_us)
            lap, time = self._laps(now)
            at = self.spans.after(clients, time)
            active = np.flatnonzero(~done & (now < limit_us))
            while len(active):
                active = self._enter(clients, at, lap, active)
                active = self._work(active, at, lap, now, left, limit_us, done)
        return Progress(
            np.where(done, now, limit_us), done, np.where(done, amount, np.maximum(amount - left, 0.0))
        )

    def _laps(self, now: Ints) -> tuple[Ints, Ints]:
        if self.repeat:
            return np.divmod(now, self.spans.horizon_us)
        return np.zeros_like(now), now

    def _skip_laps(self, clients: Ints, now: Ints, left: Floats, limit_us: Ints) -> None:
        """Pass over whole laps at once, keeping one lap's work: a lap does the same wherever it begins."""
        if not self.repeat:
            return
        capacity = self.lap_capacity[clients]
        long = np.flatnonzero((left > capacity) & (now < limit_us))
        wanted = np.ceil(left[long] / capacity[long]) - 1
        laps = np.minimum(wanted, (limit_us[long] - now[long]) // self.spans.horizon_us).astype(np.int64)
        now[long] += laps * self.spans.horizon_us
        left[long] = np.maximum(left[long] - laps * capacity[long], 0.0)

    def _enter(self, clients: Ints, at: Ints, lap: Ints, active: Ints) -> Ints:
        """Move jobs past their client's last interval to the next lap's first; drop them if there is none."""
        past = at[active] >= self.spans.first[clients[active] + 1]
        if not self.repeat:
            return active[~past]
        wraps = active[past]
        at[wraps] = self.spans.first[clients[wraps]]
        lap[wraps] += 1
        return active

    def _work(
        self,
        active: Ints,
        at: Ints,
        lap: Ints,
        now: Ints,
        left: Floats,
        limit_us: Ints,
        done: NDArray[np.bool_],
    ) -> Ints:
        """Work through the current interval of each active job; return those that must go on in the next."""
        which, offset = at[active], lap[active] * self.spans.horizon_us
        begin = np.maximum(now[active], offset + self.spans.start[which])
        stop = np.minimum(offset + self.spans.end[which], limit_us[active])
        span = np.maximum(stop - begin, 0)
        cost, per = self.cost_us[which], self.per[which]
        needed = np.ceil(left[active] * cost / per * (1 - _SLACK))
        ends = (needed <= span) & (begin <= limit_us[active])
        now[active[ends]] = begin[ends] + needed[ends].astype(np.int64)
        done[active[ends]] = True
        on = ~ends
        left[active[on]] -= span[on] * per[on] / cost[on]
        now[active[on]] = np.maximum(begin, stop)[on]
        at[active[on]] += 1
        unfinished: Ints = active[on & (now[active] < limit_us[active])]
        return unfinished
