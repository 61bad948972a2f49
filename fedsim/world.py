"""Questions to a world, in any order: who is online, when that changes, what becomes of a job.

A job downloads the model, computes and uploads its update, at the speeds that its client has at each instant;
each phase ends on a whole microsecond, rounded up. The job is lost at the first instant before its end at
which its client is offline or has a fault. A phase whose kind no client of the trace describes takes no time
(`World.unmodelled`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedsim.availability import Availability
from fedsim.errors import TraceError
from fedsim.intervals import NEVER, Intervals, Progress, Series
from fedsim.trace import MODELLED, AfterEnd, Trace
from fedsim.units import US, show_us

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

PHASES = ("", "download", "compute", "upload")
_PHASE_KINDS = ("downlink", "compute", "uplink")


@dataclass(frozen=True, slots=True)
class Work:
    """What jobs move and compute: arrays with one entry per job, or numbers that hold for all."""

    download_bytes: NDArray[Any]
    samples: NDArray[Any]
    """Passes over a sample, times the model's cost relative to the one that the trace was measured with."""
    upload_bytes: NDArray[Any]


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What becomes of k jobs: arrays of length k."""

    ok: Mask
    """Whether the update arrives."""
    end_us: Ints
    """Arrival or loss, or the `until_us` of the question."""
    download_us: Ints
    """End of the download, -1 if not reached."""
    compute_us: Ints
    """End of the computation, -1 if not reached."""
    phase: NDArray[np.int8]
    """Index into PHASES: where a job that did not arrive was; 0 for those that do."""
    downloaded_bytes: Ints
    """Moved until the end."""
    uploaded_bytes: Ints


@dataclass(frozen=True, slots=True)
class Outcome:
    """What becomes of one job; see Outcomes."""

    ok: bool
    end_us: int
    download_us: int
    compute_us: int
    phase: str
    downloaded_bytes: int
    uploaded_bytes: int


class World:
    """The world that a trace describes, seen by its first `n_clients` clients.

    Raises TraceError if the trace has fewer clients.
    """

    def __init__(self, trace: Trace, n_clients: int | None = None) -> None:
        n = trace.clients if n_clients is None else n_clients
        if n > trace.clients:
            raise TraceError(f"the trace has {trace.clients} clients, but {n} are wanted")
        if n < 1:
            raise ValueError(f"expected at least 1 client, found {n}")
        self.clients, self.horizon_us = n, int(trace.horizon_us)
        self.after_end: AfterEnd = trace.after_end
        self._repeat = trace.after_end == "repeat"
        self._sessions = Intervals.of(trace.spans("online").joined(), n, self.horizon_us)
        self._availability = Availability(self._sessions, n, trace.after_end)
        self._faults = Intervals.of(trace.spans("fault"), n, self.horizon_us)
        self._series = {kind: self._read(trace, kind) for kind in MODELLED}
        self.unmodelled = tuple(kind for kind in MODELLED if self._series[kind] is None)

    def online(self, t_us: int) -> Mask:
        """Return [n] who is online at an instant; the array is read-only."""
        self._check_time(t_us)
        return self._availability.online(t_us)

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

    def outcomes(self, clients: ArrayLike, t_us: int, work: Work, until_us: int | None = None) -> Outcomes:
        """Return what becomes of one job for each of `clients` [k], dispatched at `t_us`.

        With `until_us`, look no further: a job that is still running then ends there, not ok. Raises
        ValueError for a client that is offline or does not exist; TraceError for a job that runs past the end
        of a trace whose `after_end` is `error`.
        """
        who = np.atleast_1d(np.asarray(clients, dtype=np.int64))
        self._check_dispatch(who, t_us)
        amounts = [
            _amounts(name, getattr(work, name), len(who))
            for name in ("download_bytes", "samples", "upload_bytes")
        ]
        limit = self._abort_at(who, t_us)
        if until_us is not None:
            limit = np.minimum(limit, max(until_us, t_us))
        phases, start = [], np.full(len(who), t_us, dtype=np.int64)
        for kind, amount in zip(_PHASE_KINDS, amounts, strict=True):
            phases.append(self._advance(kind, who, start, amount, limit))
            start = phases[-1].end_us
        result = _outcomes(phases)
        self._check_end(who, result, until_us)
        return result

    def _read(self, trace: Trace, kind: str) -> Series | None:
        spans = trace.spans(kind)
        if not len(spans.client):
            return None
        used = spans.value[: np.searchsorted(spans.client, self.clients)]
        second, one = np.full(len(used), float(US)), np.ones(len(used))
        cost_us, per = (used * second, one) if kind == "compute" else (second, used)
        return Series.of(Intervals.of(spans, self.clients, self.horizon_us), cost_us, per, self._repeat)

    def _advance(self, kind: str, who: Ints, start: Ints, amount: Floats, limit: Ints) -> Progress:
        series = self._series[kind]
        if series is None:
            return Progress(start, np.ones(len(who), dtype=bool), amount)
        return series.advance(who, start, amount, limit)

    def _abort_at(self, who: Ints, t_us: int) -> Ints:
        """Return the first instant from `t_us` on at which a job cannot go on."""
        leaves = self._sessions.until(who, t_us, self._repeat)
        return np.minimum(leaves, self._faults.next_start(who, t_us, self._repeat))

    def _check_time(self, t_us: int) -> None:
        if t_us < 0:
            raise ValueError(f"expected a time of at least 0 us, found {t_us}")
        if self.after_end == "error" and t_us >= self.horizon_us:
            raise TraceError(self._ends(f"asked about {show_us(t_us)} ({t_us} us)"))

    def _check_dispatch(self, who: Ints, t_us: int) -> None:
        self._check_time(t_us)
        foreign = who[(who < 0) | (who >= self.clients)]
        if len(foreign):
            raise ValueError(f"expected clients from 0 to {self.clients - 1}, found {foreign[0]}")
        offline = who[~self.online(t_us)[who]]
        if len(offline):
            raise ValueError(f"client {offline[0]} is offline at {t_us} us: it cannot be given a job")

    def _check_end(self, who: Ints, result: Outcomes, until_us: int | None) -> None:
        endless = who[~result.ok & (result.end_us >= NEVER)]
        if len(endless):
            raise TraceError(
                f"a job of client {endless[0]} would not end within {NEVER} us: its speeds are too low"
            )
        if self.after_end == "error" and (until_us is None or until_us > self.horizon_us):
            cut = who[~result.ok & (result.end_us == self.horizon_us)]
            if len(cut):
                raise TraceError(self._ends(f"a job of client {cut[0]} would still be running"))

    def _ends(self, what: str) -> str:
        return (
            f"the trace ends at {show_us(self.horizon_us)} ({self.horizon_us} us), {what};"
            " make a trace with a longer horizon, or with after_end = 'repeat' or 'stop'"
        )


def _outcomes(phases: list[Progress]) -> Outcomes:
    download, compute, upload = phases
    downloaded = download.done
    computed = downloaded & compute.done
    ok = computed & upload.done
    return Outcomes(
        ok=ok,
        end_us=upload.end_us,
        download_us=np.where(downloaded, download.end_us, -1),
        compute_us=np.where(computed, compute.end_us, -1),
        phase=np.select([ok, computed, downloaded], [0, 3, 2], 1).astype(np.int8),
        downloaded_bytes=download.moved.astype(np.int64),
        uploaded_bytes=np.where(computed, upload.moved, 0.0).astype(np.int64),
    )


def _amounts(name: str, given: ArrayLike, k: int) -> Floats:
    amounts = np.broadcast_to(np.asarray(given, dtype=np.float64), k)
    if not (np.isfinite(amounts) & (amounts >= 0)).all():
        raise ValueError(
            f"expected {name} of at least 0, found {amounts[~(amounts >= 0) | ~np.isfinite(amounts)][0]}"
        )
    return amounts
