"""Finds and builds plug-ins by kind and name, and checks their options."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from fedsim.common.errors import ConfigError, Error, RunError, closest
from fedsim.common.option_requirements import lacks_in, refusal
from fedsim.plugins.errors import contained, ends_the_process, line_of, with_type
from fedsim.plugins.kinds import KINDS, distribution, entry_points, names, shipped
from fedsim.plugins.loading import load
from fedsim.plugins.options import call, checked_options, completed, options_model, options_of, plain
from fedsim.plugins.python_objects import GIVEN, factory_of_given

Suggest = Callable[..., str]
"""A function such as `fedsim.common.errors.closest`."""
_CHECKED = ("task", "client", "selector", "adversary")
"""Kinds whose products `build` checks by the names of their classes; the callers check the others."""
ONLY_SHIPPED = "FEDSIM_ONLY_SHIPPED"
"""The environment variable that allows only the plug-ins that fedsim ships."""


def factory(kind: str, name: str) -> Callable[..., Any]:
    """Return the factory of a plug-in. Raises ConfigError that suggests the closest name."""
    if name.startswith(GIVEN):
        return factory_of_given(kind, name)
    if ":" in name:
        return _elsewhere(kind, name)
    if name.endswith(".py"):
        raise ConfigError(
            f"{kind} {name!r}: expected the name of the function too, such as '{name}:{Path(name).stem}'"
        )
    module = f"{KINDS[kind].package}.{name}"
    imported = getattr(sys.modules.get(module), name, None)
    if callable(imported):  # much faster than listing the folder
        return imported  # type: ignore[no-any-return]
    if name in shipped(kind):
        return _member(kind, name, module, name, importlib.import_module)
    points = entry_points(kind).get(name)
    if not points:
        raise ConfigError(f"there is no {kind} {name!r}{closest(name, names(kind))}")
    if len(points) > 1:
        raise ConfigError(
            f"there is more than one {kind} {name!r}, of {distribution(kind, name)}: write one of "
            f"{', '.join(repr(point.value) for point in points)}"
        )
    return _elsewhere(kind, points[0].value)


def build(kind: str, name: str, options: Mapping[str, Any], **supplied: Any) -> Any:
    """Call a plug-in's factory with `options` of a configuration and with the arguments `supplied` by fedsim.

    The options are checked against the factory's signature. Raises ConfigError that names each unknown option, with
    the closest known one, and each wrong type.
    """
    plugin, expected = f"{kind} {name!r}", KINDS[kind].product
    checked = check(kind, name, options, supplied)
    if lines := [
        refusal(f"{plugin}, option {place!r}", lacks)
        for place, lacks in idle_options(kind, name, options, supplied)
        if lacks
    ]:
        raise ConfigError("\n".join(lines))
    try:
        with contained(plugin):
            product = call(factory(kind, name), checked, supplied)
    except ValueError as error:
        if line := line_of(error):  # in a file of the user's, whose message may not say what it is about
            raise ConfigError(f"{plugin}: {error}{line}") from error
        raise
    returned = f"{plugin} returned {type(product).__name__}"
    if kind in _CHECKED and expected not in (c.__name__ for c in type(product).__mro__):
        raise ConfigError(f"{returned}, expected an instance of {expected}")
    if kind == "partitioner" and not callable(product):
        raise ConfigError(f"{returned}, expected a function")
    return product


def summary(kind: str, name: str) -> str:
    """Return the first line of a plug-in's docstring."""
    return (inspect.getdoc(factory(kind, name)) or "").strip().split("\n")[0]


def check(
    kind: str,
    name: str,
    options: Mapping[str, Any],
    supplied: Iterable[str],
    others: Iterable[str] = (),
    *,
    suggest: Suggest = closest,
) -> dict[str, Any]:
    """Return the options of a plug-in converted by the annotations of its factory's parameters.

    Raises ConfigError if there is no such plug-in, or if it does not accept these options.

    Args:
        kind: a key of `KINDS`.
        name: the plug-in.
        options: its options in a configuration.
        supplied: parameters that fedsim sets.
        others: other keys of the plug-in's table, which no option may be called, and which a message may suggest.
        suggest: returns the hint for an unknown option, from the option, the known ones and `others`.
    """
    make = factory(kind, name)
    for key in others:
        if key in options_of(make, supplied):
            raise ConfigError(
                f"{kind} {name!r}: its option {key!r} is called like a key of the table itself: rename the parameter"
            )
    return checked_options(f"{kind} {name!r}", make, options, supplied, partial(suggest, others=others))


