"""What an exporter returns, and what all of them ask of a world."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fedsim.worlds.trace import KINDS, Trace


@dataclass(frozen=True, slots=True)
class Exported:
    """A world in another format."""

    data: bytes
    """The file."""
    left_out: Sequence[str]
    """What the format cannot hold, in words; empty if an import returns the same world."""
    options: Sequence[str] = ()
    """Options of the importer, as KEY=VALUE, that return the world."""


def ids(trace: Trace) -> list[str]:
    """Return the clients' own ids, the column `id` of `about`, or their numbers if those are not all different."""
    numbers = [str(client) for client in range(trace.clients)]
    if "id" not in trace.about.column_names:
        return numbers
    found = [str(name) for name in trace.about.column("id").to_pylist()]
    sound = all(name.isprintable() and name == name.strip() and name for name in found)
    return found if sound and len(set(found)) == len(found) else numbers


def kinds_left_out(trace: Trace, kept: Sequence[str]) -> Iterator[str]:
    """Yield a line for each kind of intervals that is not kept."""
    for kind in KINDS:
        if kind not in kept and (n := len(trace.spans(kind).client)):
            yield f"{n:,} intervals of kind {kind}"


def facts_left_out(trace: Trace, kept: Sequence[str] = ("id",), *, origin: bool = True) -> Iterator[str]:
    """Yield a line for facts about clients, and for the date of time 0, which the format cannot hold."""
    if facts := [name for name in trace.about.column_names if name not in kept]:
        yield f"facts about clients: {', '.join(facts)}"
    if trace.origin and origin:
        yield f"the date of time 0: {trace.origin}"


def count(where: np.ndarray[tuple[int, ...], np.dtype[np.bool_]], text: str) -> Iterator[str]:
    """Yield a line with the number of true values, if there are any."""
    if n := int(np.count_nonzero(where)):
        yield f"{n:,} {text}"
