"""Questions to a world, in any order: who is online, when that changes, what becomes of a job.

A job downloads the model, computes and uploads its update, at the speeds that its client has at each instant;
each phase ends on a whole microsecond, rounded up. A phase whose kind no client of the trace describes takes no
time (`World.unmodelled`). A job that runs into a fault is lost. What a client's leaving does to its job is one of
`LEAVES`:

- `abort`: the job is lost at the first instant before its end at which the client is offline.
- `pause_resume`: it stands still while the client is offline (FLASH).
- `end_instant`: it goes on, and is lost if the client is offline when it ends (FedScale).
- `ignore`: it goes on and arrives (Plato, FLSim).
- `bernoulli`: the same, where chance alone loses jobs (FLGo; see `Work.lost_at`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from fedsim.common import arguments
from fedsim.common.errors import TraceError
from fedsim.common.units import US, show_us
from fedsim.worlds.availability import UNKNOWNS, Unknown, availability, sessions_of
from fedsim.worlds.interval_index import NEVER, Floats, Intervals, Ints, Mask, Progress, Series
from fedsim.worlds.job_outcomes import PHASES, Jobs, Outcome, Outcomes, Work, outcomes_of, without
from fedsim.worlds.scalar_outcome import SingleJobs
from fedsim.worlds.trace import KINDS, MODELLED, AfterEnd, Spans, Trace

_PHASE_KINDS = ("downlink", "compute", "uplink")
_IDLE_SESSIONS = 1000
"""Sessions without progress after which a job that pauses and resumes is taken to be stuck."""

__all__ = ["LEAVES", "PHASES", "UNKNOWNS", "Leave", "Outcome", "Outcomes", "Unknown", "Work", "World"]

Leave = Literal["abort", "pause_resume", "end_instant", "ignore", "bernoulli"]
LEAVES: tuple[str, ...] = get_args(Leave)
"""What a client's leaving may do to its job."""

_THEN: Mapping[AfterEnd, str] = {
    "repeat": 'begins again (world.after_end = "repeat")',
    "stop": 'has nobody online, which ends the run (world.after_end = "stop")',
    "error": 'no more, which fails the run (world.after_end = "error")',
}


