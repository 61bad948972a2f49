"""Who is online, and when that changes, for all clients at once."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from fedsim.common.errors import TraceError
from fedsim.common.units import show_us
from fedsim.worlds.interval_index import NEVER, Intervals
from fedsim.worlds.trace import AfterEnd, Spans, Trace

Mask = NDArray[np.bool_]
Ints = NDArray[np.int64]
Unknown = Literal["error", "online", "offline"]
UNKNOWNS: tuple[str, ...] = get_args(Unknown)
"""What a world does with stretches about which a trace knows nothing."""

_FEW = 16
_JUMPS = 16
"""Questions that are answered by looking everybody up, after one in which most clients had changed."""


class Availability(Protocol):
    """Answers from sessions of which none touch.

    Time must be inside the horizon where `after_end` is `error`: see `World`.
    """

    def online(self, t_us: int) -> Mask:
        """Return [n] who is online; the array is read-only."""

    def peek(self, t_us: int) -> memoryview:
        """Return the same as plain truth values, at less cost; they are good until the next question."""

    def next_change(self, t_us: int) -> int | None:
        """Return the earliest time after `t_us` at which somebody's state may change, or None."""


def availability(sessions: Intervals, n: int, after_end: AfterEnd) -> Availability:
    """Return what answers for these sessions, the faster form if all clients have the world's own lap."""
    own = NEVER if after_end != "repeat" else sessions.horizon_us
    common = bool((sessions.lap_us == own).all())
    return CommonLaps(sessions, n, after_end) if common else OwnLaps(sessions, n, after_end)


class OwnLaps:
    """Sessions that begin again after a time of each client's own.

    From one question to a later one only those are looked up whose state has changed meanwhile. If that turns out to be
    most of them, the next questions are answered by looking everybody up at once.
    """

    def __init__(self, sessions: Intervals, n: int, after_end: AfterEnd) -> None:
        self._sessions, self._clients, self._after_end = sessions, np.arange(n), after_end
        self._end = NEVER if after_end == "repeat" else sessions.horizon_us
        self._nobody = _read_only(np.zeros(n, dtype=bool))
        self._time, self._mask = -1, self._nobody
        self._changes: Ints | None = None
        """[n] when each client's state changes next after `_time`; None if nobody has asked."""
        self._jumps = 0

    def online(self, t_us: int) -> Mask:
        """Return [n] who is online; the array is read-only."""
        if t_us >= self._end:
            return self._nobody
        if t_us != self._time and not self._walk(t_us):
            self._mask = _read_only(self._sessions.covers(self._clients, np.full(len(self._clients), t_us)))
            self._time, self._changes = t_us, None
        return self._mask

    def peek(self, t_us: int) -> memoryview:
        """Return the same as plain truth values."""
        return self.online(t_us).data

    def next_change(self, t_us: int) -> int | None:
        """Return the earliest time after `t_us` at which somebody's state may change, or None."""
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

    def _walk(self, t_us: int) -> bool:
        """Go on from the last question, if few clients have changed since; say whether that was so."""
        if t_us < self._time or self._time < 0 or self._jumps > 0:
            self._jumps -= 1
            return False
        changes = self._next_changes()
        due = np.flatnonzero(changes <= t_us)
        if len(due) * 4 > len(changes):
            self._jumps = _JUMPS
            return False
        if len(due):
            mask = self._mask.copy()
            mask[due] = self._sessions.covers(due, np.full(len(due), t_us))
            changes[due] = self._changes_of(due, mask[due], t_us)
            self._mask = _read_only(mask)
        self._time = t_us
        return True


