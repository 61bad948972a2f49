"""`fedsim trace diff`: the differences between two worlds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedsim import analysis
from fedsim.common.terminal import Terminal
from fedsim.common.units import show_us

if TYPE_CHECKING:
    from fedsim.worlds.trace import Trace


def diff(
    a: Annotated[Path, typer.Argument(help="A trace file.")],
    b: Annotated[Path, typer.Argument(help="Another trace file.")],
) -> None:
    """Show the differences between two worlds. Clients are compared by number."""
    from rich.table import Table

    from fedsim.worlds.trace import read_trace

    first, second = read_trace(a), read_trace(b)
    difference = analysis.compare_worlds(first, second)
    table = Table(box=None, pad_edge=False)
    for heading in ("", str(a), str(b)):
        table.add_column(heading, overflow="fold")
    for row in _properties(first, second):
        table.add_row(*row)
    console = Terminal(highlight=False)
    console.print(table)
    for line in _lines(difference):
        console.print(line, soft_wrap=True)


def _properties(a: Trace, b: Trace) -> Iterator[tuple[str, str, str]]:
    yield "clients", f"{a.clients:,}", f"{b.clients:,}"
    yield "span", show_us(a.horizon_us), show_us(b.horizon_us)
    yield "after the end", a.after_end, b.after_end
    yield "begins", a.origin or "no date", b.origin or "no date"
    yield "intervals", f"{len(a.table):,}", f"{len(b.table):,}"
    yield "loop periods", ", ".join(a.periods) or "none", ", ".join(b.periods) or "none"
    yield "facts", ", ".join(a.about.column_names) or "none", ", ".join(b.about.column_names) or "none"
    yield "digest", a.digest()[:16], b.digest()[:16]


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
            f"who is online: they disagree on {100 * difference.disagreement:.3g} % of the client-time and about "
            f"{difference.differing:,} clients; first about client {client} at {show_us(time_us)} ({time_us} us)"
        )
    for kind, place in difference.kinds.items():
        if place is not None:
            yield f"{kind}: first other interval at client {place[0]}, {show_us(place[1])} ({place[1]} us)"
    for name, distance in difference.distances.items():
        if not math.isnan(distance):
            yield f"distribution of {name}: KS distance {distance:.4f}"
