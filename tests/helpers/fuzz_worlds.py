"""Random worlds for the fuzzer: traces of a few clients in whole seconds, so that much happens at equal times."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fedsim import plugins
from fedsim.common.units import US
from fedsim.worlds.trace import MODELLED, AfterEnd, Trace

PAYLOAD = 100
"""Bytes each way; speeds are chosen so that a transfer takes some whole seconds."""
SLOW: dict[str, Any] = {"payload": "1 MB", "compute_scale": 300.0}
"""`[cost]` with which jobs of a scenario's devices take seconds to minutes."""
_HOURS = {
    "churn": {"mean_on": "80s", "mean_off": "30s"},
    "flaky_network": {"mean_on": "3min", "mean_off": "1min"},
}
"""Options that make scenarios lively within minutes."""


def world(draw: random.Random, clients: int, folder: Path) -> dict[str, Any]:
    """Draw a `[world]` table for so many clients; a trace that it names is written into `folder`.

    The jobs of a trace take seconds, those of a scenario need `SLOW` to take as long.
    """
    if draw.random() < 0.25:
        return _scenario(draw)
    path = folder / "drawn.parquet"
    trace = _trace(draw, clients + draw.choice([0, 0, 2]))
    trace.write(path)
    return {"trace": str(path), "unknown": draw.choice(["online", "offline"])}


def _scenario(draw: random.Random) -> dict[str, Any]:
    name = draw.choice([name for name in plugins.names("scenario") if name != "fitted"])
    return {
        "scenario": name,
        "horizon": draw.choice(["2h", "1d"]),
        "seed": draw.randrange(1000),
        "after_end": draw.choice(["repeat", "repeat", "stop"]),
        "options": _HOURS.get(name, {}) if draw.random() < 0.8 else {},
    }


def _trace(draw: random.Random, clients: int) -> Trace:
    """Sessions and faults of whole seconds; speeds that all clients share, or of their own, steady or changing."""
    horizon = draw.choice([60, 200, 600])
    after_end: AfterEnd = draw.choice(["repeat", "repeat", "stop", "error"])
    rows: list[tuple[int, int, int, str, float]] = []
    periods: dict[str, Any] = {}
    for kind in ("online", *[k for k in MODELLED if draw.random() < 0.9]):
        own = draw.random() < 0.2
        lap = [draw.randint(horizon // 3, horizon) if own else 0 for _ in range(clients)]
        if own:
            periods[kind] = np.array(lap) * US
        alike = draw.random() < 0.4
        first: list[tuple[int, int, float]] = []
        for client in range(clients):
            length = lap[client] or horizon
            if kind == "online":
                spans = [(a, b, 1.0) for a, b in _sessions(draw, length)]
            else:
                spans = first if alike and not own and first else _speeds(draw, length, kind)
                first = spans
            rows += [(client, a, b, kind, value) for a, b, value in spans]
    rows += _some(draw, clients, horizon, "fault", 0.2)
    if "online" not in periods:
        rows += _some(draw, clients, horizon, "unknown", 0.1, besides=rows)
    owner, start, end, kinds, values = (list(column) for column in zip(*rows, strict=True))
    return Trace.of(
        owner,
        np.array(start) * US,
        np.array(end) * US,
        kinds,
        values,
        clients=clients,
        horizon_us=horizon * US,
        after_end=after_end,
        periods=periods,
        about=_about(draw, clients),
    )


def _about(draw: random.Random, clients: int) -> pa.Table:
    """Draw what is known of the clients: their regions, and how much their speeds vary."""
    regions = [draw.choice(["north", "south"]) for _ in range(clients)]
    spread = {
        f"{way}_cv": [draw.uniform(0, 0.5) for _ in range(clients)]
        for way in ("downlink", "compute", "uplink")
    }
    return pa.table({"region": regions} | spread)


def _cuts(draw: random.Random, length: int, most: int) -> list[int]:
    return sorted({draw.randrange(length + 1) for _ in range(draw.randint(0, most))})


def _sessions(draw: random.Random, length: int) -> list[tuple[int, int]]:
    """Draw when a client is there: always, at times, or never."""
    how = draw.random()
    if how < 0.35:
        return [(0, length)]
    if how < 0.4:
        return []
    cuts = _cuts(draw, length, 6)
    return list(zip(cuts[::2], cuts[1::2], strict=False)) or [(0, length)]


def _speeds(draw: random.Random, length: int, kind: str) -> list[tuple[int, int, float]]:
    """Draw speeds over time: seconds per sample, or bytes per second, mostly such that phases take whole seconds."""
    whole = [0, *(c for c in _cuts(draw, length, 3) if 0 < c < length), length]
    values = [1.0, 0.5, 0.25, 2.0] if kind == "compute" else [100.0, 50.0, 25.0, 1e6]
    return [
        (a, b, draw.choice(values) if draw.random() < 0.9 else draw.uniform(0.1, 90))
        for a, b in pairwise(whole)
    ]


def _some(
    draw: random.Random,
    clients: int,
    horizon: int,
    kind: str,
    chance: float,
    besides: list[tuple[int, int, int, str, float]] | None = None,
) -> list[tuple[int, int, int, str, float]]:
    """Draw an interval of a kind for some of the clients, none within the sessions in `besides`."""
    found = []
    for client in range(clients):
        if draw.random() < chance:
            start = draw.randrange(horizon)
            end = min(start + draw.randint(1, 20), horizon)
            taken = [(a, b) for c, a, b, k, _ in besides or () if c == client and k == "online"]
            if all(end <= a or b <= start for a, b in taken):
                found.append((client, start, end, kind, 1.0))
    return found
