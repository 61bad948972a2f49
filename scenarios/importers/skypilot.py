"""Availability of cloud spot machines, sampled at a fixed step (Wu et al., NSDI 2024; skypilot-org/spot-traces).

One JSON file is one zone and machine type, named like `us-east-1a_v100_1.json`: `metadata.gap_seconds` is the step,
`data` the number of machines available at each step, `prices` (not in all files) US dollars an hour at each step.

A sample holds for its step, and time 0 is the file's first sample. Files end at different times: after the end of its
own a client is unknown. Prices are kept as notes, one `[time in s, price]` for each change.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import numpy as np

from fedsim.common.arrays import Ints
from fedsim.common.errors import TraceError
from fedsim.common.units import DAY_US, US
from fedsim.scenarios.importers.reading.files import (
    LONGEST_S,
    Problems,
    json_of,
    member,
    number,
    of_type,
    whole,
)
from fedsim.scenarios.importers.reading.fleet import MOST_MACHINES, Machine, fleet_trace, present, ranked
from fedsim.scenarios.importers.reading.series import labels
from fedsim.worlds.importer import Imported, Importer, Source
from fedsim.worlds.trace import AfterEnd


def skypilot(*, machines: Literal["any", "each"] = "any", after_end: AfterEnd = "repeat") -> Importer:
    """Spot machines sampled at a fixed step (SkyPilot): one file is one zone.

    Args:
        machines: "any": a file is one client, online while at least one machine is available. "each": it is as many
            clients as it ever has machines, the first k of them online while k are available.
        after_end: what follows the end of the longest file. "repeat": the world begins again. "stop": everybody is
            offline. "error": questions about later times are refused.
    """
    return Importer(
        recognises=_recognises,
        read=partial(_read, machines=machines, after_end=after_end),
        licence="none stated",
        units="steps of gap_seconds to microseconds; prices in US dollars an hour",
    )


def _read(sources: Sequence[Source], machines: str, after_end: AfterEnd) -> Imported:
    problems, clients, prices = Problems(), list[Machine](), dict[str, Any]()
    for source, name in zip(sources, labels(sources), strict=True):
        with problems.caught():
            content = json_of(source)
            step_s, counts = _samples(content, source.name)
            changes = _prices(content, len(counts), step_s, source.name)
            if changes:
                prices[name] = changes
            clients += _clients(name, step_s, counts, machines)
    problems.check()
    notes: dict[str, Any] = {"prices_usd_per_h": prices} if prices else {}
    return Imported(fleet_trace(clients, after_end), {"files_with_prices": len(prices), **notes})


def _recognises(source: Source) -> bool:
    start = source.data[:1000].lstrip()
    return start.startswith(b"{") and b'"gap_seconds"' in start


def _samples(content: Any, name: str) -> tuple[float, Ints]:
    metadata = member(content, "metadata", name)
    place = f"{name}, metadata.gap_seconds"
    step_s = number(member(metadata, "gap_seconds", f"{name}, metadata"), place, 1e-3, DAY_US / US)
    data = of_type(member(content, "data", name), list, f"{name}, data")
    problems, counts = Problems(), []
    for i, count in enumerate(data):
        with problems.caught():
            counts.append(whole(count, f"{name}, data[{i}]", 0, MOST_MACHINES))
    problems.check()
    if not 0 < len(counts) * step_s <= LONGEST_S:
        raise TraceError(f"{name}, data: expected 1 sample or more, found {len(counts)} of {step_s:g} s")
    return step_s, np.array(counts, np.int64)


def _prices(content: Any, n: int, step_s: float, name: str) -> list[list[float]]:
    """Return [time in s, price] for each change of the price; nothing for a file without prices."""
    values = of_type(content.get("prices", []), list, f"{name}, prices")
    if values and len(values) != n:
        raise TraceError(f"{name}, prices: expected {n}, as many as data, found {len(values)}")
    prices = [number(p, f"{name}, prices[{i}]", 0, 1e6) for i, p in enumerate(values)]
    return [[i * step_s, p] for i, p in enumerate(prices) if i == 0 or p != prices[i - 1]]


def _clients(name: str, step_s: float, counts: Ints, machines: str) -> list[Machine]:
    edges_us = np.round(np.arange(len(counts) + 1) * step_s * US).astype(np.int64)
    zone, _, model = name.rsplit("/", 1)[-1].removesuffix(".json").partition("_")
    facts = {"region": zone, "model": model, "mean_machines": float(counts.mean()), "step_s": step_s}
    if machines == "each":
        return ranked(name, edges_us, counts, facts)
    return [Machine(name, *present(edges_us, counts > 0), known_us=int(edges_us[-1]), facts=facts)]
