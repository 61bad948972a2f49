"""Objects that Python code passes to a run, by name: `python:DIGEST`, which means nothing elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fedsim.common.errors import ConfigError

GIVEN = "python:"
"""Prefix of the names of such objects; a digest of the object follows."""
_given: dict[str, Callable[..., Any]] = {}
"""The factories of such objects by name."""


@contextmanager
def given(factories: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Let configurations name `factories`, whose names start with `GIVEN`, in the body."""
    added = {name: make for name, make in factories.items() if name not in _given}
    _given.update(added)
    try:
        yield
    finally:
        for name in added:
            _given.pop(name, None)


def is_given(name: str) -> bool:
    """Return whether a name is that of an object that Python code has passed to this process."""
    return name in _given


def all_given() -> dict[str, Callable[..., Any]]:
    """Return the factories that Python code has passed to this process, by name."""
    return dict(_given)


def keep_given(factories: Mapping[str, Callable[..., Any]]) -> None:
    """Let configurations name `factories` in place of those of earlier calls: for a process that trains one run."""
    _given.clear()
    _given.update(factories)


def factory_of_given(kind: str, name: str) -> Callable[..., Any]:
    """Return the factory of such an object. Raises ConfigError if this process does not have it."""
    if name in _given:
        return _given[name]
    raise ConfigError(
        f"{kind} {name!r} came from Python code, and no file holds it: call fedsim.simulate, study, resume, fork, "
        f"replay or verify with {kind}=..."
    )
