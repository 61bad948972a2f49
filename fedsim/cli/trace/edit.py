"""`fedsim trace edit`: make a world from another one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fedsim.cli.trace.output import check_free, write
from fedsim.common.errors import ConfigError

if TYPE_CHECKING:
    from fedsim.worlds.trace import Trace


_Force = Annotated[bool, typer.Option("--force", help="Overwrite the file.")]
_Select = Annotated[str | None, typer.Option(help="1. Keep these clients: 0-99,150")]
_Resample = Annotated[int | None, typer.Option(min=1, help="2. Draw so many clients.")]
_Replace = Annotated[
    bool | None,
    typer.Option("--replace/--no-replace", help="Draw with replacement; by default if they are too few."),
]
_AfterEnd = Annotated[
    Literal["error", "repeat", "stop"] | None, typer.Option(help="3. What happens after the horizon.")
]
_Crop = Annotated[str | None, typer.Option(help="4. Keep a part: 1d:3d, :12h or 6h:")]
_Shift = Annotated[str | None, typer.Option(help="5. Delay everything by 6h; -6h is earlier.")]
_Spread = Annotated[str | None, typer.Option(help="5. Delay each client by a random time up to this.")]
_ScaleTime = Annotated[str | None, typer.Option(help="6. Stretch time: 2 is twice as long; 1/3 works.")]
_ScaleCompute = Annotated[float, typer.Option(help="6. Multiply seconds per sample.")]
_ScaleDownlink = Annotated[float, typer.Option(help="6. Multiply bytes per second down.")]
_ScaleUplink = Annotated[float, typer.Option(help="6. Multiply bytes per second up.")]
_Tile = Annotated[int | None, typer.Option(min=1, help="7. Write so many laps of loop periods out.")]


def edit(
    file: Annotated[Path, typer.Argument(help="A trace file.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The Parquet file to write.")],
    select: _Select = None,
    resample: _Resample = None,
    replace: _Replace = None,
    after_end: _AfterEnd = None,
    crop: _Crop = None,
    shift: _Shift = None,
    spread: _Spread = None,
    scale_time: _ScaleTime = None,
    scale_compute: _ScaleCompute = 1.0,
    scale_downlink: _ScaleDownlink = 1.0,
    scale_uplink: _ScaleUplink = 1.0,
    tile: _Tile = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of --resample and --spread.")] = 0,
    force: _Force = False,
) -> None:
    """Change a world. Changes happen in the order of their numbers; for another order, edit twice."""
    from fedsim.worlds import transforms
    from fedsim.worlds.trace import read_trace

    check_free(out, force, [file])
    trace = _chosen(read_trace(file), select, resample, replace, seed)
    if after_end is not None:
        trace = transforms.ending(trace, after_end)
    trace = _moved(trace, crop, shift, spread, seed)
    speeds = scale_compute, scale_downlink, scale_uplink
    if scale_time is not None or speeds != (1, 1, 1):
        trace = transforms.scale(trace, factor(scale_time or "1"), *speeds)
    write(trace if tile is None else transforms.tile(trace, tile), out)


def _chosen(trace: Trace, select: str | None, resample: int | None, replace: bool | None, seed: int) -> Trace:
    """Return the world of selected, then resampled clients."""
    from fedsim.worlds import transforms

    if replace is not None and resample is None:
        raise ConfigError("--replace and --no-replace say how --resample draws: say how many clients")
    if select is not None:
        trace = transforms.select(trace, client_list(select, trace.clients))
    return trace if resample is None else transforms.resample(trace, resample, replace, seed)


def _moved(trace: Trace, crop: str | None, shift: str | None, spread: str | None, seed: int) -> Trace:
    """Return the cropped, then shifted world."""
    from fedsim.worlds import transforms

    if crop is not None:
        trace = transforms.crop(trace, *part(crop, trace.horizon_us))
    if shift is None and spread is None:
        return trace
    by_us, spread_us = signed_us("--shift", shift or "0"), signed_us("--spread", spread or "0")
    return transforms.shift(trace, by_us, spread_us, seed)


def client_list(text: str, clients: int) -> list[int]:
    """Parse clients such as `0-99,150`; numbers of at least `clients` are read as `clients`. Raises ConfigError."""
    numbers: list[int] = []
    for piece in text.split(","):
        first, dash, last = (p.strip() for p in piece.partition("-"))
        if not first.isdecimal() or (dash and not last.isdecimal()) or (dash and int(last) < int(first)):
            raise ConfigError(f"--select {text}: expected clients such as 0-99,150, found {piece.strip()!r}")
        numbers += range(min(int(first), clients), min(int(last or first), clients) + 1)
    return numbers


def part(text: str, horizon_us: int) -> tuple[int, int]:
    """Return start and end in microseconds of a part such as `1d:3d`; both may be left out. Raises ConfigError."""
    start, colon, end = text.partition(":")
    if not colon:
        raise ConfigError(f"--crop {text}: expected START:END, such as 1d:3d")
    return signed_us("--crop", start or "0"), signed_us("--crop", end) if end else horizon_us


def signed_us(option: str, text: str) -> int:
    """Return a duration with an optional sign in microseconds. Raises ConfigError."""
    from fedsim.common.units import duration_us

    sign = -1 if text.startswith("-") else 1
    try:
        return sign * duration_us(text.lstrip("+-"))
    except ValueError as error:
        raise ConfigError(f"{option} {text}: {error}") from error


def factor(text: str) -> str:
    """Return a factor such as `2`, `0.5` or `1/3` as a fraction in text. Raises ConfigError."""
    from fractions import Fraction

    try:
        return str(Fraction(text))
    except (ValueError, ZeroDivisionError):
        raise ConfigError(f"--scale-time {text}: expected a number such as 2, 0.5 or 1/3") from None
