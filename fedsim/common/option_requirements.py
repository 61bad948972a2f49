"""Options that have no effect beside others: said where an option is declared, and found where one is given.

The annotation of an option, in a table of the configuration or in the signature of a plug-in, says what it needs:

    percentile: Annotated[float, Field(ge=0, le=100), With("variant", "fedscale")] = 30.0
    law: Annotated[Literal["same", "uniform"], Unless("chance", 0)] = "same"

Such an option may always have its default, so that a configuration with every default written out can be run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from typing import Any

from pydantic import BaseModel


class With:
    """The option has an effect only where another one of its table has one of these values."""

    def __init__(self, option: str, *values: Any) -> None:
        self.option, self.values = option, values

    def lacks(self, table: Any) -> str:
        """Say what is missing in the option's table for it to have an effect; empty if nothing."""
        found = getattr(table, self.option)
        if found in self.values:
            return ""
        if self.values == (None,):
            return f"beside {self.option!r}; leave one of them out"
        wanted = " or ".join(_said(self.option, value) for value in self.values)
        return f"with {_said(self.option, found)}; it needs {wanted}"


class Unless(With):
    """The option has an effect only where another one of its table has none of these values."""

    def lacks(self, table: Any) -> str:
        """Say what is missing in the option's table for it to have an effect; empty if nothing."""
        found = getattr(table, self.option)
        if found not in self.values:
            return ""
        if found is None:
            return f"without {self.option!r}"
        return f"with {_said(self.option, found)}; it needs another {self.option!r}"


class Where:
    """The option has an effect only where something holds of its table; if not, `lacks` says why."""

    def __init__(self, holds: Callable[[Any], bool], lacks: str) -> None:
        self._holds, self._lacks = holds, lacks

    def lacks(self, table: Any) -> str:
        """Say what is missing in the option's table for it to have an effect; empty if nothing."""
        return "" if self._holds(table) else self._lacks


def given(table: BaseModel, path: str = "", default: Any = None) -> Iterator[tuple[str, str]]:
    """Go through the options that need another one and differ from their defaults, tables inside included.

    Yields the place of each, from `path` on, and what it lacks to have an effect; that is empty if it has one.
    `default` is the table that stands for none.
    """
    for name, field in type(table).model_fields.items():
        value, plain = getattr(table, name), field.get_default(call_default_factory=True, validated_data={})
        if isinstance(value, BaseModel):
            yield from given(value, f"{path}{name}.", plain)
        elif value != plain and (default is None or value != getattr(default, name)):
            needed = [what for what in field.metadata if isinstance(what, With | Where)]
            if needed:
                yield f"{path}{name}", next(filter(None, (what.lacks(table) for what in needed)), "")


def refusal(place: str, lacks: str) -> str:
    """Return the line that refuses an option without effect."""
    return f"{place}: it would have no effect {lacks}"


def _said(option: str, value: Any) -> str:
    if value is None:
        return f"no {option!r}"
    if isinstance(value, str):
        return f'{option} = "{value}"'
    return f"{option} = {str(value).lower() if isinstance(value, bool) else format(value, 'g')}"


def without(table: Mapping[str, Any], places: Iterable[str]) -> dict[str, Any]:
    """Return nested tables without what stands at these places, such as `devices.fault_length` or `wrap.0.b`."""
    found = deepcopy(dict(table))
    for place in places:
        below: Any = found
        *path, last = place.split(".")
        for step in path:
            if isinstance(below, list | tuple):
                below = below[int(step)]
            elif step in below:
                below = below[step]  # a single table may stand for a list of one
        if isinstance(below, dict):
            below.pop(last, None)
    return found