def idle_options(
    kind: str, name: str, options: Mapping[str, Any], supplied: Iterable[str]
) -> list[tuple[str, str]]:
    """Return the options that depend on another one, and what each lacks to have an effect, or ""."""
    make = factory(kind, name)
    given = completed(options, options_of(make, supplied))
    return list(lacks_in(options_model(make, tuple(supplied)).model_validate(given)))


def resolved(kind: str, name: str, options: Mapping[str, Any], supplied: Iterable[str]) -> dict[str, Any]:
    """Return the options with all defaults, except for defaults that TOML cannot express, such as None."""
    if name.startswith(GIVEN):  # it has no options, and it may be absent
        return dict(options)
    known = options_of(factory(kind, name), supplied)
    defaults = {n: plain(p.default) for n, p in known.items() if p.default is not p.empty}
    values = {n: v for n, v in defaults.items() if v is not None} | dict(options)
    return {n: list(v) if isinstance(v, tuple) else v for n, v in values.items()}


def smaller_is_better(metric: str) -> bool:
    """Return whether smaller values of a metric are better, which its file states by `SMALLER_IS_BETTER = True`."""
    try:
        module = sys.modules[factory("metric", metric).__module__]
    except ConfigError:  # not a metric, but another column of a frame
        return False
    return bool(getattr(module, "SMALLER_IS_BETTER", False))


def number_of(metric: str, value: Any) -> float:
    """Return the value that a metric returned as a float. Raises RunError if it is no number."""
    import numpy as np  # not needed to list plug-ins

    if np.ndim(value) or not isinstance(value, (int, float, np.number, np.bool_)):
        fault = f"an array of shape {list(np.shape(value))}" if np.ndim(value) else type(value).__name__
        raise RunError(f"metric {metric!r}: expected a number, found {fault}")
    return float(value)


def _elsewhere(kind: str, name: str) -> Callable[..., Any]:
    if os.environ.get(ONLY_SHIPPED, "0") not in ("", "0"):
        raise ConfigError(f"{kind} {name!r} is code that fedsim does not ship, and {ONLY_SHIPPED} refuses it")
    where, _, member = name.rpartition(":")
    make = _member(kind, name, where, member, load)
    if not where.endswith(".py"):
        _check_returns(make, kind, name)
    return make


def _check_returns(make: Callable[..., Any], kind: str, name: str) -> None:
    """Raise ConfigError for functions that are no plug-ins; else a configuration could call `os.system`."""
    returned = make if isinstance(make, type) else getattr(make, "__annotations__", {}).get("return")
    if isinstance(returned, str):
        classes = {returned.rpartition(".")[2]}
    else:
        classes = {c.__name__ for c in getattr(returned, "__mro__", ())}
    expected = KINDS[kind].product
    alias = getattr(importlib.import_module(KINDS[kind].package), expected, None)  # a Partition is no class
    if expected not in classes and (alias is None or returned != alias):
        raise ConfigError(
            f"{kind} {name!r}: expected a function whose annotation says that it returns a {expected}, "
            f"found {returned!r}"
        )


def _member(kind: str, name: str, where: str, member: str, load: Callable[[str], Any]) -> Callable[..., Any]:
    """Return a function in what `load` makes of `where`. Raises ConfigError with the fault and its line."""
    try:
        module = load(where)
    except Error:
        raise
    except BaseException as error:  # a user's module may raise anything
        if not isinstance(error, Exception) and not ends_the_process(error):
            raise
        plain_message = isinstance(error, (ImportError, OSError, SyntaxError))
        message = str(error) if plain_message else with_type(error)
        raise ConfigError(f"cannot import the {kind} {name!r}: {message}{line_of(error)}") from error
    make = getattr(module, member, None)
    if not callable(make):
        functions = [n for n, v in vars(module).items() if inspect.isfunction(v) and not n.startswith("_")]
        raise ConfigError(f"{kind} {name!r}: {where} has no function {member!r}{closest(member, functions)}")
    return make  # type: ignore[no-any-return]
