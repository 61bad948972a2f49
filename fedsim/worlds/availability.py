"""Answer who is online, and when that changes, for all clients at once."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any, Literal, get_args

import numpy as np

from fedsim.common.arrays import Ints, Mask
from fedsim.common.errors import TraceError
from fedsim.common.units import show_us
from fedsim.worlds.interval_arithmetic import merged
from fedsim.worlds.interval_index import NEVER, Intervals
from fedsim.worlds.trace import AfterEnd, Spans, Trace

Unknown = Literal["error", "online", "offline"]
UNKNOWNS: tuple[str, ...] = get_args(Unknown)
"""How a world reads stretches in which a trace does not know whether a client is online."""

_FEW = 16
"""Most changes that are applied one by one."""
_FULL_LOOKUPS = 16
"""Questions answered by looking up all clients, after one at which more than a quarter of them had changed."""


class Availability:
    """Answers questions about sessions, which may repeat with a period of each client's own.

    No two sessions of a client may touch. Times must be inside the horizon where `after_end` is `error`; `World` checks
    that. A question about a later time than the last one looks up only the clients whose state has changed in between.
    If more than a quarter have, the next questions look up all clients at once.
    """

    def __init__(self, sessions: Intervals, n: int, after_end: AfterEnd) -> None:
        self._sessions, self._clients, self._after_end = sessions, np.arange(n), after_end
        self._end = NEVER if after_end == "repeat" else sessions.horizon_us
        self._nobody = _read_only(np.zeros(n, dtype=bool))
        self._time, self._mask = -1, self._nobody
        self._changes: Ints | None = None
        """[n] when each client's state changes next after `_time`; None until they are needed."""
        self._full_lookups = 0

    def online(self, t_us: int) -> Mask:
        """Return [n] whether each client is online; the array is read-only."""
        if t_us >= self._end:
            return self._nobody
        if t_us != self._time and not self._advance(t_us):
            self._mask = _read_only(self._sessions.covers(self._clients, np.full(len(self._clients), t_us)))
            self._time, self._changes = t_us, None
        return self._mask

    def peek(self, t_us: int) -> memoryview:
        """Return the same as a view of truth values, at less cost; it is valid until the next question."""
        return self.online(t_us).data

    def next_change(self, t_us: int) -> int | None:
        """Return the earliest time after `t_us` at which a client's state may change, or None."""
        if t_us >= self._end:
            return None
        mask = self.online(t_us)
        change = int(self._next_changes().min())
        if (self._after_end == "stop" and mask.any()) or (self._after_end == "error" and change < NEVER):
            return min(change, self._end)
        return None if change >= self._end else change

    def _next_changes(self) -> Ints:
        if self._changes is None:
            self._changes = self._changes_of(self._clients, self._mask, self._time)
        return self._changes

    def _changes_of(self, clients: Ints, online: Mask, t_us: int) -> Ints:
        now, result = np.full(len(clients), t_us), np.empty(len(clients), dtype=np.int64)
        result[online] = self._sessions.until(clients[online], now[online])
        result[~online] = self._sessions.next_start(clients[~online], now[~online])
        return result

    def _advance(self, t_us: int) -> bool:
        """Update the last answer to a later time, if few clients have changed since; return whether they were few."""
        if t_us < self._time or self._time < 0 or self._full_lookups > 0:
            self._full_lookups -= 1
            return False
        changes = self._next_changes()
        due = np.flatnonzero(changes <= t_us)
        if len(due) * 4 > len(changes):
            self._full_lookups = _FULL_LOOKUPS
            return False
        if len(due):
            mask = self._mask.copy()
            mask[due] = self._sessions.covers(due, np.full(len(due), t_us))
            changes[due] = self._changes_of(due, mask[due], t_us)
            self._mask = _read_only(mask)
        self._time = t_us
        return True


