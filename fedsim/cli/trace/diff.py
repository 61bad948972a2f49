"""`fedsim trace diff`: the differences between two worlds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument

from fedsim import analysis
from fedsim.cli.trace.output import TraceFile
from fedsim.common.terminal import Terminal, say
from fedsim.common.units import show_us

if TYPE_CHECKING:
    from fedsim.worlds.trace import Trace


def diff(a: TraceFile, b: Annotated[Path, Argument(help="Another trace file.")]) -> None:
    """Show the differences between two worlds. Clients are compared by number."""
    from rich.table import Column, Table

    from fedsim.worlds.trace import read_trace

    first, second = read_trace(a), read_trace(b)
    difference = analysis.compare_worlds(first, second)
    headings = (Column(heading, overflow="fold") for heading in ("", str(a), str(b)))
    table = Table(*headings, box=None, pad_edge=False)
    properties = _properties(second)
    for name, text in _properties(first).items():
        table.add_row(name, text, properties[name])
    Terminal(highlight=False).print(table)
    for line in _lines(difference):
        say(line)


def _properties(trace: Trace) -> dict[str, str]:
    return {
        "clients": f"{trace.clients:,}",
        "span": show_us(trace.horizon_us),
        "after the end": trace.after_end,
        "begins": trace.origin or "no date",
        "intervals": f"{len(trace.table):,}",
        "loop periods": ", ".join(trace.periods) or "none",
        "facts": ", ".join(trace.about.column_names) or "none",
        "digest": trace.digest()[:16],
    }


def _lines(difference: analysis.WorldDiff) -> Iterator[str]:
    if difference.same:
        yield "\nthe same world"
        return
    yield f"\nclients 0 to {difference.clients - 1:,} over {show_us(difference.span_us)}:"
    if difference.first is None:
        yield "who is online: no difference"
    else:
        time_us, client = difference.first
        yield (
            f"who is online: the worlds differ in {100 * difference.disagreement:.3g} % of the client-time and in "
            f"{difference.differing:,} clients; first in client {client} at {show_us(time_us)} ({time_us} us)"
        )
    for kind, place in difference.kinds.items():
        if place is not None:
            yield f"{kind}: first different interval at client {place[0]}, {show_us(place[1])} ({place[1]} us)"
    for name, distance in difference.distances.items():
        if not math.isnan(distance):
            yield f"distribution of {name}: KS distance {distance:.4f}"
