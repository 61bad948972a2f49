"""Names of metrics and columns as headings, with their units."""

from __future__ import annotations

import re

_UNITS = {
    "percent2": "%²",
    "percent": "%",
    "rad": "rad",
    "deg": "°",
    "nats": "nats",
    "s": "s",
    "h": "h",
    "us": "µs",
    "bytes": "bytes",
}
"""The text of each unit at the end of a name."""


def name_of(metric: str) -> str:
    """Return the name of a metric without the file that it is in: `mine.py:served_percent` is `served_percent`."""
    return metric.rpartition(".py:")[2]


def heading_of(name: str) -> str:
    """Return the name of a column as a heading with its unit: `worst10_percent` is `worst 10 % of clients, %`."""
    name = name_of(name)
    if name == "mean_percent":
        return "mean accuracy, %"
    if share := re.fullmatch(r"(worst|best)(\d+)_percent", name):
        return f"{share[1]} {share[2]} % of clients, %"
    for suffix, unit in _UNITS.items():
        if name.endswith(f"_{suffix}"):
            return f"{_spaced(name.removesuffix(f'_{suffix}'))}, {unit}"
    return _spaced(name)


def heading_of_difference(name: str) -> tuple[str, str]:
    """Return the heading of a column and the unit of its differences: those of percentages are in points."""
    heading, _, unit = heading_of(name).partition(", ")
    return heading, "points" if unit == "%" else unit


def _spaced(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=\d)", " ", name.replace("_", " "))
