"""Functions shared by the commands of `fedsim trace` that write a world."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from fedsim.common.errors import ConfigError
from fedsim.common.terminal import say
from fedsim.common.units import show_us

if TYPE_CHECKING:
    from fedsim.worlds.trace import Trace


PICTURES = (".png", ".svg", ".pdf")


def check_ending(option: str, path: Path | None, endings: tuple[str, ...] = PICTURES) -> None:
    """Raise ConfigError if a file's name has none of the endings."""
    if path is not None and path.suffix.lower() not in endings:
        raise ConfigError(f"{option} {path}: expected a name that ends in {', '.join(endings)}")


def check_free(out: Path, force: bool, sources: Iterable[Path] = ()) -> None:
    """Raise ConfigError if the file exists and `force` is false, or if it is one of the files to read."""
    if out.resolve() in {source.resolve() for source in sources}:
        raise ConfigError(f"{out} is one of the files to read")
    if out.exists() and not force:
        raise ConfigError(f"{out} exists; use --force to overwrite it")


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
