"""Counts of machines over time as clients: of k machines that are there, clients 0 to k - 1 are online."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.scenarios.importers.reading.files import availability
from fedsim.worlds.trace import AfterEnd, Trace

Ints = NDArray[np.int64]

MOST_MACHINES = 1000
"""Larger counts in one file are taken for a mistake."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A client: when it is there, and until when anything is known of it."""

    id: str
    start_us: Ints
    end_us: Ints
    known_us: int
    facts: Mapping[str, Any] = field(default_factory=dict)


def present(edges_us: Ints, there: NDArray[np.bool_]) -> tuple[Ints, Ints]:
    """Return starts and ends of the stretches in which a machine is there; cell i is [edges[i], edges[i + 1])."""
    change = np.diff(np.concatenate([[False], there, [False]]).astype(np.int8))
    return edges_us[np.flatnonzero(change == 1)], edges_us[np.flatnonzero(change == -1)]


def ranked(name: str, edges_us: Ints, counts: Ints, facts: Mapping[str, Any]) -> list[Machine]:
    """Return as many machines as the largest count, at least one: machine k is there while the count exceeds k."""
    most = max(int(counts.max()), 1)
    return [
        Machine(f"{name}/{k}", *present(edges_us, counts > k), known_us=int(edges_us[-1]), facts=facts)
        for k in range(most)
    ]


def fleet_trace(machines: Sequence[Machine], after_end: AfterEnd, origin: str = "") -> Trace:
    """Return the Trace of machines, over the longest of their files; behind the end of its own a machine is unknown."""
    often = [len(m.start_us) for m in machines]
    names = dict.fromkeys(name for m in machines for name in m.facts)
    known_us = [m.known_us for m in machines]
    return availability(
        [m.id for m in machines],
        np.repeat(np.arange(len(machines)), often),
        np.concatenate([m.start_us for m in machines]),
        np.concatenate([m.end_us for m in machines]),
        horizon_us=max(known_us),
        known=(0, known_us),
        facts={name: [m.facts.get(name) for m in machines] for name in names},
        origin=origin,
        after_end=after_end,
    )
