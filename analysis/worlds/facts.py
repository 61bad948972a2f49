"""Facts about a trace in words: names and texts for a table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedsim.analysis.worlds.summary import WorldSummary, summarize_world
from fedsim.common import arguments
from fedsim.common.units import show_us
from fedsim.worlds.trace import Trace

MOST_WORDS, MOST_LETTERS = 5, 400
QUARTILES_NOTE = "quartiles: lower | median | upper; speeds are over clients"
_SPEEDS = {"compute": (1e3, "ms a sample"), "downlink": (1e-6, "MB/s"), "uplink": (1e-6, "MB/s")}


@arguments.checked
def world_facts(trace: Trace) -> list[tuple[str, str]]:
    """Return names and texts about a trace; a star behind a name marks quartiles (`QUARTILES_NOTE`)."""
    summary = summarize_world(trace)
    return [*_whole(trace, summary), *_presence(summary), *_speeds(summary), *_rest(trace, summary)]


def client_facts(trace: Trace) -> list[tuple[str, str]]:
    """Return the names and ranges of the facts that a trace has about its clients."""
    return [(name, _range(trace.about.column(name))) for name in trace.about.column_names]


def _whole(trace: Trace, summary: WorldSummary) -> Iterator[tuple[str, str]]:
    never = f" ({summary.never_online:,} never online)" if summary.never_online else ""
    counts = ", ".join(f"{n:,} {kind}" for kind, n in summary.intervals.items() if n)
    yield "clients", f"{trace.clients:,}{never}"
    yield "span", show_us(trace.horizon_us) + (f" from {trace.origin}" if trace.origin else "")
    yield "after the end", trace.after_end
    yield "source", _shortened(trace.source) or "not told"
    yield "intervals", counts or "none"


def _shortened(text: str) -> str:
    cut = len(text) > MOST_LETTERS
    return (
        f"{text[:MOST_LETTERS]}... ({len(text):,} letters; the file and its page have them all)"
        if cut
        else text
    )


def _presence(summary: WorldSummary) -> Iterator[tuple[str, str]]:
    yield "online", f"{100 * summary.online_mean:.1f} % of the time{' or more' * (summary.unknown_share > 0)}"
    yield "by client*", f"{_quartiles((100 * summary.online_quartiles).tolist())} % of the time"
    if summary.unknown_share:
        wholly = f"; all the time of {_clients(summary.unknown_clients)}" if summary.unknown_clients else ""
        yield "unknown", f"{100 * summary.unknown_share:.3g} % of the time{wholly}"
    yield "sessions*", _durations(summary.session_quartiles_us.tolist())
    yield "gaps*", _durations(summary.gap_quartiles_us.tolist())


def _speeds(summary: WorldSummary) -> Iterator[tuple[str, str]]:
    for kind, (scale, unit) in _SPEEDS.items():
        quartiles = summary.speed_quartiles.get(kind)
        text = "not modelled: takes no time"
        yield f"{kind}*", text if quartiles is None else f"{_quartiles((scale * quartiles).tolist())} {unit}"


def _rest(trace: Trace, summary: WorldSummary) -> Iterator[tuple[str, str]]:
    share = f"{100 * summary.fault_share:.3g} % of the time"
    yield "faults", f"{summary.faults:,}, {share}" if summary.faults else "none"
    for kind, (clients, lengths) in summary.periods.items():
        yield f"loops of {kind}*", f"{_durations(lengths.tolist())}, of {_clients(clients)}"
    for name, text in client_facts(trace):
        yield f"fact {name}", text
    yield "digest", trace.digest()[:16]


def _range(column: pa.ChunkedArray) -> str:
    if pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_nan(column), None, column)
    missing = f", {column.null_count:,} missing" if column.null_count else ""
    known = column.drop_null()
    if not len(known):
        return "nothing known"
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        values = np.quantile(known.cast(pa.float64()).to_numpy(), (0, 0.5, 1))
        return f"{values[0]:.6g} to {values[2]:.6g}, median {values[1]:.6g}{missing}"
    counts = sorted(pc.value_counts(known).to_pylist(), key=lambda c: (-c["counts"], str(c["values"])))
    if len(counts) == len(known) > MOST_WORDS:
        return f"{len(counts):,} different, such as {counts[0]['values']}{missing}"
    words = [f"{c['values']} ({c['counts']:,})" for c in counts[:MOST_WORDS]]
    more = f" and {len(counts) - MOST_WORDS:,} more" if len(counts) > MOST_WORDS else ""
    return ", ".join(words) + more + missing


def _clients(n: int) -> str:
    return f"{n:,} client{'' if n == 1 else 's'}"


def _quartiles(values: Sequence[float]) -> str:
    return " | ".join(f"{v:.3g}" for v in values)


def _durations(values: Sequence[float]) -> str:
    if any(math.isnan(v) for v in values):
        return "none"
    return " | ".join(show_us(round(v)) for v in values)
