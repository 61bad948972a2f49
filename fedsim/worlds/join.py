"""One world made of several: availability from one, computing speeds from another, networks from a third."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedsim.common import arguments
from fedsim.common.errors import ConfigError, TraceError, closest
from fedsim.common.units import show_us
from fedsim.worlds.availability import Unknown, sessions_of
from fedsim.worlds.client_statistics import bandwidth, share, speed, time_us
from fedsim.worlds.interval_arithmetic import table_of, taken
from fedsim.worlds.matching import Assignment, How, assign
from fedsim.worlds.provenance import described, told
from fedsim.worlds.trace import KINDS, MODELLED, Spans, Trace
from fedsim.worlds.transforms import crop, drawn, laps_us

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

GIVES = {"compute": ("compute",), "network": ("downlink", "uplink"), "faults": ("fault",)}
"""What is taken from which part. Availability gives `online`, `unknown` and all that no other part gives."""
SPREADS = {f"{kind}_cv": kind for kind in MODELLED}
"""Facts about how much a client's speeds vary from job to job."""
_SCORES: Mapping[str, Callable[[Trace], Floats]] = {
    "compute": lambda trace: speed(trace, "compute"),
    "network": bandwidth,
    "faults": lambda trace: -share(trace, "fault"),
}


@dataclass(frozen=True, slots=True)
class _Part:
    """A source and which of its clients lives on in each client of the joined world."""

    trace: Trace
    clients: Ints
    gives: tuple[str, ...]


@arguments.checked
def join(
    *,
    availability: Trace,
    compute: Trace | None = None,
    network: Trace | None = None,
    faults: Trace | None = None,
    clients: int | None = None,
    assignment: How | Mapping[str, How] = "independent",
    replace: bool | None = None,
    seed: int = 0,
    unknown: Unknown = "offline",
) -> Trace:
    """Make a world of `clients` clients (by default as many as `availability` has) out of several.

    Clients are drawn from each source without replacement, or with it where `replace` says so or is None and there are
    too few. Then those of the other sources are assigned to those of `availability`: by `assignment`, which may differ
    by part (`{"compute": 0.7}`; others are independent). All scores are better if higher: share of time online, samples
    per second, bytes per second, share of time without a fault; unknown time counts as `unknown` says. What a shorter
    source describes begins again after its own horizon. The end is that of `availability`. Raises TraceError where the
    sources do not fit together.
    """
    others = {"compute": compute, "network": network, "faults": faults}
    sources = {name: trace for name, trace in others.items() if trace is not None}
    how = _by_part(assignment, sources)
    horizon_us = _horizon_us({"availability": availability, **sources})
    n = availability.clients if clients is None else clients
    given = {kind for name in sources for kind in GIVES[name]}
    own = tuple(kind for kind in KINDS if kind not in given)
    base = _Part(
        availability, drawn(np.arange(availability.clients), n, replace, seed, "join availability"), own
    )
    parts, assignments = {"availability": base}, {}
    online = _online_share(availability, unknown)[base.clients]
    for name, trace in sources.items():
        parts[name], assignments[name] = _assigned(name, trace, online, how[name], replace, seed)
    facts = {
        "join": {name: described(part.trace) for name, part in parts.items()},
        "assignment": {name: a.told() for name, a in assignments.items()},
        "drawn": {"clients": n, "replace": replace, "seed": seed},
    }
    return _put_together(parts, n, horizon_us, facts)


def _by_part(assignment: How | Mapping[str, How], sources: Mapping[str, Trace]) -> dict[str, How]:
    if not isinstance(assignment, Mapping):
        return dict.fromkeys(sources, assignment)
    for name in assignment:
        if name not in sources:
            raise ConfigError(
                f"assignment of {name!r}: no such source is joined to availability{closest(name, sources)}"
            )
    return {name: assignment.get(name, "independent") for name in sources}


def _online_share(trace: Trace, unknown: Unknown) -> Floats:
    sessions = sessions_of(trace, trace.clients, "offline" if unknown == "error" else unknown)
    return time_us(sessions, trace.clients) / laps_us(trace, "online")


