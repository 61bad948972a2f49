"""Compute one job's outcome in plain numbers: the arithmetic of `World.outcomes`, at a tenth of its cost.

Asynchronous training dispatches one job at a time, and arrays of one entry are slow. The results are equal to the bit;
a test compares them.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from fedsim.worlds.interval_index import CAUTION, NEVER, SLACK, Intervals, Series

Fate = tuple[int, int, int, bool, int, int, int]
"""End of the download and of the computation (-1 if not reached), end of the job, whether it arrives, the index into
PHASES of the phase in which it is lost (0 if it arrives), and bytes moved down and up."""


def _numbers(array: Any) -> Any:
    """Return a view whose entries are plain numbers; reading one is faster than reading it from an array."""
    numbers: Any = np.ascontiguousarray(array)
    return memoryview(numbers)


@dataclass(frozen=True, slots=True)
class _Line:
    """Intervals (see `Intervals`) that are read number by number."""

    start: Any
    end: Any
    first: Any
    axis_end: Any
    lap: Any
    width: int

    @staticmethod
    def of(spans: Intervals) -> _Line:
        arrays = (spans.start, spans.end, spans.first, spans.axis_end, spans.lap_us)
        start, end, first, axis_end, lap = (_numbers(a) for a in arrays)
        return _Line(start, end, first, axis_end, lap, spans.horizon_us + 1)

    def after(self, client: int, time: int) -> int:
        first = self.first
        return bisect_right(self.axis_end, client * self.width + time, first[client], first[client + 1])

    def until(self, client: int, t_us: int) -> int:
        lap, opening = self.lap[client], self.first[client]
        begin = t_us // lap * lap
        end = int(self.end[self.after(client, t_us - begin)])
        if end == lap and self.start[opening] == 0:
            return NEVER if self.end[opening] == lap else begin + lap + int(self.end[opening])
        return int(begin + end)

    def next_start(self, client: int, t_us: int) -> int:
        if self.first[client] == self.first[client + 1]:
            return NEVER
        lap = self.lap[client]
        begin = t_us // lap * lap
        at = self.after(client, t_us - begin)
        if at < self.first[client + 1]:
            return int(max(begin + self.start[at], t_us))
        return int(begin + lap + self.start[self.first[client]]) if lap < NEVER else NEVER


class _Speeds:
    """A `Series` that is read number by number."""

    def __init__(self, series: Series) -> None:
        self.line = line = _Line.of(series.spans)
        views = (_numbers(a) for a in (series.cost_us, series.per, series.lap_capacity))
        self.cost, self.per, self.capacity = views
        opening = [a if a + 1 == b else -1 for a, b in pairwise(line.first)]
        self.steady = [
            (self.cost[a], self.per[a], line.end[a]) if a >= 0 and line.start[a] == 0 else None
            for a in opening
        ]
        """By client: cost, amount per cost and end of its only interval, if that starts with the lap; else None."""

    def advance(self, client: int, now: int, left: float, limit: int) -> tuple[int, bool, float]:
        """Return when the work is done or the limit is reached, whether it is done, and the amount done."""
        steady = self.steady[client]
        if steady is not None and left > 0:
            cost, per, end = steady
            ends: int = now + math.ceil(left * cost / per * (1 - SLACK))
            if ends <= end and ends <= limit and now < limit:
                return ends, True, left
        return self._walk(client, now, left, limit)

    def _walk(self, client: int, now: int, left: float, limit: int) -> tuple[int, bool, float]:
        """Return the same, found from interval to interval."""
        amount = left
        if left <= 0:
            return now, True, amount
        if now >= limit:
            return limit, False, 0.0
        line = self.line
        lap, capacity = line.lap[client], self.capacity[client]
        if lap < NEVER and left > capacity:
            wanted = max(math.ceil(left / capacity * (1 - CAUTION)) - 1, 0) if capacity else math.inf
            laps = int(min(wanted, (limit - now) // lap))
            now += laps * lap
            left = max(left - laps * capacity, 0.0)
            if now >= limit:
                return limit, False, max(amount - left, 0.0)
        begin = now // lap * lap
        at, last = line.after(client, now - begin), line.first[client + 1]
        while True:
            if at >= last:
                if lap >= NEVER:
                    break
                at = line.first[client]
                begin += lap
            opens = max(now, begin + line.start[at])
            stop = min(begin + line.end[at], limit)
            span = max(stop - opens, 0)
            cost, per = self.cost[at], self.per[at]
            needed = math.ceil(left * cost / per * (1 - SLACK))
            if needed <= span and opens <= limit:
                return opens + needed, True, amount
            left -= span * per / cost
            now = max(opens, stop)
            at += 1
            if now >= limit:
                break
        return limit, False, max(amount - left, 0.0)


class SingleJobs:
    """Outcomes of single jobs in a world where a job is aborted when its client leaves."""

    def __init__(
        self, sessions: Intervals, faults: Intervals, series: list[Series | None], end_us: int
    ) -> None:
        self._sessions, self._faults = _Line.of(sessions), _Line.of(faults)
        self._speeds = [None if s is None else _Speeds(s) for s in series]
        self._faulty, self._end_us = len(faults.start) > 0, end_us

    def outcome(
        self, client: int, t_us: int, download_bytes: float, samples: float, upload_bytes: float
    ) -> Fate | None:
        """Return the outcome of an online client's job, None if `World.outcomes` has to raise the error."""
        limit = min(self._sessions.until(client, t_us), self._end_us)
        if self._faulty:
            limit = min(limit, self._faults.next_start(client, t_us))
        downlink, compute, uplink = self._speeds
        now, done, down = t_us, True, download_bytes
        if downlink is not None:
            now, done, down = downlink.advance(client, now, download_bytes, limit)
        if not done:
            return None if now >= self._end_us else (-1, -1, now, False, 1, int(down), 0)
        downloaded = now
        if compute is not None:
            now, done, _ = compute.advance(client, now, samples, limit)
        if not done:
            return None if now >= self._end_us else (downloaded, -1, now, False, 2, int(down), 0)
        computed, up = now, upload_bytes
        if uplink is not None:
            now, done, up = uplink.advance(client, now, upload_bytes, limit)
        if not done:
            return None if now >= self._end_us else (downloaded, computed, now, False, 3, int(down), int(up))
        return downloaded, computed, now, True, 0, int(down), int(up)
