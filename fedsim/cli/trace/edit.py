"""`fedsim trace edit`: make a world from another one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Option

from fedsim.cli.options import grouped
from fedsim.cli.trace.output import Force, Out, TraceFile, check_free, write
from fedsim.common.errors import ConfigError

if TYPE_CHECKING:
    from fedsim.worlds.trace import Trace


@dataclass(frozen=True, kw_only=True)
class Edits:
    """Changes of a world."""

    select: Annotated[str | None, Option(help="1. Keep these clients: 0-99,150")] = None
    resample: Annotated[int | None, Option(min=1, help="2. Draw so many clients.")] = None
    replace: Annotated[
        bool | None,
        Option("--replace/--no-replace", help="Draw with replacement; by default if they are too few."),
    ] = None
    after_end: Annotated[
        Literal["error", "repeat", "stop"] | None, Option(help="3. What happens after the horizon.")
    ] = None
    crop: Annotated[str | None, Option(help="4. Keep a part: 1d:3d, :12h or 6h:")] = None
    shift: Annotated[str | None, Option(help="5. Delay everything by 6h; -6h is earlier.")] = None
    spread: Annotated[str | None, Option(help="5. Delay each client by a random time up to this.")] = None
    scale_time: Annotated[str | None, Option(help="6. Stretch time: 2 is twice as long; 1/3 works.")] = None
    scale_compute: Annotated[float, Option(help="6. Multiply seconds per sample.")] = 1.0
    scale_downlink: Annotated[float, Option(help="6. Multiply bytes per second down.")] = 1.0
    scale_uplink: Annotated[float, Option(help="6. Multiply bytes per second up.")] = 1.0
    tile: Annotated[int | None, Option(min=1, help="7. Write so many laps of loop periods out.")] = None
    seed: Annotated[
        int | None, Option(min=0, help="Seed of --resample and --spread; 0 by default.", show_default=False)
    ] = None


@grouped
def edit(file: TraceFile, edits: Edits, out: Out, force: Force = False) -> None:
    """Change a world. Changes happen in the order of their numbers; for another order, edit twice."""
    from fedsim.worlds import transforms
    from fedsim.worlds.trace import read_trace

    check_free(out, force, [file])
    trace = _chosen(read_trace(file), edits)
    if edits.after_end is not None:
        trace = transforms.ending(trace, edits.after_end)
    trace = _moved(trace, edits)
    speeds = edits.scale_compute, edits.scale_downlink, edits.scale_uplink
    if edits.scale_time is not None or speeds != (1, 1, 1):
        trace = transforms.scale(trace, factor(edits.scale_time or "1"), *speeds)
    write(trace if edits.tile is None else transforms.tile(trace, edits.tile), out)


def _chosen(trace: Trace, edits: Edits) -> Trace:
    """Return the world of selected, then resampled clients."""
    from fedsim.worlds import transforms

    if edits.replace is not None and edits.resample is None:
        raise ConfigError("--replace and --no-replace: expected --resample beside them, found none")
    if edits.seed is not None and edits.resample is None and edits.spread is None:
        raise ConfigError("--seed: expected --resample or --spread beside it, found none")
    if edits.select is not None:
        trace = transforms.select(trace, client_list(edits.select, trace.clients))
    if edits.resample is None:
        return trace
    return transforms.resample(trace, edits.resample, edits.replace, edits.seed or 0)


def _moved(trace: Trace, edits: Edits) -> Trace:
    """Return the cropped, then shifted world."""
    from fedsim.worlds import transforms

    if edits.crop is not None:
        trace = transforms.crop(trace, *part(edits.crop, trace.horizon_us))
    if edits.shift is None and edits.spread is None:
        return trace
    by_us = signed_us("--shift", edits.shift or "0")
    return transforms.shift(trace, by_us, signed_us("--spread", edits.spread or "0"), edits.seed or 0)


def client_list(text: str, clients: int) -> list[int]:
    """Parse clients such as `0-99,150` of a world of so many `clients`. Raises ConfigError."""
    numbers: list[int] = []
    for piece in text.split(","):
        first, dash, last = (p.strip() for p in piece.partition("-"))
        if not first.isdecimal() or (dash and not last.isdecimal()) or (dash and int(last) < int(first)):
            raise ConfigError(f"--select {text}: expected clients such as 0-99,150, found {piece.strip()!r}")
        if (highest := int(last or first)) >= clients:
            raise ConfigError(
                f"--select {text}: expected clients from 0 to {clients - 1}, found client {highest}"
            )
        numbers += range(int(first), highest + 1)
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

    try:
        return (-1 if text.startswith("-") else 1) * duration_us(text.lstrip("+-"))
    except ValueError as error:
        raise ConfigError(f"{option} {text}: {error}") from error


def factor(text: str) -> str:
    """Return a factor such as `2`, `0.5` or `1/3` as a fraction in text. Raises ConfigError."""
    from fractions import Fraction

    try:
        return str(Fraction(text))
    except (ValueError, ZeroDivisionError):
        raise ConfigError(f"--scale-time {text}: expected a number such as 2, 0.5 or 1/3") from None
