"""Building a rule from its name, its options and the wrappers around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from fedsim.common.errors import ConfigError, closest
from fedsim.common.plugins import build, check, factory, options_of
from fedsim.server.rule import Algorithm, Needs, Promise


def build_rule(
    name: str,
    options: Mapping[str, Any],
    wrap: Sequence[Mapping[str, Any]] = (),
    *,
    lr: float | None = None,
    seed: int | None = None,
) -> Algorithm:
    """Build the rule `name` inside its wrappers; each of `wrap` is a wrapper's `name` and its options.

    The first wrapper is the innermost: it takes the rule, the next one takes what came of that. `lr`, the
    clients' learning rate, and `seed`, that of the run, go to a rule that has an option of that name and was not given
    it.
    Raises ConfigError, which names the rule or wrapper, for unknown names and options, and for combinations that
    cannot work.
    """
    known, offered = options_of(factory("rule", name)), {"lr": lr, "seed": seed}
    own = {k: v for k, v in offered.items() if v is not None and k in known and k not in options}
    algorithm = _checked(build("rule", name, options, **own), f"rule {name!r}")
    if wrap and algorithm.needs.search:
        raise ConfigError(
            f"rule {name!r} searches for the length of its step, which wrappers would change: leave out one"
        )
    for wrapper in wrap:
        algorithm = _wrapped(algorithm, wrapper, name)
    return algorithm


def _wrapped(algorithm: Algorithm, wrapper: Mapping[str, Any], rule: str) -> Algorithm:
    options = dict(wrapper)
    name = options.pop("name", None)
    if not isinstance(name, str):
        raise ConfigError(f"wrapper of rule {rule!r}: expected its 'name', found {dict(wrapper)}")
    check("wrapper", name, options, supplied=("rule",))
    try:
        return _checked(build("wrapper", name, options, rule=algorithm), f"wrapper {name!r}")
    except ConfigError as error:
        raise ConfigError(f"wrapper {name!r} of rule {rule!r}: {error}") from error


def _checked(made: Any, what: str) -> Algorithm:
    if not isinstance(made, Algorithm):
        raise ConfigError(f"{what} returned {type(made).__name__}, expected an Algorithm")
    if not isinstance(made.needs, Needs):
        raise ConfigError(f"{what}: expected Needs(...) for what it needs, found {made.needs!r}")
    if not callable(made.init):
        raise ConfigError(f"{what}: expected a function for its first state 'init', found {made.init!r}")
    for promise in sorted(set(made.promises) - set(get_args(Promise))):
        raise ConfigError(f"{what} cannot promise {promise!r}{closest(promise, get_args(Promise))}")
    return made
