"""`fedsim trace`: write a world down, look at one, check one."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedsim.errors import ConfigError
from fedsim.units import show_us

if TYPE_CHECKING:
    from analysis.worlds import WorldSummary
    from fedsim.trace import Trace

trace_app = typer.Typer(
    help="Write worlds down, look at them, check them.", no_args_is_help=True, rich_markup_mode=None
)

_PICTURES = (".png", ".svg", ".pdf")
_CHART_ROWS, _CHART_COLUMNS = 5, 64
_BLOCKS = " ▁▂▃▄▅▆▇█"
_PLAIN_BLOCKS = " ..::+*##"
_TICK_STEPS_H = (1, 2, 3, 6, 12, 24, 48, 96)


@trace_app.command()
def make(
    scenario: Annotated[
        Path, typer.Argument(help="A TOML file with a [world] table, or the name of one shipped.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The Parquet file to write.")],
    sets: Annotated[list[str] | None, typer.Option("--set", help="Change a key: world.clients=100")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:
    """Write the world of a scenario to a trace file."""
    from fedsim.config_errors import assign, read_toml, validated
    from fedsim.config_world import WorldFile, world_trace

    file = _shipped(scenario)
    raw = read_toml(file)
    for text in sets or ():
        assign(raw, text)
    world = validated(WorldFile, raw, file.name).world
    if world.scenario is None:
        raise ConfigError(f"{file.name}: world.scenario: missing; a trace file is already written down")
    if world.clients is None:
        raise ConfigError(f"{file.name}: world.clients: missing; say how many clients the world has")
    if out.exists() and not force:
        raise ConfigError(f"{out} exists; use --force to overwrite it")
    trace = world_trace(world, clients=world.clients, seed=0)
    trace.write(out)
    typer.echo(f"{out}: {_in_short(trace)}")


@trace_app.command()
def check(file: Annotated[Path, typer.Argument(help="A trace file.")]) -> None:
    """Check a trace file: every problem is named with its client and row."""
    from fedsim.trace import read_trace

    typer.echo(f"ok: {file}: {_in_short(read_trace(file))}")


@trace_app.command()
def show(
    file: Annotated[Path, typer.Argument(help="A trace file.")],
    png: Annotated[Path | None, typer.Option(help="Write a picture as well (.png, .svg or .pdf).")] = None,
) -> None:
    """Show what a trace file holds, and who is online over time."""
    from rich.console import Console

    from analysis.worlds import online_share, summarize
    from fedsim.trace import read_trace

    if png is not None and png.suffix.lower() not in _PICTURES:
        raise ConfigError(f"--png {png}: expected a name that ends in {', '.join(_PICTURES)}")
    trace = read_trace(file)
    console = Console(highlight=False)
    console.print(_table(trace, summarize(trace)))
    console.print("* quartiles: lower | median | upper; speeds are over clients\n", markup=False)
    columns = min(_CHART_COLUMNS, trace.horizon_us)
    for line in chart(online_share(trace, columns).tolist(), trace.horizon_us, _blocks()):
        console.print(line, markup=False, soft_wrap=True)
    if png is not None:
        _draw(trace, file, png)
        console.print(f"\npicture: {png}", soft_wrap=True)


def chart(share: list[float], horizon_us: int, blocks: str = _BLOCKS) -> list[str]:
    """Draw shares over time as lines of text, from 0 to a round top, with labelled axes.

    `blocks` are the signs for a cell from empty to full.
    """
    top = _round_top(max(share))
    full = len(blocks) - 1
    lines = ["clients online"]
    for row in reversed(range(_CHART_ROWS)):
        fill = [round(full * min(max(s / top * _CHART_ROWS - row, 0), 1)) for s in share]
        label = f"{100 * top:.3g} %" if row == _CHART_ROWS - 1 else ("0 %" if row == 0 else "")
        lines.append(f"{label:>7} |" + "".join(blocks[f] for f in fill))
    return [*lines, *_time_axis(len(share), horizon_us)]


def _round_top(highest: float) -> float:
    """Return the least round share, from 1 % up, that is not below the highest."""
    return next((top for top in (0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8) if top >= highest), 1.0)


def _time_axis(columns: int, horizon_us: int) -> list[str]:
    hours = horizon_us / 3600e6
    weeks = 168 * math.ceil(hours / 168 / 8)
    step = hours / 4 if hours < 2 else next((s for s in _TICK_STEPS_H if hours / s <= 8), weeks)
    line, labels, tick = ["-"] * (columns + 1), "", 0.0
    while tick <= hours * (1 + 1e-9):
        at = round(tick / hours * columns)
        line[at] = "+"
        labels = labels.ljust(at) + _clock(tick * 3600e6, step)
        tick += step
    return [" " * 8 + "".join(line), " " * 8 + labels]


def _clock(time_us: float, step_h: float) -> str:
    if step_h >= 24 and step_h % 24 == 0:
        return f"{time_us / 86400e6:.0f}d"
    if step_h >= 1:
        return f"{time_us / 3600e6:.3g}h"
    return f"{time_us / 60e6:.3g}min" if step_h >= 1 / 60 else f"{time_us / 1e6:.3g}s"


def _blocks() -> str:
    try:
        _BLOCKS.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return _PLAIN_BLOCKS
    return _BLOCKS


def _table(trace: Trace, told: WorldSummary) -> object:
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, text in _facts(trace, told):
        table.add_row(name, text)
    return table


def _facts(trace: Trace, told: WorldSummary) -> list[tuple[str, str]]:
    counts = ", ".join(f"{n:,} {kind}" for kind, n in told.intervals.items() if n)
    speeds = {"compute": (1e3, "ms a sample"), "downlink": (1e-6, "MB/s"), "uplink": (1e-6, "MB/s")}
    lines = [
        (
            "clients",
            f"{trace.clients:,}" + (f" ({told.never_online:,} never online)" if told.never_online else ""),
        ),
        ("span", show_us(trace.horizon_us) + (f" from {trace.origin}" if trace.origin else "")),
        ("after the end", trace.after_end),
        ("source", trace.source or "not told"),
        ("intervals", counts or "none"),
        ("online", f"{100 * told.online_mean:.1f} % of the time"),
        ("by client*", f"{_quartiles((100 * told.online_quartiles).tolist())} % of the time"),
        ("sessions*", _durations(told.session_quartiles_us.tolist())),
        ("gaps*", _durations(told.gap_quartiles_us.tolist())),
    ]
    for kind, (scale, unit) in speeds.items():
        found = told.speed_quartiles.get(kind)
        text = (
            "not modelled: takes no time"
            if found is None
            else f"{_quartiles((scale * found).tolist())} {unit}"
        )
        lines.append((f"{kind}*", text))
    faults = f"{told.faults:,}, {100 * told.fault_share:.3g} % of the time" if told.faults else "none"
    return [*lines, ("faults", faults), ("digest", trace.digest()[:16])]


def _quartiles(values: Sequence[float]) -> str:
    return " | ".join(f"{v:.3g}" for v in values)


def _durations(values: Sequence[float]) -> str:
    if any(math.isnan(v) for v in values):
        return "none"
    return " | ".join(show_us(round(v)) for v in values)


def _in_short(trace: Trace) -> str:
    return (
        f"{trace.clients:,} clients, {show_us(trace.horizon_us)}, {len(trace.table):,} intervals,"
        f" after_end {trace.after_end}, digest {trace.digest()[:16]}"
    )


def _draw(trace: Trace, file: Path, out: Path) -> None:
    from analysis.plots.availability import availability

    picture = availability(trace, title=f"{file.name}: {trace.clients:,} clients")
    try:
        picture.figure.savefig(out, dpi=150, facecolor="white")
    except OSError as error:
        raise ConfigError(f"--png {out}: cannot be written: {error}") from error


def _shipped(scenario: Path) -> Path:
    """Return a file as it is, or the one of that name that comes with fedsim."""
    if scenario.exists() or scenario.suffix or len(scenario.parts) != 1:
        return scenario
    import scenarios

    shipped = {p.stem: p for p in Path(scenarios.__path__[0]).glob("*.toml")}
    return shipped.get(scenario.name, scenario)
