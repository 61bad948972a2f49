"""`fedsim trace edit`: another world out of one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fedsim.cli.trace.output import check_free, written
from fedsim.common.errors import ConfigError

if TYPE_CHECKING:
    from fedsim.worlds.trace import Trace


def edit(
    file: Annotated[Path, typer.Argument(help="A trace file.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The Parquet file to write.")],
    select: Annotated[str | None, typer.Option(help="1. Keep these clients: 0-99,150")] = None,
    resample: Annotated[int | None, typer.Option(min=1, help="2. Draw so many clients.")] = None,
    replace: Annotated[
        bool | None,
        typer.Option(
            "--replace/--no-replace", help="Draw with replacement; by default where they are too few."
        ),
    ] = None,
    after_end: Annotated[
        Literal["error", "repeat", "stop"] | None, typer.Option(help="3. What happens after the horizon.")
    ] = None,
    crop: Annotated[str | None, typer.Option(help="4. Keep a part: 1d:3d, :12h or 6h:")] = None,
    shift: Annotated[
        str | None, typer.Option(help="5. Let everything happen later: 6h, or earlier: -6h")
    ] = None,
    spread: Annotated[
        str | None, typer.Option(help="5. Let each client be later by its own random time up to this.")
    ] = None,
    scale_time: Annotated[
        str | None, typer.Option(help="6. Stretch time: 2 is twice as long; 1/3 works.")
    ] = None,
    scale_compute: Annotated[float, typer.Option(help="6. Multiply seconds per sample.")] = 1.0,
    scale_downlink: Annotated[float, typer.Option(help="6. Multiply bytes per second down.")] = 1.0,
    scale_uplink: Annotated[float, typer.Option(help="6. Multiply bytes per second up.")] = 1.0,
    tile: Annotated[
        int | None, typer.Option(min=1, help="7. Write loop periods out over so many laps.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of --resample and --spread.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:
    """Change a world. What is asked for happens in the order of the numbers; for another order, edit twice."""
    from fedsim.worlds import transforms as reshape
    from fedsim.worlds.trace import read_trace

    check_free(out, force, [file])
    if replace is not None and resample is None:
        raise ConfigError("--replace and --no-replace say how --resample draws: say how many clients")
    trace = read_trace(file)
    if select is not None:
        trace = reshape.select(trace, client_list(select, trace.clients))
    if resample is not None:
        trace = reshape.resample(trace, resample, replace, seed)
    if after_end is not None:
        trace = reshape.ending(trace, after_end)
    trace = _moved(trace, crop, shift, spread, seed)
    if scale_time is not None or (scale_compute, scale_downlink, scale_uplink) != (1, 1, 1):
        trace = reshape.scale(trace, factor(scale_time or "1"), scale_compute, scale_downlink, scale_uplink)
    if tile is not None:
        trace = reshape.tile(trace, tile)
    written(trace, out)


def _moved(trace: Trace, crop: str | None, shift: str | None, spread: str | None, seed: int) -> Trace:
    from fedsim.worlds import transforms as reshape

    if crop is not None:
        trace = reshape.crop(trace, *part(crop, trace.horizon_us))
    if shift is not None or spread is not None:
        by_us = signed_us("--shift", shift or "0")
        trace = reshape.shift(trace, by_us, signed_us("--spread", spread or "0"), seed)
    return trace


def client_list(text: str, clients: int) -> list[int]:
    """Read clients such as `0-99,150` of a world of `clients`, which stands for all that are beyond it.

    Raises ConfigError.
    """
    found: list[int] = []
    for piece in text.split(","):
        first, dash, last = (p.strip() for p in piece.partition("-"))
        if not first.isdecimal() or (dash and not last.isdecimal()) or (dash and int(last) < int(first)):
            raise ConfigError(f"--select {text}: expected clients such as 0-99,150, found {piece.strip()!r}")
        found += range(min(int(first), clients), min(int(last or first), clients) + 1)
    return found


def part(text: str, horizon_us: int) -> tuple[int, int]:
    """Read a part of the time such as `1d:3d`; an end left out is that of the world. Raises ConfigError."""
    start, colon, end = text.partition(":")
    if not colon:
        raise ConfigError(f"--crop {text}: expected START:END, such as 1d:3d")
    return signed_us("--crop", start or "0"), signed_us("--crop", end) if end else horizon_us


def signed_us(option: str, text: str) -> int:
    """Read a duration with or without a sign. Raises ConfigError."""
    from fedsim.common.units import duration_us

    sign = -1 if text.startswith("-") else 1
    try:
        return sign * duration_us(text.lstrip("+-"))
    except ValueError as error:
        raise ConfigError(f"{option} {text}: {error}") from error


def factor(text: str) -> str:
    """Check a factor such as `2`, `0.5` or `1/3`. Raises ConfigError."""
    from fractions import Fraction

    try:
        return str(Fraction(text))
    except (ValueError, ZeroDivisionError):
        raise ConfigError(f"--scale-time {text}: expected a number such as 2, 0.5 or 1/3") from None
