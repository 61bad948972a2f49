"""`fedsim.combine` with a rule's options as keyword arguments, which is shorter in a test of one rule."""

from __future__ import annotations

from typing import Any

from fedsim.server import combine as module
from fedsim.server.combine import Combined
from fedsim.server.rule import Algorithm

_OF_THE_CALL = {"losses", "options", "wrap", *module.Given.__annotations__}


def combine(rule: str | Algorithm, updates: Any, **given: Any) -> Combined[Any]:
    """Combine updates; arguments that `combine` does not have are options of the rule."""
    arguments = {name: given[name] for name in given if name in _OF_THE_CALL}
    options = {name: given[name] for name in given if name not in _OF_THE_CALL}
    return module.combine(rule, updates, **{"options": options, **arguments})