class World:
    """The world that a trace describes, seen by its first `n_clients` clients.

    Args:
        leave: what a client's leaving does to its job, one of LEAVES.
        unknown: what holds where the trace knows nothing about availability, one of UNKNOWNS.

    Raises TraceError if the trace has fewer clients, or says less about them than is needed.
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
                f"the trace has {trace.clients} clients, but {n} are wanted, one for each of task.clients"
            )
        if n < 1:
            raise ValueError(f"n_clients: expected at least 1, found {n}")
        self.clients, self.horizon_us, self.leave = n, int(trace.horizon_us), leave
        self.lap_us = max(self.horizon_us, *(int(trace.period_us(kind).max(initial=0)) for kind in KINDS))
        """The longest time after which something repeats, in a world that does."""
        self.after_end: AfterEnd = trace.after_end
        self._end = NEVER if trace.after_end == "repeat" else self.horizon_us
        self._sessions = self._intervals(trace, "online", sessions_of(trace, n, unknown))
        self._availability = availability(self._sessions, n, trace.after_end)
        self._faults = self._intervals(trace, "fault", trace.spans("fault"))
        self._series = {kind: self._read(trace, kind) for kind in MODELLED}
        self.single = (
            SingleJobs(self._sessions, self._faults, [self._series[k] for k in _PHASE_KINDS], self._end)
            if leave == "abort"
            else None
        )
        """The same for one job in plain numbers, where a job is aborted when its client leaves."""
        self.unmodelled = tuple(kind for kind in MODELLED if self._series[kind] is None)

    def then(self) -> str:
        """Say what happens after the horizon."""
        return f"described for {show_us(self.horizon_us)} and then {_THEN[self.after_end]}"

    def most_online(self) -> int:
        """Return how many clients are online together at most; where their loops differ, how many ever are."""
        client, start, end = self._sessions.client, self._sessions.start, self._sessions.end
        if len(np.unique(self._sessions.lap_us)) > 1:
            return len(np.unique(client))
        change = np.repeat([1, -1], len(client))
        order = np.lexsort(
            (change, np.concatenate([start, end]))
        )  # who leaves at an instant is not there any more
        return int(np.cumsum(change[order]).max(initial=0))

    def online(self, t_us: int) -> Mask:
        """Return [n] who is online at an instant; the array is read-only."""
        self._check_time(t_us)
        return self._availability.online(t_us)

    def peek(self, t_us: int) -> memoryview:
        """Return the same as plain truth values, at less cost; they are good until the next question."""
        self._check_time(t_us)
        return self._availability.peek(t_us)

    def there(self, clients: Ints, times_us: Ints) -> Mask:
        """Return [k] whether each client is online at a time of its own."""
        return self._sessions.covers(clients, times_us) & (times_us < self._end)

    def leaves_us(self, clients: Ints, times_us: Ints) -> Ints:
        """Return [k] when each client, which is online at a time of its own, goes offline; NEVER if it does not."""
        return np.minimum(self._sessions.until(clients, times_us), self._end)

    def fault_us(self, clients: Ints, times_us: Ints) -> Ints:
        """Return [k] each client's first fault from a time of its own on, NEVER if there is none."""
        return self._faults.next_start(clients, times_us)

    def next_change(self, t_us: int) -> int | None:
        """Return the earliest time after `t_us` at which somebody's online state may change, or None.

        Where the trace ends with an error, its end counts as such a time unless nothing ever changes in it.
        """
        self._check_time(t_us)
        return self._availability.next_change(t_us)

    def outcome(self, client: int, t_us: int, work: Work) -> Outcome:
        """Return what becomes of one job; see `outcomes`."""
        many = self.outcomes(np.array([client]), t_us, work)
        return Outcome(
            ok=bool(many.ok[0]),
            end_us=int(many.end_us[0]),
            download_us=int(many.download_us[0]),
            compute_us=int(many.compute_us[0]),
            phase=PHASES[many.phase[0]],
            downloaded_bytes=int(many.downloaded_bytes[0]),
            uploaded_bytes=int(many.uploaded_bytes[0]),
        )

    def outcomes(
        self, clients: ArrayLike, t_us: int | Ints, work: Work, until_us: int | Ints | None = None
    ) -> Outcomes:
        """Return what becomes of one job for each of `clients` [k], dispatched at `t_us`, one time or [k].

        With `until_us`, look no further: a job that is still running then ends there, not ok. Raises
        ValueError for a client that is offline or does not exist; TraceError for a job that runs past the end
        of a trace whose `after_end` is `error`.
        """
        who = np.atleast_1d(np.asarray(clients, dtype=np.int64))
        self._check_dispatch(who, t_us)
        jobs = Jobs.of(who, t_us, work)
        limit = np.minimum(self._abort_at(who, t_us), self._end)
        lost = np.broadcast_to(np.asarray(work.lost_at) < 1, len(who))
        if lost.any():
            limit = np.where(lost, np.minimum(limit, self._lost_at(jobs, work)), limit)
        if until_us is not None:
            limit = np.minimum(limit, np.maximum(until_us, t_us))
        result = self._run(jobs, limit)
        if lost.any():
            result = without(result, lost)
        self._check_end(who, result, until_us)
        if self.leave == "end_instant":
            ends = result.end_us
            there = self.there(who, ends) | self._sessions.covers(who, np.maximum(ends - 1, t_us))
            result = without(result, ~there)
        return result

    def in_time(self, clients: Ints, t_us: int, work: Work, limit_us: int) -> Mask:
        """Return whether one job of each client would be done by `limit_us` at its speeds if nothing were lost.

        Leaving counts only where it makes a job stand still. A limit beyond the end of the trace is no limit.
        """
        if limit_us > self._end:
            return np.ones(len(clients), dtype=bool)
        return self._run(Jobs.of(clients, t_us, work), np.full(len(clients), limit_us)).ok

    def expected_us(self, clients: Ints, t_us: int, work: Work) -> Ints:
        """Return how long one job of each client would take if its speeds stayed as they are, or are when it has any.

        Nothing of the future counts but that; faults and leaving do not.
        """
        jobs = Jobs.of(clients, t_us, work)
        total = np.zeros(len(clients))
        for kind, amount in zip(_PHASE_KINDS, jobs.amounts, strict=True):
            series = self._series[kind]
            if series is not None:
                total += np.ceil(amount * series.cost_now(clients, jobs.start_us))
        return np.asarray(np.minimum(total, NEVER), dtype=np.int64)

    def _intervals(self, trace: Trace, kind: str, spans: Spans) -> Intervals:
        own = trace.period_us(kind)[: self.clients]
        usual = self.horizon_us if self.after_end == "repeat" else NEVER
        return Intervals.of(spans, self.clients, self.horizon_us, np.where(own > 0, own, usual))

    def _read(self, trace: Trace, kind: str) -> Series | None:
        spans = trace.spans(kind)
        if not len(spans.client):
            return None
        used = spans.value[: np.searchsorted(spans.client, self.clients)]
        second, one = np.full(len(used), float(US)), np.ones(len(used))
        cost_us, per = (used * second, one) if kind == "compute" else (second, used)
        series = Series.of(self._intervals(trace, kind, spans), cost_us, per)
        lacking = np.flatnonzero((np.diff(series.spans.first) == 0) & (np.diff(self._sessions.first) > 0))
        if len(lacking):
            raise TraceError(
                f"client {lacking[0]} is online at times but has no {kind!r} interval, while others have"
            )
        return series

    def _run(self, jobs: Jobs, limit: Ints) -> Outcomes:
        phases, start = [], jobs.start_us
        for kind, amount in zip(_PHASE_KINDS, jobs.amounts, strict=True):
            phases.append(self._advance(kind, jobs.who, start, amount, limit))
            start = phases[-1].end_us
        return outcomes_of(phases, jobs)

    def _advance(self, kind: str, who: Ints, start: Ints, amount: Floats, limit: Ints) -> Progress:
        series = self._series[kind]
        if series is None:
            return Progress(start, np.ones(len(who), dtype=bool), amount)
        if self.leave == "pause_resume":
            return self._advance_while_online(series, who, start, amount, limit)
        return series.advance(who, start, amount, limit)

    def _advance_while_online(
        self, series: Series, who: Ints, start: Ints, amount: Floats, limit: Ints
    ) -> Progress:
        """Work session by session; nothing moves between them."""
        now, left, done = start.copy(), amount.copy(), amount <= 0
        idle = np.zeros(len(who), dtype=np.int64)
        active = np.flatnonzero(~done & (now < limit))
        while len(active):
            if idle[active].max() > _IDLE_SESSIONS:
                stuck = who[active[np.argmax(idle[active])]]
                raise TraceError(
                    f"a job of client {stuck} got no further in {_IDLE_SESSIONS} of its sessions: they never meet a "
                    "time at which it can compute or transfer"
                )
            now[active] = np.minimum(self._sessions.next_start(who[active], now[active]), limit[active])
            active = active[now[active] < limit[active]]
            leaves = np.minimum(self._sessions.until(who[active], now[active]), limit[active])
            part = series.advance(who[active], now[active], left[active], leaves)
            now[active], done[active] = part.end_us, part.done
            left[active] = np.maximum(left[active] - part.moved, 0.0)
            idle[active] = np.where(part.moved > 0, 0, idle[active] + 1)
            active = active[~part.done & (part.end_us < limit[active])]
        return Progress(np.where(done, now, limit), done, np.where(done, amount, amount - left))

    def _lost_at(self, jobs: Jobs, work: Work) -> Ints:
        """Return when chance loses each job: a share of the way through it, or through one of its phases.

        The way is that of a job to which nothing else happens: chance does not know what would happen later.
        """
        whole = self._run(jobs, np.full(len(jobs.who), self._end))
        share = np.clip(np.broadcast_to(np.asarray(work.lost_at, dtype=np.float64), len(jobs.who)), 0.0, 1.0)
        phase = np.broadcast_to(np.asarray(work.lost_in), len(jobs.who))
        ends = [np.where(e >= 0, e, whole.end_us) for e in (whole.download_us, whole.compute_us)]
        begin = np.choose(phase, [jobs.start_us, jobs.start_us, *ends])
        end = np.choose(phase, [whole.end_us, *ends, whole.end_us])
        return np.asarray(begin + np.floor(share * (end - begin)).astype(np.int64))

    def _abort_at(self, who: Ints, t_us: int | Ints) -> Ints:
        """Return the first instant from `t_us` on at which a job cannot go on."""
        now = np.full(len(who), t_us)
        faults = self.fault_us(who, now)
        return np.minimum(self._sessions.until(who, now), faults) if self.leave == "abort" else faults

    def _check_time(self, t_us: int) -> None:
        if t_us < 0:
            raise ValueError(f"expected a time of at least 0 us, found {t_us}")
        if self.after_end == "error" and t_us >= self.horizon_us:
            raise TraceError(self._ends(f"asked about {show_us(t_us)} ({t_us} us)"))

    def _check_dispatch(self, who: Ints, t_us: int | Ints) -> None:
        for extreme in (t_us,) if isinstance(t_us, int) else (t_us.min(initial=0), t_us.max(initial=0)):
            self._check_time(int(extreme))
        foreign = who[(who < 0) | (who >= self.clients)]
        if len(foreign):
            raise ValueError(f"expected clients from 0 to {self.clients - 1}, found {foreign[0]}")
        offline = np.flatnonzero(
            ~(self.online(t_us)[who] if isinstance(t_us, int) else self.there(who, t_us))
        )
        if len(offline):
            when = np.broadcast_to(t_us, len(who))[offline[0]]
            raise ValueError(f"client {who[offline[0]]} is offline at {when} us: it cannot be given a job")

    def _check_end(self, who: Ints, result: Outcomes, until_us: int | Ints | None) -> None:
        endless = who[~result.ok & (result.end_us >= NEVER)]
        if len(endless):
            raise TraceError(
                f"a job of client {endless[0]} would not end within {NEVER} us: its speeds are too low"
            )
        if self.after_end == "error":
            beyond = np.asarray(until_us is None or np.asarray(until_us) > self.horizon_us)
            cut = who[beyond & ~result.ok & (result.end_us == self.horizon_us)]
            if len(cut):
                raise TraceError(self._ends(f"a job of client {cut[0]} would still be running"))

    def _ends(self, what: str) -> str:
        return (
            f"the trace ends at {show_us(self.horizon_us)} ({self.horizon_us} us), {what};"
            " make a trace with a longer horizon, or with after_end = 'repeat' or 'stop'"
        )
