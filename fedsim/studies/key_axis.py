"""The axis of a study whose levels are the values of one key of a run's configuration."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from fedsim import plugins
from fedsim.common.errors import ConfigError, short
from fedsim.config.study import COLUMNS

Level = dict[str, Any]
"""Keys of a run's configuration that a level replaces."""


def axis_name(key: str, taken: Iterable[str]) -> str:
    """Return the name of the axis of a key: its last part, or all of it where another column has this name."""
    table, _, last = key.rpartition(".")
    used = {*COLUMNS, *plugins.names("metric"), *taken, "name"}
    name = last if last not in used else f"{table}_{last}" if last != "name" else table.rpartition(".")[2]
    return re.sub(r"\W", "_", name)


def levels_of(key: str, values: Sequence[Any], place: str) -> dict[str, Level]:
    """Return a level for each value, named after it; `place` is where the values stand. Raises ConfigError."""
    levels: dict[str, Level] = {}
    for value in values:
        text = str(value).replace("e+", "e")
        name = re.sub(r"[^A-Za-z0-9._]+", "-", text.replace("-", "minus", text.startswith("-")))
        name = name.strip("-._") or "empty"
        if name in levels:
            raise ConfigError(f"{place}: expected different values, found {short(str(value))!r} twice")
        levels[name] = keys_of(key, value)
    return levels


def keys_of(key: str, value: Any) -> Level:
    """Return the tables in which the key `a.b` has a value."""
    for part in reversed([part.strip() for part in key.split(".")]):
        value = {part: value}
    return dict(value)
