"""Worlds for the tests of scenarios, and what can be read off them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim import plugins
from fedsim.common.units import US
from fedsim.worlds.scenario import make_trace
from fedsim.worlds.trace import Trace

HOUR, DAY = 3600 * US, 86400 * US
NAMES = plugins.names("scenario")
TYPICAL: dict[str, dict[str, Any]] = {"flgo": {"availability": "SLN", "federation": 60}}
"""Options of those scenarios that show nothing with their defaults."""
NO_FAULTS = {"fault_every": "never"}


def made(
    name: str,
    options: dict[str, Any] | None = None,
    clients: int = 20,
    horizon_us: int = DAY,
    seed: int = 1,
    **more: Any,
) -> Trace:
    """Make a small world."""
    return make_trace(name, options or {}, clients=clients, horizon_us=horizon_us, seed=seed, **more)


def lives(trace: Trace, clients: int, until_us: int | None = None) -> list[dict[str, Any]]:
    """Return all intervals of the first clients, up to a time, and what is said about these clients."""
    frame = trace.table.to_pandas()
    frame = frame[frame.client < clients]
    if until_us is not None:
        frame = frame[frame.start_us < until_us].assign(end_us=frame.end_us.clip(upper=until_us))
    found: list[dict[str, Any]] = frame.astype({"kind": str}).to_dict("records")
    return found + trace.about.slice(0, clients).to_pylist()


def durations(trace: Trace, kind: str) -> NDArray[np.int64]:
    """Return the lengths of all intervals of a kind."""
    spans = trace.spans(kind)
    return spans.end_us - spans.start_us


def online_share(trace: Trace) -> float:
    """Return the share of clients and time that is online."""
    return float(durations(trace, "online").sum() / (trace.clients * trace.horizon_us))
