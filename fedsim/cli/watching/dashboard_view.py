"""The layout of a dashboard: runs, clients, the last evaluation and the engine, for terminals of any width.

The layout is lines of text, not tables of rich: those take ten times as long, and painting may take 1 % of the time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

import numpy as np
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions
from rich.text import Text

from fedsim.common.terminal import visible
from fedsim.common.units import show_bytes, show_us, show_wall

if TYPE_CHECKING:
    from fedsim.cli.watching.dashboard_state import Arm, Picture

BARS, ASCII_BARS = "▁▂▃▄▅▆▇█", "_.-=+*%#"
_WIDE = 100
"""Terminals with at least so many columns show blocks side by side."""
_NAME, _FACT = 24, 20
"""Largest width of a run's name, and the width of a number's label, in columns."""
_MOST_ARMS = 8


class View:
    """Prints a picture on a console; laid out when the width is known."""

    def __init__(self, picture: Picture) -> None:
        self.picture = picture

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        lines = _lines(self.picture, options.max_width, options.ascii_only)
        text = Text("\n".join(lines), no_wrap=True, overflow="crop")
        text.highlight_regex(r"^fedsim:.*", "bold")
        text.highlight_regex(r"█+", "green")
        yield text


def _lines(picture: Picture, width: int, plain: bool) -> Iterator[str]:
    wide = width >= _WIDE
    block = width // 2 - 2 if wide else width
    yield _headline(picture)
    yield ""
    yield from _arms(picture, wide, plain)
    yield ""
    blocks = _clients(picture), _evaluation(picture, block - _FACT, plain)
    if wide:
        for left, right in zip_longest(*blocks, fillvalue=""):
            yield f"{left:<{width // 2}}{right}"
    else:
        yield from (*blocks[0], "", *blocks[1])
    yield ""
    yield _engine(picture)


def _headline(picture: Picture) -> str:
    many = len(picture.arms)
    which = f"run {picture.current + 1} of {many}, " if many > 1 else ""
    return f"fedsim: {which}{show_wall(picture.elapsed_s)} so far, to go {show_wall(picture.to_go_s)}"


def _arms(picture: Picture, wide: bool, plain: bool) -> Iterator[str]:
    first = max(0, min(picture.current - 2, len(picture.arms) - _MOST_ARMS))
    some = picture.arms[first : first + _MOST_ARMS]
    names = [visible(arm.name) for arm in some]
    room = max(3, min(_NAME, max(map(cell_len, names))))
    bar = 30 if wide else 8
    accuracies = "   mean %  worst 10 %" if wide else ""
    yield f"{'run':{room}}  {'':{bar + 5}}{'step':>9}{'virtual time':>16}{accuracies}"
    for arm, name in zip(some, names, strict=True):
        yield f"{set_cell_size(name, room)}  {_arm(arm, bar, wide, plain)}"
    if len(some) < len(picture.arms):
        yield f"and {len(picture.arms) - len(some)} more"


def _arm(arm: Arm, bar: int, wide: bool, plain: bool) -> str:
    if arm.state == "waiting":
        return "waiting"
    full = round(bar * arm.done)
    drawn = "#" * full + "." * (bar - full) if plain else "█" * full + "░" * (bar - full)
    row = f"{drawn} {arm.done:4.0%}{arm.step:>9,}{show_us(arm.now_us):>16}"
    if wide:
        row += f"{number(arm.metric('mean_percent'), 2):>9}{number(arm.metric('worst10_percent'), 2):>12}"
    return row


def _clients(picture: Picture) -> list[str]:
    return _facts(
        "clients",
        {
            "online": f"{picture.online:,} of {picture.clients:,}",
            "in flight": f"{picture.in_flight:,}",
            "in the last step": f"{picture.updates:,} updates",
            "lost so far": f"{picture.lost:,}",
            "late so far": f"{picture.late:,}",
            "staleness": f"{number(picture.staleness, 1)} steps",
        },
    )


def _evaluation(picture: Picture, room: int, plain: bool) -> list[str]:
    arm, evaluation = picture.arm, picture.arm.evaluation
    if evaluation is None:
        return _facts("last evaluation", {"at": "none yet"})
    low, high = min(picture.accuracy, default=math.nan), max(picture.accuracy, default=math.nan)
    return _facts(
        "last evaluation",
        {
            "at": f"step {evaluation.step:,}, {show_us(evaluation.time_us)}",
            "mean": f"{number(arm.metric('mean_percent'), 2)} %",
            "worst 10 %": f"{number(arm.metric('worst10_percent'), 2)} %",
            "angle": f"{number(arm.metric('angle_rad'), 3)} rad",
            "mean so far": sparkline(picture.accuracy, room, ASCII_BARS if plain else BARS),
            "from, to": f"{number(low, 1)} %, {number(high, 1)} %",
        },
    )


def _engine(picture: Picture) -> str:
    return (
        f"{number(picture.steps_per_s, 1)} steps/s, memory {show_bytes(picture.memory_bytes)}, "
        f"free {show_bytes(picture.free_bytes)}"
    )


def _facts(title: str, facts: dict[str, str]) -> list[str]:
    return [title, *(f"  {name:{_FACT - 2}}{value}" for name, value in facts.items())]


def sparkline(values: Sequence[float], width: int, letters: str = BARS) -> str:
    """Draw values with at most `width` letters, scaled from the lowest to the highest value.

    With more values than letters, each letter shows a mean. Values that are not finite are left out.
    """
    finite = np.asarray(values, dtype=np.float64)
    finite = finite[np.isfinite(finite)]
    if not len(finite) or width < 1:
        return ""
    edges = np.linspace(0, len(finite), min(width, len(finite)) + 1).astype(int)
    means = np.add.reduceat(finite, edges[:-1]) / np.diff(edges)
    low, spread = means.min(), np.ptp(means)
    heights = (means - low) / spread if spread > 0 else np.full(len(means), 0.5)
    return "".join(letters[round(height * (len(letters) - 1))] for height in heights.tolist())


def number(value: float, digits: int) -> str:
    """Write a number with `digits` decimals; a dash if it is not finite."""
    return f"{value:,.{digits}f}" if math.isfinite(value) else "-"
