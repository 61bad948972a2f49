"""Join several worlds into one: availability from one, computing speeds from another, networks from a third."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from fedsim.common import arguments
from fedsim.common.arrays import Floats, Ints
from fedsim.common.errors import ConfigError, TraceError, closest
from fedsim.common.units import show_us
from fedsim.worlds.availability import Unknown, sessions_of
from fedsim.worlds.client_statistics import bandwidth, share, speed, time_us
from fedsim.worlds.interval_arithmetic import table_of, taken
from fedsim.worlds.matching import AssignmentRule, assign, spearman
from fedsim.worlds.trace import KINDS, MODELLED, Spans, Trace
from fedsim.worlds.transforms import crop, drawn, identity, laps_us, source_text

GIVES = {"compute": ("compute",), "network": ("downlink", "uplink"), "faults": ("fault",)}
"""Kinds that each source gives if it has them. `availability` gives `online`, `unknown` and all that no other gives."""
SPREADS = {f"{kind}_cv": kind for kind in MODELLED}
"""Facts about how much a client's speeds vary from job to job."""
_SCORES: Mapping[str, Callable[[Trace], Floats]] = {
    "compute": lambda trace: speed(trace, "compute"),
    "network": bandwidth,
    "faults": lambda trace: -share(trace, "fault"),
}


@dataclass(frozen=True, slots=True)
class _Part:
    """A source, and what the joined world takes from it."""

    trace: Trace
    """The source up to the joined horizon."""
    clients: Ints
    """[n] the source's client that each client of the joined world takes."""
    kinds: tuple[str, ...]
    identity: Mapping[str, Any]
    """What tells the whole source from others."""


@arguments.checked
def join(
    *,
    availability: Trace,
    compute: Trace | None = None,
    network: Trace | None = None,
    faults: Trace | None = None,
    clients: int | None = None,
    assignment: AssignmentRule | Mapping[str, AssignmentRule] = "independent",
    replace: bool | None = None,
    seed: int = 0,
    unknown: Unknown = "offline",
) -> Trace:
    """Make a world of `clients` clients (by default as many as `availability` has) out of several.

    Clients of each source are drawn as in `resample`, and `assignment` pairs them with those of `availability`; `id`
    takes the clients of the same ids. It may differ by source (`{"compute": 0.7}`; others are independent). Scores are
    the share of time online, samples per second, bytes per second and the share of time without a fault; unknown time
    counts as `unknown` says. A shorter source begins again after its own horizon; of a longer one, what lies beyond the
    joined horizon counts for nothing. Origin and end are those of `availability`. Raises TraceError where the sources
    do not fit together, ConfigError for a wrong assignment.
    """
    others = {"compute": compute, "network": network, "faults": faults}
    sources = {name: trace for name, trace in others.items() if trace is not None}
    rules = _rules(assignment, sources)
    horizon_us = _horizon_us({"availability": availability, **sources})
    identities = {name: identity(trace) for name, trace in {"availability": availability, **sources}.items()}
    sources = {name: _up_to(trace, horizon_us) for name, trace in sources.items()}
    n = availability.clients if clients is None else clients
    base_clients = drawn(np.arange(availability.clients), n, replace, seed, "join availability")
    gives = {name: _given(trace, GIVES[name]) for name, trace in sources.items()}
    from_others = {kind for kinds in gives.values() for kind in kinds}
    base_kinds = tuple(kind for kind in KINDS if kind not in from_others)
    base = _Part(availability, base_clients, base_kinds, identities["availability"])
    parts, assignments = {"availability": base}, {}
    online = _online_share(availability, unknown)[base_clients]
    for name, trace in sources.items():
        described, scores = _described_clients(name, trace), _SCORES[name](trace)
        if rules[name] == "id":
            chosen = _of_equal_id(name, trace, described, availability, base_clients)
            assignments[name] = {"how": "id", "spearman": spearman(online, scores[chosen])}
        else:
            chosen = drawn(described, n, replace, seed, f"join {name}")
            pairs = assign(online, scores[chosen], rules[name], seed, f"join {name}")
            chosen, assignments[name] = chosen[pairs.right], pairs.facts()
        parts[name] = _Part(trace, chosen, gives[name], identities[name])
    drawing = {"clients": n, "replace": replace, "seed": seed}
    return _put_together(parts, horizon_us, {"assignment": assignments, "drawn": drawing})