class CommonLaps:
    """Sessions that begin again for all clients together, or never. The last answer helps to find the next one."""

    def __init__(self, sessions: Intervals, n: int, after_end: AfterEnd) -> None:
        horizon, client = sessions.horizon_us, sessions.client
        begins, ends = sessions.start > 0, sessions.end < horizon
        times = np.concatenate([sessions.start[begins], sessions.end[ends]])
        order = np.argsort(times, kind="stable")
        self._sessions, self._n, self._after_end = sessions, n, after_end
        times = times[order]
        self._times: Any = times.data
        """Of all changes within a lap; a view of it is searched sooner than the array."""
        self._toggled = np.concatenate([client[begins], client[ends]])[order]
        opening, closing = np.zeros(n, dtype=bool), np.zeros(n, dtype=bool)
        opening[client[~begins]] = True
        closing[client[~ends]] = True
        self._seam = bool((opening != closing).any())
        self._someone_stays = bool(closing.any())
        self._nobody = _read_only(np.zeros(n, dtype=bool))
        self._mask, self._known = opening, 0
        """Who is online after the first so many changes of a lap; it changes in place."""
        self._shown: Mask | None = None
        """A copy of that, if somebody has asked since it last changed."""

    def online(self, t_us: int) -> Mask:
        """Return [n] who is online; the array is read-only."""
        if self._is_over(t_us):
            return self._nobody
        self._move(t_us)
        if self._shown is None:
            self._shown = _read_only(self._mask.copy())
        return self._shown

    def peek(self, t_us: int) -> memoryview:
        """Return the same as plain truth values; they are good until the next question."""
        if self._is_over(t_us):
            return self._nobody.data
        self._move(t_us)
        return self._mask.data

    def _is_over(self, t_us: int) -> bool:
        return self._after_end == "stop" and t_us >= self._sessions.horizon_us

    def _move(self, t_us: int) -> None:
        time = t_us % self._sessions.horizon_us
        wanted, known = bisect_right(self._times, time), self._known
        if wanted != known:
            if abs(wanted - known) < self._n:
                self._toggle(min(known, wanted), max(known, wanted))
            else:
                self._mask = self._look_up(time)
            self._known, self._shown = wanted, None

    def next_change(self, t_us: int) -> int | None:
        """Return the earliest time after `t_us` at which somebody's state may change, or None."""
        horizon = self._sessions.horizon_us
        if self._after_end == "stop" and t_us >= horizon:
            return None
        lap, time = divmod(t_us, horizon)
        following = bisect_right(self._times, time)
        if following < len(self._times):
            return lap * horizon + int(self._times[following])
        return self._change_beyond((lap + 1) * horizon)

    def _change_beyond(self, lap_end_us: int) -> int | None:
        anything = len(self._times) > 0
        if self._after_end == "stop":
            return lap_end_us if self._someone_stays else None
        if self._after_end == "error" or self._seam:
            return lap_end_us if anything or self._after_end == "repeat" else None
        return lap_end_us + int(self._times[0]) if anything else None

    def _toggle(self, first: int, last: int) -> None:
        """A client's state differs between two instants if it changed an odd number of times."""
        mask, who = self._mask, self._toggled[first:last]
        if len(who) <= _FEW:  # the usual case, and NumPy's way of counting repetitions has a high price
            for client in who.tolist():
                mask[client] = not mask[client]
        else:
            np.logical_xor.at(mask, who, True)

    def _look_up(self, time: int) -> Mask:
        clients = np.arange(self._n)
        at = self._sessions.after(clients, np.full(self._n, time))
        mask = at < self._sessions.first[1:]
        mask[mask] = self._sessions.start[at[mask]] <= time
        return mask


def _read_only(mask: Mask) -> Mask:
    mask.setflags(write=False)
    return mask


def sessions_of(trace: Trace, n: int, unknown: Unknown) -> Spans:
    """Return the sessions of the first `n` clients, with what is unknown resolved. Raises TraceError."""
    online, dark = trace.spans("online").joined(), trace.spans("unknown")
    in_use = int(np.searchsorted(dark.client, n))
    if not in_use or unknown == "offline":
        return online
    if unknown == "error":
        clients = np.unique(dark.client[:in_use])
        raise TraceError(
            f"nothing is known about the availability of {len(clients)} of {n} clients at times, first of client "
            f"{clients[0]} from {show_us(int(dark.start_us[0]))} on: say what holds there with unknown = 'online' or "
            "'offline' in [world], or join the trace with one that knows"
        )
    return _union(online, dark)


def _union(a: Spans, b: Spans) -> Spans:
    """Return the intervals of both, with those that touch or overlap made one."""
    client, start = np.concatenate([a.client, b.client]), np.concatenate([a.start_us, b.start_us])
    order = np.lexsort((start, client))
    client, start = client[order], start[order]
    end = np.concatenate([a.end_us, b.end_us])[order]
    shift = client * (int(end.max(initial=0)) + 1)
    reach = np.maximum.accumulate(end + shift)  # the furthest end so far, client by client
    fresh = np.ones(len(client), dtype=bool)
    fresh[1:] = (start + shift)[1:] > reach[:-1]
    fresh[1:] |= client[1:] != client[:-1]
    first = np.flatnonzero(fresh)
    last = np.append(first[1:], len(client))[: len(first)] - 1
    return Spans(client[first], start[first], (reach - shift)[last], np.ones(len(first)))
