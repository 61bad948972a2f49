"""Who is online, and when that changes, for all clients at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedsim.intervals import Intervals
from fedsim.trace import AfterEnd

Mask = NDArray[np.bool_]


class Availability:
    """Answers from sessions of which none touch; the last answer helps to find the next one.

    Time must be inside the horizon where `after_end` is `error`: see `World`.
    """

    def __init__(self, sessions: Intervals, n: int, after_end: AfterEnd) -> None:
        horizon, client = sessions.horizon_us, sessions.client
        begins, ends = sessions.start > 0, sessions.end < horizon
        times = np.concatenate([sessions.start[begins], sessions.end[ends]])
        order = np.argsort(times, kind="stable")
        self._sessions, self._n, self._after_end = sessions, n, after_end
        self._times = times[order]
        self._toggled = np.concatenate([client[begins], client[ends]])[order]
        opening, closing = np.zeros(n, dtype=bool), np.zeros(n, dtype=bool)
        opening[client[~begins]] = True
        closing[client[~ends]] = True
        self._seam = bool((opening != closing).any())
        self._someone_stays = bool(closing.any())
        self._last = (0, _read_only(opening))

    def online(self, t_us: int) -> Mask:
        """Return [n] who is online; the array is read-only."""
        if self._after_end == "stop" and t_us >= self._sessions.horizon_us:
            return _read_only(np.zeros(self._n, dtype=bool))
        time = t_us % self._sessions.horizon_us
        wanted = int(np.searchsorted(self._times, time, side="right"))
        known, mask = self._last
        if wanted != known:
            mask = self._toggle(mask, known, wanted) if abs(wanted - known) < self._n else self._look_up(time)
            self._last = (wanted, _read_only(mask))
        return mask

    def next_change(self, t_us: int) -> int | None:
        """Return the earliest time after `t_us` at which somebody's state may change, or None."""
        horizon = self._sessions.horizon_us
        if self._after_end == "stop" and t_us >= horizon:
            return None
        lap, time = divmod(t_us, horizon)
        following = int(np.searchsorted(self._times, time, side="right"))
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

    def _toggle(self, mask: Mask, known: int, wanted: int) -> Mask:
        """A client's state differs between two instants if it changed an odd number of times."""
        changed = mask.copy()
        np.logical_xor.at(changed, self._toggled[min(known, wanted) : max(known, wanted)], True)
        return changed

    def _look_up(self, time: int) -> Mask:
        clients = np.arange(self._n)
        at = self._sessions.after(clients, np.full(self._n, time))
        mask = at < self._sessions.first[1:]
        mask[mask] = self._sessions.start[at[mask]] <= time
        return mask


def _read_only(mask: Mask) -> Mask:
    mask.setflags(write=False)
    return mask
