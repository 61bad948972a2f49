"""`fedsim trace diff`: what differs between two worlds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedsim.common.terminal import Terminal
from fedsim.common.units import show_us

if TYPE_CHECKING:
    from fedsim.analysis.worlds.difference import WorldDiff
    from fedsim.worlds.trace import Trace


def diff(
    a: Annotated[Path, typer.Argument(help="A trace file.")],
    b: Annotated[Path, typer.Argument(help="Another one.")],
) -> None:
    """Say what differs between two worlds. Clients are compared by number."""
    from rich.table import Table

    from fedsim.analysis.worlds.difference import compare_worlds
    from fedsim.worlds.trace import read_trace

    one, other = read_trace(a), read_trace(b)
    found = compare_worlds(one, other)
    table = Table(box=None, pad_edge=False)
    for heading in ("", str(a), str(b)):
        table.add_column(heading, overflow="fold")
    for row in _both(one, other):
        table.add_row(*row)
    console = Terminal(highlight=False)
    console.print(table)
    for line in _lines(found):
        console.print(line, soft_wrap=True)


def _both(a: Trace, b: Trace) -> Iterator[tuple[str, str, str]]:
    yield "clients", f"{a.clients:,}", f"{b.clients:,}"
    yield "span", show_us(a.horizon_us), show_us(b.horizon_us)
    yield "after the end", a.after_end, b.after_end
    yield "begins", a.origin or "no date", b.origin or "no date"
    yield "intervals", f"{len(a.table):,}", f"{len(b.table):,}"
    yield "loop periods", ", ".join(a.periods) or "none", ", ".join(b.periods) or "none"
    yield "facts", ", ".join(a.about.column_names) or "none", ", ".join(b.about.column_names) or "none"
    yield "digest", a.digest()[:16], b.digest()[:16]


def _lines(found: WorldDiff) -> Iterator[str]:
    if found.same:
        yield "\nthe same world"
        return
    yield f"\nclients 0 to {found.clients - 1:,} over {show_us(found.span_us)}:"
    if found.first is None:
        yield "who is online: no difference"
    else:
        time_us, client = found.first
        yield (
            f"who is online: they disagree on {100 * found.disagreement:.3g} % of the client-time and about "
            f"{found.differing:,} clients; first about client {client} at {show_us(time_us)} ({time_us} us)"
        )
    for kind, place in found.kinds.items():
        if place is not None:
            yield f"{kind}: first other interval at client {place[0]}, {show_us(place[1])} ({place[1]} us)"
    for name, distance in found.distances.items():
        if not math.isnan(distance):
            yield f"distribution of {name}: KS distance {distance:.4f}"
