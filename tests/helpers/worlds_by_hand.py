"""Small worlds of a few microseconds, and what each client does at each instant, looked up one by one."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedsim.worlds.trace import KINDS, MODELLED, Trace

Table = NDArray[np.float64]


@st.composite
def worlds(draw: st.DrawFn, after_end: str | None = None) -> Trace:
    """Draw a world of 1 to 4 clients in which some have loop periods of their own."""
    clients, horizon = draw(st.integers(1, 4)), draw(st.integers(1, 20))
    rows: list[tuple[Any, ...]] = []
    periods: dict[str, list[int]] = {}
    for kind in KINDS:
        followed = "online" if kind == "unknown" else kind
        if followed not in periods:
            periods[followed] = draw(st.lists(st.integers(0, horizon), min_size=clients, max_size=clients))
        for client, period in enumerate(periods[followed]):
            found = _spans(draw, period or horizon, kind in MODELLED)
            rows += [(client, *span, kind, draw(st.integers(1, 3))) for span in found]
    modelled = draw(st.booleans())
    kept = [row for row in rows if modelled or row[3] not in MODELLED]
    columns = [list(column) for column in zip(*kept, strict=True)] or [[], [], [], [], []]
    return Trace.of(
        *columns,
        clients=clients,
        horizon_us=horizon,
        after_end=draw(st.sampled_from(["error", "repeat", "stop"])) if after_end is None else after_end,
        periods={k: np.array(v) for k, v in periods.items()},
        about=pa.table({"id": [f"c{c}" for c in range(clients)]}),
    )


def _spans(draw: st.DrawFn, lap: int, without_gaps: bool) -> list[tuple[int, int]]:
    cuts = sorted(draw(st.sets(st.integers(0, lap), max_size=6)))
    if without_gaps:
        whole = [0, *(cut for cut in cuts if 0 < cut < lap), lap]
        return list(pairwise(whole))
    return list(zip(cuts[::2], cuts[1::2], strict=False))


def behaviour(trace: Trace, until_us: int) -> Table:
    """Return [kinds, clients, until_us] the value at each instant, 0 where there is none."""
    table = np.zeros((len(KINDS), trace.clients, until_us))
    for k, kind in enumerate(KINDS):
        spans, period = trace.spans(kind), trace.period_us(kind)
        for row in range(len(spans.client)):
            client = int(spans.client[row])
            lap = int(period[client]) or (trace.horizon_us if trace.after_end == "repeat" else until_us)
            for t in range(until_us):
                if spans.start_us[row] <= t % lap < spans.end_us[row]:
                    table[k, client, t] = spans.value[row]
    if trace.after_end != "repeat":
        table[:, :, trace.horizon_us :] = 0
    return table
