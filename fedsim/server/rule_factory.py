"""Building a rule from its name, its options and the wrappers around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from fedsim.common.errors import ConfigError, closest
from fedsim.plugins import build, check, factory
from fedsim.plugins.options import options_of
from fedsim.server.rule import Algorithm, Needs, Promise, StartFrom

OF_RUN = ("lr", "momentum", "seed")
"""Options of rules that get a value of the run where their default is None."""


def build_rule(
    name: str,
    options: Mapping[str, Any],
    wrap: Sequence[Mapping[str, Any]] = (),
    *,
    lr: float | None = None,
    seed: int | None = None,
    momentum: float | None = None,
) -> Algorithm:
    """Build the rule `name` inside its wrappers; each of `wrap` is a wrapper's `name` and its options.

    The first wrapper is the innermost. A rule with an option `lr`, `momentum` or `seed` whose default is None and that
    `options` lacks gets the clients' learning rate or momentum, or the run's seed. Raises ConfigError, which names the
    rule or wrapper, for unknown names and options, and for combinations that cannot work.
    """
    known, of_run = options_of(factory("rule", name)), dict(zip(OF_RUN, (lr, momentum, seed), strict=True))
    supplied = {
        key: value
        for key, value in of_run.items()
        if value is not None and key in known and known[key].default is None and key not in options
    }
    algorithm = _checked(build("rule", name, options, **supplied), f"rule {name!r}")
    if wrap:
        _check_may_be_wrapped(algorithm, name)
    for wrapper in wrap:
        algorithm = _wrapped(algorithm, wrapper, name)
    return algorithm


def _check_may_be_wrapped(algorithm: Algorithm, name: str) -> None:
    if algorithm.start == "last":
        raise ConfigError(
            f"rule {name!r} starts clients from the models that they received last, and wrappers expect updates of the "
            "current model: leave out the wrappers"
        )
    if algorithm.as_sent:
        raise ConfigError(
            f"rule {name!r} follows what clients keep by their updates, and needs these as they were sent: leave out "
            "the wrappers"
        )
    if algorithm.needs.search:
        raise ConfigError(
            f"rule {name!r} searches for the length of its step, which wrappers would change: leave out one of them"
        )


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


def _checked(product: Any, plugin: str) -> Algorithm:
    if not isinstance(product, Algorithm):
        raise ConfigError(f"{plugin} returned {type(product).__name__}, expected an Algorithm")
    if not isinstance(product.needs, Needs):
        raise ConfigError(f"{plugin}: expected Needs(...) for what it needs, found {product.needs!r}")
    if not callable(product.weigh):
        raise ConfigError(
            f"{plugin}: expected a function that weighs a stack, 'weigh', found {product.weigh!r}"
        )
    if not callable(product.init):
        raise ConfigError(f"{plugin}: expected a function for its first state 'init', found {product.init!r}")
    if product.columns is not None and not callable(product.columns):
        raise ConfigError(f"{plugin}: expected a function of columns or None, found {product.columns!r}")
    if product.sends and product.then is None:
        raise ConfigError(
            f"{plugin}: expected a VectorStep, 'then', that makes the vectors it sends ({', '.join(product.sends)}), "
            "found None"
        )
    if product.start not in get_args(StartFrom):
        raise ConfigError(f"{plugin}: expected 'current' or 'last' for 'start', found {product.start!r}")
    for promise in sorted(set(product.promises) - set(get_args(Promise))):
        raise ConfigError(f"{plugin} cannot promise {promise!r}{closest(promise, get_args(Promise))}")
    return product
