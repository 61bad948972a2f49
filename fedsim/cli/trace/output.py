"""Functions shared by the commands of `fedsim trace`: options, files, pictures, and lines about a world."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from fedsim.common.errors import ConfigError, RunError
from fedsim.common.terminal import say
from fedsim.common.units import DAY_US, show_us

if TYPE_CHECKING:
    from fedsim.worlds.trace import Trace

_LATE_US = 365 * DAY_US
"""If the first client comes online later than this, the file's times are probably dates, such as Unix times."""

TraceFile = Annotated[Path, Argument(help="A trace file.")]
Out = Annotated[Path, Option("--out", "-o", help="The Parquet file to write.")]
Force = Annotated[bool, Option("--force", help="Overwrite the file.")]
Png = Annotated[Path | None, Option(help="Write a picture as well (.png, .svg or .pdf).")]


def check_free(out: Path, force: bool, sources: Iterable[Path] = ()) -> None:
    """Raise ConfigError if the file exists and `force` is false, or if it is one of the files to read."""
    if out.resolve() in {source.resolve() for source in sources}:
        raise ConfigError(f"{out} is one of the files to read")
    if out.exists() and not force:
        raise ConfigError(f"{out} exists; use --force to overwrite it")


def save_picture(picture: Any, png: Path) -> None:
    """Write a picture of `fedsim.analysis.plots`, and show its file. Raises RunError."""
    try:
        picture.figure.savefig(png, dpi=150, facecolor="white")
    except OSError as error:
        raise RunError(f"--png {png}: cannot be written: {error.strerror or error}") from error
    say(f"picture: {png}")


def write(trace: Trace, out: Path) -> None:
    """Write a world, and show its summary line."""
    trace.write(out)
    say(f"{out}: {summary_line(trace)}")


def summary_line(trace: Trace) -> str:
    """Return clients, span, intervals, end and digest of a world in one line."""
    return (
        f"{trace.clients:,} clients, {show_us(trace.horizon_us)}, {len(trace.table):,} intervals,"
        f" after_end {trace.after_end}, digest {trace.digest()[:16]}"
    )


def warnings(trace: Trace) -> Iterator[str]:
    """Yield what is allowed in a world and probably not meant.

    That is a first client that comes online after a year, and laps whose hours of the day differ.
    """
    starts_us = trace.spans("online").start_us
    if len(starts_us) and (first_us := int(starts_us.min())) > _LATE_US:
        late = f"the first client is online after {show_us(first_us)}"
        yield f"{late}: times count from 0; subtract the midnight before the first from Unix times, or write dates"
    if trace.after_end == "repeat" and trace.horizon_us > DAY_US and trace.horizon_us % DAY_US:
        days = trace.horizon_us // DAY_US
        yield (
            f"it repeats after {show_us(trace.horizon_us)}, which is no whole number of days, so that each lap moves "
            f"the hours of the day: cut it with fedsim trace edit --crop :{days}d, or import csv and parquet with "
            f"--option horizon={days + 1}d"
        )
