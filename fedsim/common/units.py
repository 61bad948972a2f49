"""Times and sizes: integer microseconds and bytes inside fedsim, texts such as `1.5h` and `20 MB` for users."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from fedsim.common.errors import closest

US = 1_000_000
"""Microseconds in a second."""
HOUR_US = 3600 * US
DAY_US = 24 * HOUR_US

_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}
_BYTES = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_PART = re.compile(r"([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*([a-z]*)", re.IGNORECASE)


def to_us(seconds: float) -> int:
    """Round a number of seconds to whole microseconds."""
    return round(seconds * US)


def duration_us(text: str | float) -> int:
    """Return a duration in microseconds, from a number of seconds or a text such as `1d12h`, `90 s` or `250ms`.

    Raises ValueError if a part has no number or no known unit (a single number needs none), or if the duration is
    negative or too long for 64 bits.
    """
    seconds = _amount(text, _SECONDS, "duration such as '90s', '1.5h' or '7d'", bare="s")
    if not 0 <= seconds < 9e12:  # a whole number may be too large for a float
        raise ValueError(f"expected a duration from 0 to 9e12 seconds, found {text!r}")
    return to_us(float(seconds))


def size_bytes(text: str | float) -> int:
    """Return a size in bytes, from a number of bytes or a text such as `20 MB` (10^6) or `4 GiB` (2^30).

    Raises ValueError if a part has no number or no known unit, or if the size is negative or too large for 64 bits.
    """
    size = _amount(text, _BYTES, "size such as '20 MB' or '4 GiB'", bare="")
    if not 0 <= size < 2**63:
        raise ValueError(f"expected a size from 0 to 9.2e18 bytes, found {text!r}")
    return round(size)


def _amount(text: str | float, units: Mapping[str, float], kind: str, bare: str) -> float:
    """Return a number as it is, and the sum of the parts of a text; `bare` is the unit of a single number."""
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        return text
    text = str(text)
    stripped = text.strip()
    parts = _PART.findall(stripped)
    if not parts or _PART.sub("", stripped).strip():
        raise ValueError(f"expected a {kind}, found {text!r}")
    total = 0.0
    for number, unit in parts:
        if not unit and len(parts) > 1:
            raise ValueError(f"expected a {kind}, found no unit behind {number} in {text!r}")
        key = unit.lower() or bare
        if key not in units:
            near = closest(unit, [name for name in units if name])
            raise ValueError(f"expected a {kind}, found unit {unit!r} in {text!r}{near}")
        total += float(number) * units[key]
    return total


def show_us(time_us: int) -> str:
    """Return a virtual time as a text such as `3d 04:05:06`, or `1.250 s` below a minute."""
    if abs(time_us) < 60 * US:
        return f"{time_us / US:.3f} s"
    if time_us < 0:
        return f"-{show_us(-time_us)}"
    days, rest = divmod(time_us // US, 86400)
    clock = f"{rest // 3600:02d}:{rest % 3600 // 60:02d}:{rest % 60:02d}"
    return f"{days}d {clock}" if days else clock


def show_wall(seconds: float) -> str:
    """Return a wall-clock duration as a text such as `under 1 s`, `45 s` or `3.4 h`; a dash if it is not finite."""
    if not math.isfinite(seconds):
        return "-"
    if 0 < seconds < 1:
        return "under 1 s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def show_estimate(seconds: float) -> str:
    """Return an estimated wall-clock duration as a text such as `about 45 s` or `under 1 s`."""
    return show_wall(seconds) if seconds < 1 else f"about {show_wall(seconds)}"


def show_bytes(n: float) -> str:
    """Return a size as a text in powers of 1024, such as `1.5 GiB`."""
    size = float(n)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
