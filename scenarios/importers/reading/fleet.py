"""Turn counts of machines over time into clients: while k machines exist, clients 0 to k - 1 are online."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.common.arrays import Ints
from fedsim.scenarios.importers.reading.files import Windows, about, availability
from fedsim.worlds.trace import AfterEnd, Trace

MOST_MACHINES = 1000
"""Larger counts in one file count as mistakes."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A client: when it is online, and up to when that is known."""

    id: str
    start_us: Ints
    end_us: Ints
    known_us: int
    facts: Mapping[str, Any] = field(default_factory=dict)


def present(edges_us: Ints, online: NDArray[np.bool_]) -> tuple[Ints, Ints]:
    """Return starts and ends of the stretches in which a machine is online; cell i is [edges[i], edges[i + 1])."""
    change = np.diff(np.concatenate([[False], online, [False]]).astype(np.int8))
    return edges_us[np.flatnonzero(change == 1)], edges_us[np.flatnonzero(change == -1)]


def ranked(name: str, edges_us: Ints, counts: Ints, facts: Mapping[str, Any]) -> list[Machine]:
    """Return as many machines as the largest count, at least one: machine k is online while the count exceeds k."""
    most = max(int(counts.max()), 1)
    return [
        Machine(f"{name}/{k}", *present(edges_us, counts > k), known_us=int(edges_us[-1]), facts=facts)
        for k in range(most)
    ]


def fleet_trace(machines: Sequence[Machine], after_end: AfterEnd, origin: str = "") -> Trace:
    """Return the Trace of machines up to the longest `known_us`; after its own, a machine is unknown."""
    names = dict.fromkeys(name for m in machines for name in m.facts)
    facts = {name: [m.facts.get(name) for m in machines] for name in names}
    known_us = [m.known_us for m in machines]
    windows = Windows(
        np.repeat(np.arange(len(machines)), [len(m.start_us) for m in machines]),
        np.concatenate([m.start_us for m in machines]),
        np.concatenate([m.end_us for m in machines]),
        known=(0, known_us),
    )
    clients = about([m.id for m in machines], facts)
    return availability(windows, clients, horizon_us=max(known_us), origin=origin, after_end=after_end)