def _assigned(
    name: str, trace: Trace, online: Floats, how: How, replace: bool | None, seed: int
) -> tuple[_Part, Assignment]:
    chosen = drawn(_able(name, trace), len(online), replace, seed, f"join {name}")
    found = assign(online, _SCORES[name](trace)[chosen], how, seed, f"join {name}")
    return _Part(trace, chosen[found.right], GIVES[name]), found


def _able(name: str, trace: Trace) -> Ints:
    """Return the clients that have all speeds that the source models, so that nobody is half described."""
    able, modelled = np.ones(trace.clients, dtype=bool), False
    for kind in GIVES[name]:
        described_by = np.unique(trace.spans(kind).client)
        if kind in MODELLED and len(described_by):
            able &= np.isin(np.arange(trace.clients), described_by)
            modelled = True
    if name != "faults" and not (modelled and able.any()):
        wanted = " and ".join(repr(kind) for kind in GIVES[name])
        raise TraceError(f"join: source {name!r}: expected clients with {wanted}, found none")
    return np.flatnonzero(able)


def _horizon_us(sources: Mapping[str, Trace]) -> int:
    """Return the joined horizon: the longest where availability repeats, otherwise that of availability."""
    base = sources["availability"]
    repeats = base.after_end == "repeat"
    horizon_us = max(t.horizon_us for t in sources.values()) if repeats else base.horizon_us
    for name, trace in sources.items():
        if trace.after_end != "repeat" and (repeats or trace.horizon_us < horizon_us):
            raise TraceError(
                f"join: source {name!r} ends at {show_us(trace.horizon_us)} (after_end {trace.after_end!r}), but the "
                f"joined world {'repeats' if repeats else f'lasts {show_us(horizon_us)}'}; let it repeat first: "
                "fedsim trace edit FILE --after-end repeat"
            )
    return horizon_us


def _put_together(parts: Mapping[str, _Part], n: int, horizon_us: int, facts: Mapping[str, Any]) -> Trace:
    kinds: dict[str, Spans] = {}
    periods: dict[str, Ints] = {}
    for part in parts.values():
        fitted = _fitted(part.trace, horizon_us)
        for kind in part.gives:
            kinds[kind] = taken(fitted.spans(kind), part.clients)
            if len(kinds[kind].client):
                periods["online" if kind == "unknown" else kind] = _laps_us(fitted, kind, horizon_us)[
                    part.clients
                ]
    base = parts["availability"].trace
    return Trace(
        table_of(kinds), n, horizon_us, base.after_end, told(facts), base.origin, periods, _about(parts)
    )


def _fitted(trace: Trace, horizon_us: int) -> Trace:
    return crop(trace, 0, horizon_us) if trace.horizon_us > horizon_us else trace


def _laps_us(trace: Trace, kind: str, horizon_us: int) -> Ints:
    """Return [clients] the periods of a kind in the joined world: a shorter source begins again at its horizon."""
    period = trace.period_us(kind)
    if trace.after_end != "repeat" or trace.horizon_us == horizon_us:
        return period
    return np.where(period > 0, period, trace.horizon_us)


def _about(parts: Mapping[str, _Part]) -> pa.Table:
    """Return the facts of all sources; names that occur twice get the part's name in front.

    So do spreads of speeds that the part does not give: `compute_cv` belongs to the joined world's computing speeds.
    """
    columns: dict[str, Any] = {}
    for name, part in parts.items():
        chosen = (
            part.trace.about.take(pa.array(part.clients)) if part.trace.about.num_columns else pa.table({})
        )
        for column in chosen.column_names:
            foreign = column in SPREADS and SPREADS[column] not in part.gives
            columns[_free(name, f"{name}_{column}" if foreign else column, columns)] = chosen.column(column)
        columns[_free(name, f"{name}_client", columns)] = pa.array(part.clients)
    return pa.table(columns)


def _free(prefix: str, name: str, used: Mapping[str, Any]) -> str:
    while name in used:
        name = f"{prefix}_{name}"
    return name
