"""Describe each client of a world by one number: how much it is online, how fast it is, how often it fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedsim.common.arrays import Floats
from fedsim.common.errors import ConfigError, closest
from fedsim.common.units import DAY_US, HOUR_US, US
from fedsim.worlds.interval_arithmetic import repeated
from fedsim.worlds.trace import MODELLED, Spans, Trace
from fedsim.worlds.transforms import laps_us
from fedsim.worlds.validation import is_number

TRAITS = ("availability", "compute", "downlink", "uplink", "faults", "night")
"""availability: share of time online. compute: samples per second. downlink, uplink: bytes per second. faults: share of
time with a fault. night: share of online time within given hours of the day."""


def trait(trace: Trace, name: str, night_h: tuple[float, float] = (0.0, 6.0)) -> Floats:
    """Return [clients] one of TRAITS, or a numeric column of `about`; NaN where a client has no value.

    Raises ConfigError for a name that is neither, and for a speed that the world does not model.
    """
    known: dict[str, Callable[[], Floats]] = {
        "availability": lambda: share(trace, "online"),
        "faults": lambda: share(trace, "fault"),
        "night": lambda: night_share(trace, night_h),
        **{kind: lambda kind=kind: speed(trace, kind) for kind in MODELLED},  # type: ignore[misc]
    }
    if name in known:
        return known[name]()
    numeric = [f.name for f in trace.about.schema if is_number(f.type) or f.type == pa.bool_()]
    if name not in numeric:
        also = f"column {name!r} of its facts is not numeric; " if name in trace.about.column_names else ""
        raise ConfigError(
            f"{also}there is no property {name!r} of the world's clients{closest(name, (*TRAITS, *numeric))}"
        )
    return np.asarray(trace.about.column(name).cast(pa.float64()).to_numpy(), dtype=np.float64)


def share(trace: Trace, kind: str) -> Floats:
    """Return [clients] the share of time covered by a kind, of a client's own period or of the horizon."""
    return time_us(trace.spans(kind), trace.clients) / laps_us(trace, kind)


def speed(trace: Trace, kind: str) -> Floats:
    """Return [clients] the mean speed over the time described: samples or bytes per second.

    Raises ConfigError if the world does not model the kind.
    """
    spans = trace.spans(kind)
    if not len(spans.client):
        raise ConfigError(f"the world does not model {kind!r}: its clients have no speed to be told apart by")
    if kind == "compute":
        spans = replace(spans, value=1 / spans.value)
    return mean_value(spans, trace.clients)


def bandwidth(trace: Trace) -> Floats:
    """Return [clients] the geometric mean of the downlink and uplink speeds that the world models."""
    speeds = [speed(trace, k) for k in ("downlink", "uplink") if len(trace.spans(k).client)]
    return np.exp(np.mean([np.log(s) for s in speeds], axis=0)) if speeds else np.full(trace.clients, np.nan)


def night_share(trace: Trace, night_h: tuple[float, float]) -> Floats:
    """Return [clients] the share of online time in [start, end) o'clock, across midnight if start is after end.

    The clock is that of the trace's origin; without one, virtual time begins at midnight.
    """
    sessions = repeated(trace.spans("online"), laps_us(trace, "online"), trace.horizon_us)
    length = round(((night_h[1] - night_h[0]) % 24 or 24) * HOUR_US)
    offset = clock_us(trace.origin) - round(night_h[0] * HOUR_US)

    def night_until(t_us: NDArray[np.int64]) -> Floats:
        days, rest = np.divmod(t_us + offset, DAY_US)
        return np.asarray(days * length + np.minimum(rest, length))

    nightly = night_until(sessions.end_us) - night_until(sessions.start_us)
    total = time_us(sessions, trace.clients)
    at_night = np.bincount(sessions.client, nightly, minlength=trace.clients).astype(np.float64)
    return _ratio(at_night, total)


def time_us(spans: Spans, n: int) -> Floats:
    """Return [n] the total length of each client's intervals in microseconds."""
    return np.bincount(spans.client, spans.end_us - spans.start_us, minlength=n).astype(np.float64)


def mean_value(spans: Spans, n: int) -> Floats:
    """Return [n] each client's mean value over the time described, NaN for clients without intervals."""
    length = (spans.end_us - spans.start_us).astype(np.float64)
    # The mean is taken relative to the first value, so that of a constant speed it is exactly that speed.
    base = np.full(n, np.nan)
    base[spans.client[::-1]] = spans.value[::-1]
    above = np.bincount(spans.client, (spans.value - base[spans.client]) * length, minlength=n)
    return base + _ratio(above.astype(np.float64), time_us(spans, n))


def _ratio(above: Floats, below: Floats) -> Floats:
    return np.asarray(np.divide(above, below, out=np.full(len(below), np.nan), where=below > 0))


def clock_us(origin: str) -> int:
    """Return the time of day at virtual time 0 in microseconds; midnight for a world without a date."""
    if not origin:
        return 0
    at = datetime.fromisoformat(origin)
    return ((at.hour * 60 + at.minute) * 60 + at.second) * US + at.microsecond