class CommonAvailability(Availability):
    """The same for sessions that repeat for all clients together, or never. Each answer is found from the last one."""

    def __init__(self, sessions: Intervals, n: int, after_end: AfterEnd) -> None:
        super().__init__(sessions, n, after_end)
        self._horizon_us, client = sessions.horizon_us, sessions.client
        begins, ends = sessions.start > 0, sessions.end < sessions.horizon_us
        times = np.concatenate([sessions.start[begins], sessions.end[ends]])
        order = np.argsort(times, kind="stable")
        times = times[order]
        self._times: Any = times.data
        """Times of all changes within a lap, as a view: `bisect` searches it faster than the array."""
        self._toggled = np.concatenate([client[begins], client[ends]])[order]
        opening, closing = np.zeros(n, dtype=bool), np.zeros(n, dtype=bool)
        opening[client[~begins]] = True
        closing[client[~ends]] = True
        self._seam = bool((opening != closing).any())
        self._someone_stays = bool(closing.any())
        self._mask, self._applied = opening, 0
        """[n] whether each client is online after `_applied` changes of a lap; it changes in place."""
        self._copy: Mask | None = None
        """A read-only copy of `_mask`, made when `online` needs it."""

    def online(self, t_us: int) -> Mask:
        """See `Availability.online`."""
        if t_us >= self._end:
            return self._nobody
        self._move(t_us)
        if self._copy is None:
            self._copy = _read_only(self._mask.copy())
        return self._copy

    def peek(self, t_us: int) -> memoryview:
        """See `Availability.peek`."""
        if t_us >= self._end:
            return self._nobody.data
        self._move(t_us)
        return self._mask.data

    def _move(self, t_us: int) -> None:
        time = t_us % self._horizon_us
        wanted, applied = bisect_right(self._times, time), self._applied
        if wanted != applied:
            if abs(wanted - applied) < len(self._clients):
                self._toggle(min(applied, wanted), max(applied, wanted))
            else:
                self._mask = self._sessions.covers(self._clients, np.full(len(self._clients), time))
            self._applied, self._copy = wanted, None

    def next_change(self, t_us: int) -> int | None:
        """See `Availability.next_change`."""
        if t_us >= self._end:
            return None
        lap, time = divmod(t_us, self._horizon_us)
        following = bisect_right(self._times, time)
        if following < len(self._times):
            return lap * self._horizon_us + int(self._times[following])
        return self._change_beyond((lap + 1) * self._horizon_us)

    def _change_beyond(self, lap_end_us: int) -> int | None:
        changes = len(self._times) > 0
        if self._after_end == "stop":
            return lap_end_us if self._someone_stays else None
        if self._after_end == "error" or self._seam:
            return lap_end_us if changes or self._after_end == "repeat" else None
        return lap_end_us + int(self._times[0]) if changes else None

    def _toggle(self, first: int, last: int) -> None:
        """Apply changes, forwards or backwards: a state differs after an odd number of them."""
        mask, clients = self._mask, self._toggled[first:last]
        if len(clients) <= _FEW:  # the usual case; `ufunc.at` costs more than a few changes one by one
            for client in clients.tolist():
                mask[client] = not mask[client]
        else:
            np.logical_xor.at(mask, clients, True)


def availability(sessions: Intervals, n: int, after_end: AfterEnd) -> Availability:
    """Return the answers for these sessions, in the faster form if all clients repeat with the world."""
    world_lap = NEVER if after_end != "repeat" else sessions.horizon_us
    form = CommonAvailability if (sessions.lap_us == world_lap).all() else Availability
    return form(sessions, n, after_end)


def _read_only(mask: Mask) -> Mask:
    mask.setflags(write=False)
    return mask


def sessions_of(trace: Trace, n: int, unknown: Unknown) -> Spans:
    """Return the sessions of the first `n` clients, unknown stretches resolved.

    Raises TraceError if there are such stretches and `unknown` is `error`.
    """
    online, unknown_spans = trace.spans("online").joined(), trace.spans("unknown")
    in_use = int(np.searchsorted(unknown_spans.client, n))
    if not in_use or unknown == "offline":
        return online
    if unknown == "error":
        clients = np.unique(unknown_spans.client[:in_use])
        raise TraceError(
            f"nothing is known about the availability of {len(clients)} of {n} clients at times, first of client "
            f"{clients[0]} from {show_us(int(unknown_spans.start_us[0]))} on: say what holds there with "
            "unknown = 'online' or 'offline' in [world], or join the trace with one that knows"
        )
    return _union(online, unknown_spans)


def _union(a: Spans, b: Spans) -> Spans:
    """Return the intervals of both, of which there are some; those that touch or overlap become one."""
    both = merged([a, b])
    client, start, end = both.client, both.start_us, both.end_us
    shift = client * (int(end.max()) + 1)  # clients follow each other on one axis
    reach = np.maximum.accumulate(end + shift)
    first = np.flatnonzero(np.append(True, (start + shift)[1:] > reach[:-1]))
    last = np.append(first[1:], len(client)) - 1
    return Spans(client[first], start[first], (reach - shift)[last], np.ones(len(first)))
