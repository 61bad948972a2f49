"""Bar charts of shares over time, drawn as lines of text."""

from __future__ import annotations

import math
import sys

from fedsim.common.units import DAY_US, HOUR_US

_CHART_ROWS = 5
_BLOCKS = " ▁▂▃▄▅▆▇█"
_PLAIN_BLOCKS = " ..::+*##"
_TICK_STEPS_H = (1, 2, 3, 6, 12, 24, 48, 96)


def chart(share: list[float], horizon_us: int, signs: str = _BLOCKS) -> list[str]:
    """Draw shares over time as lines of text, from 0 to a round number, with labelled axes.

    `signs` are the characters of a cell from empty to full.
    """
    top = _round_top(max(share))
    full = len(signs) - 1
    lines = ["clients online"]
    for row in reversed(range(_CHART_ROWS)):
        fill = [round(full * min(max(s / top * _CHART_ROWS - row, 0), 1)) for s in share]
        label = f"{100 * top:.3g} %" if row == _CHART_ROWS - 1 else ("0 %" if row == 0 else "")
        lines.append(f"{label:>7} |" + "".join(signs[f] for f in fill))
    return [*lines, *_time_axis(len(share), horizon_us)]


def _round_top(highest: float) -> float:
    """Return the smallest round share, at least 1 %, that is not below the highest."""
    return next((top for top in (0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8) if top >= highest), 1.0)


def _time_axis(columns: int, horizon_us: int) -> list[str]:
    hours = horizon_us / HOUR_US
    weeks = 168 * math.ceil(hours / 168 / 8)
    step = hours / 4 if hours < 2 else next((s for s in _TICK_STEPS_H if hours / s <= 8), weeks)
    line, labels, tick = ["-"] * (columns + 1), "", 0.0
    while tick <= hours * (1 + 1e-9):
        at = round(tick / hours * columns)
        line[at] = "+"
        labels = labels.ljust(at) + _clock(tick * HOUR_US, step)
        tick += step
    return [" " * 8 + "".join(line), " " * 8 + labels]


def _clock(time_us: float, step_h: float) -> str:
    if step_h >= 24 and step_h % 24 == 0:
        return f"{time_us / DAY_US:.0f}d"
    if step_h >= 1:
        return f"{time_us / HOUR_US:.3g}h"
    return f"{time_us / 60e6:.3g}min" if step_h >= 1 / 60 else f"{time_us / 1e6:.3g}s"


def blocks() -> str:
    """Return the characters of a cell from empty to full that the terminal can write."""
    try:
        _BLOCKS.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return _PLAIN_BLOCKS
    return _BLOCKS
