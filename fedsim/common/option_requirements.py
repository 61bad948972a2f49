"""Requirements of options: annotations for options that have no effect beside certain values of other options.

The annotation of an option, in a table of the configuration or in the signature of a plug-in, names what it needs:

    percentile: Annotated[float, Field(ge=0, le=100), With("variant", "fedscale")] = 30.0
    law: Annotated[Literal["same", "uniform"], Unless("chance", 0)] = "same"

The default of such an option is always allowed, so that a configuration with every default written out can run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from typing import Any

from pydantic import BaseModel


class With:
    """The option has an effect only if another option of its table has one of these values."""

    def __init__(self, option: str, *values: Any) -> None:
        self.option, self.values = option, values

    @property
    def sentence(self) -> str:
        """When the option has an effect, such as `Only with variant = "fedscale".`"""
        if self.values == (None,):
            return f"Only without {self.option!r}."
        return f"Only with {' or '.join(_assignment(self.option, value) for value in self.values)}."

    def lacks(self, table: Any) -> str:
        """Return what the option's table lacks for the option to have an effect; "" if nothing."""
        value = getattr(table, self.option)
        if value in self.values:
            return ""
        if self.values == (None,):
            return f"beside {self.option!r}; leave one of them out"
        wanted = " or ".join(_assignment(self.option, wanted) for wanted in self.values)
        return f"with {_assignment(self.option, value)}; it needs {wanted}"


class Unless(With):
    """The option has an effect only if another option of its table has none of these values."""

    @property
    def sentence(self) -> str:
        """When the option has an effect, such as `Not with chance = 0.`"""
        if self.values == (None,):
            return f"Only with {self.option!r}."
        return f"Not with {' or '.join(_assignment(self.option, value) for value in self.values)}."

    def lacks(self, table: Any) -> str:
        """Return what the option's table lacks for the option to have an effect; "" if nothing."""
        value = getattr(table, self.option)
        if value not in self.values:
            return ""
        if value is None:
            return f"without {self.option!r}"
        return f"with {_assignment(self.option, value)}; it needs another {self.option!r}"


class Where:
    """The option has an effect only if `holds(table)` is true; otherwise `lacks` is the reason in the message."""

    def __init__(self, holds: Callable[[Any], bool], lacks: str) -> None:
        self._holds, self.reason = holds, lacks

    def lacks(self, table: Any) -> str:
        """Return what the option's table lacks for the option to have an effect; "" if nothing."""
        return "" if self._holds(table) else self.reason


def lacks_in(table: BaseModel, path: str = "", default: Any = None) -> Iterator[tuple[str, str]]:
    """Yield the options with requirements that differ from their defaults, in the table and in the tables inside it.

    Yields the place of each option, such as `devices.fault_length` after `path`, and what it lacks to have an effect,
    or "". `default` is the default of the whole table, if it has one.
    """
    for name, field in type(table).model_fields.items():
        value, plain = getattr(table, name), field.get_default(call_default_factory=True, validated_data={})
        if isinstance(value, BaseModel):
            yield from lacks_in(value, f"{path}{name}.", plain)
        elif value != plain and (default is None or value != getattr(default, name)):
            requirements = [entry for entry in field.metadata if isinstance(entry, With | Where)]
            if requirements:
                lacks = (requirement.lacks(table) for requirement in requirements)
                yield f"{path}{name}", next(filter(None, lacks), "")


def refusal(place: str, lacks: str) -> str:
    """Return the message that refuses an option without effect."""
    return f"{place}: it would have no effect {lacks}"


def _assignment(option: str, value: Any) -> str:
    if value is None:
        return f"no {option!r}"
    if isinstance(value, str):
        return f'{option} = "{value}"'
    return f"{option} = {str(value).lower() if isinstance(value, bool) else format(value, 'g')}"


def without(table: Mapping[str, Any], places: Iterable[str]) -> dict[str, Any]:
    """Return nested tables without the keys at these places, such as `devices.fault_length` or `wrap.0.b`."""
    reduced = deepcopy(dict(table))
    for place in places:
        below: Any = reduced
        *path, last = place.split(".")
        for step in path:
            if isinstance(below, list | tuple):
                below = below[int(step)] if int(step) < len(below) else None
            elif isinstance(below, dict) and (step in below or not step.isdecimal()):
                below = below.get(step)  # else a single table stands for a list of one
        if isinstance(below, dict):
            below.pop(last, None)
    return reduced