def _of_equal_id(name: str, trace: Trace, described: Ints, availability: Trace, wanted: Ints) -> Ints:
    """Return the client of a source, among those `described`, with the id of each `wanted` client of availability."""
    for part, world in (("availability", availability), (name, trace)):
        if "id" not in world.about.column_names:
            raise TraceError(f"join: source {part!r}: expected ids of clients to assign by, found none")
    ids, of_source = availability.about["id"].to_pylist(), trace.about["id"].to_pylist()
    number = {of_source[client]: client for client in described.tolist()}
    if len(number) < len(described):
        twice = next(i for i in number if of_source.count(i) > 1)
        raise TraceError(
            f"join: source {name!r}: expected ids that differ to assign by, found {twice!r} twice"
        )
    for each in (ids[client] for client in wanted.tolist()):
        if each not in number:
            raise TraceError(
                f"join: source {name!r}: there is no client with the id {each!r}, which availability has"
            )
    return np.array([number[ids[client]] for client in wanted.tolist()], dtype=np.int64)


def _up_to(trace: Trace, horizon_us: int) -> Trace:
    return crop(trace, 0, horizon_us) if trace.horizon_us > horizon_us else trace


def _given(trace: Trace, kinds: tuple[str, ...]) -> tuple[str, ...]:
    """Return the kinds that a source takes from availability: speeds that it models, and faults even if it has none."""
    return tuple(kind for kind in kinds if kind == "fault" or len(trace.spans(kind).client))


def _rules(
    assignment: AssignmentRule | Mapping[str, AssignmentRule], sources: Mapping[str, Trace]
) -> dict[str, AssignmentRule]:
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


def _described_clients(name: str, trace: Trace) -> Ints:
    """Return the clients that have all speeds that the source models, so that no client is half described."""
    by_kind = (trace.spans(kind).client for kind in GIVES[name] if kind in MODELLED)
    modelled = [clients for clients in by_kind if len(clients)]
    described = np.ones(trace.clients, dtype=bool)
    for clients in modelled:
        described &= np.isin(np.arange(trace.clients), clients)
    if name != "faults" and not (modelled and described.any()):
        wanted = " and ".join(repr(kind) for kind in GIVES[name])
        raise TraceError(f"join: source {name!r}: expected clients with {wanted}, found none")
    return np.flatnonzero(described)


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
                "fedsim trace edit FILE --after-end repeat -o OUT.parquet"
            )
    return horizon_us


def _put_together(parts: Mapping[str, _Part], horizon_us: int, facts: Mapping[str, Any]) -> Trace:
    kinds: dict[str, Spans] = {}
    periods: dict[str, Ints] = {}
    for part in parts.values():
        for kind in part.kinds:
            kinds[kind] = taken(part.trace.spans(kind), part.clients)
            if len(kinds[kind].client):
                period = _periods_us(part.trace, kind, horizon_us)[part.clients]
                periods["online" if kind == "unknown" else kind] = period
    source = source_text({"join": {name: part.identity for name, part in parts.items()}, **facts})
    clients, base = len(parts["availability"].clients), parts["availability"].trace
    fields = (clients, horizon_us, base.after_end, source, base.origin)
    return Trace(table_of(kinds), *fields, periods=periods, about=_about(parts))


def _periods_us(trace: Trace, kind: str, horizon_us: int) -> Ints:
    """Return [clients] the periods of a kind in the joined world: a shorter source begins again at its horizon."""
    period = trace.period_us(kind)
    if trace.after_end != "repeat" or trace.horizon_us == horizon_us:
        return period
    return np.where(period > 0, period, trace.horizon_us)


def _about(parts: Mapping[str, _Part]) -> pa.Table:
    """Return the facts of all sources; a name that is in use gets the source's name in front.

    So do spreads of speeds that the source does not give: `compute_cv` belongs to the joined world's computing speeds.
    """
    columns: dict[str, Any] = {}
    for name, part in parts.items():
        about, clients = part.trace.about, pa.array(part.clients)
        for column in about.column_names:
            foreign = column in SPREADS and SPREADS[column] not in part.kinds
            free_name = _free_name(name, f"{name}_{column}" if foreign else column, columns)
            columns[free_name] = about.column(column).take(clients)
        columns[_free_name(name, f"{name}_client", columns)] = clients
    return pa.table(columns)


def _free_name(prefix: str, name: str, used: Mapping[str, Any]) -> str:
    while name in used:
        name = f"{prefix}_{name}"
    return name
