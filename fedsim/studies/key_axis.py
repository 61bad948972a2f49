"""The axis of a study whose levels are the values of one key of a run's configuration."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from fedsim import plugins
from fedsim.common.errors import ConfigError, short
from fedsim.common.files import from_toml
from fedsim.config.errors import assign
from fedsim.config.study.axes import COLUMNS

Level = dict[str, Any]
"""Keys of a run's configuration that a level replaces."""


def several(text: str) -> list[Any]:
    """Return the values of an assignment such as `algorithm.alpha=0.1,0.2`; an empty list if it has one value.

    What TOML reads as one value, such as `[10, 20]` or `"a,b"`, is one.
    """
    value = text.partition("=")[2].strip()
    if "," not in value or _toml(value):
        return []
    values = _toml(f"[{value}]")
    return values[0] if values else [_plain(part.strip()) for part in value.split(",")]


def axis_name(key: str, taken: Iterable[str]) -> str:
    """Return the name of the axis of a key: its last part, or all of it where another column has this name."""
    table, _, last = key.rpartition(".")
    used = {*COLUMNS, *plugins.names("metric"), *taken, "name"}
    named = table.rpartition(".")[2] if last == "name" else ""
    name = last if last not in used else named if named and named not in used else f"{table}_{last}"
    return re.sub(r"\W", "_", name)


def levels_of(key: str, values: Sequence[Any], place: str) -> dict[str, Level]:
    """Return a level for each value, named after it; `place` is where the values stand. Raises ConfigError."""
    levels: dict[str, Level] = {}
    for value in values:
        text = str(value).replace("e+", "e")
        name = re.sub(r"[^A-Za-z0-9._]+", "-", text.replace("-", "minus", text.startswith("-")))
        name = name.strip("-._") or "empty"
        if name in levels or keys_of(key, value) in levels.values():
            raise ConfigError(f"{place}: expected different values, found {short(str(value))!r} twice")
        levels[name] = keys_of(key, value)
    return levels


def keys_of(key: str, value: Any) -> Level:
    """Return the tables in which the key `a.b` has a value."""
    for part in reversed([part.strip() for part in key.split(".")]):
        value = {part: value}
    return dict(value)


def _plain(text: str) -> Any:
    """Return one value as `--set` reads it: TOML, or text."""
    holder: dict[str, Any] = {}
    assign(holder, f"value={text}")
    return holder["value"]


def _toml(text: str) -> list[Any]:
    """Return a list of the value that a text is in TOML, or an empty list."""
    try:
        parsed = from_toml(f"value = {text}")
    except ValueError:
        return []
    return [parsed["value"]] if set(parsed) == {"value"} else []
