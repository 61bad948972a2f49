"""Keys of a configuration that would have no effect beside others: which they are, and when they are refused.

What a table or a plug-in knows alone its annotations say (`fedsim.common.option_requirements`); what takes two tables
is here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from fedsim.common import plugins
from fedsim.common.errors import ConfigError
from fedsim.common.option_requirements import given, refusal, without
from fedsim.config.run import RunConfig
from fedsim.config.section import PluginSection
from fedsim.config.timing import StopSection
from fedsim.server.rule_factory import build_rule

_LEAVE = "dropout.leave"
Lacks = dict[str, str]
"""By key that needs another one: what it lacks to have an effect, nothing if it has one."""


def lacks_of(config: RunConfig) -> Lacks:
    """Return the keys that are given, differ from their defaults and need others, and what each of them lacks."""
    found: Lacks = {}
    for name in type(config).model_fields:
        value = getattr(config, name)
        tables = enumerate(value) if isinstance(value, tuple) else [("", value)]
        for number, table in tables:
            if isinstance(table, BaseModel):
                found |= _of_table(table, f"{name}.{number}." if number != "" else f"{name}.")
    return found | dict(_across(config))


def _of_table(table: BaseModel, path: str) -> Lacks:
    found = dict(given(table, path))
    if isinstance(table, PluginSection):
        found |= {f"{path}{place}": lacks for place, lacks in table.idle_options()}
    for number, wrapper in enumerate(getattr(table, "wrap", ())):
        found |= _of_table(wrapper, f"{path}wrap.{number}.")
    if (options := getattr(table, "scenario_options", None)) is not None:
        found |= {f"{path}options.{place}": lacks for place, lacks in options()}
    return found


def _across(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Go through the keys that need a key of another table."""
    yield from _of_dropout(config)
    yield from _of_staleness(config)
    yield from _of_stop(config.stop)
    yield from _of_memory(config)
    jitter = config.cost.jitter
    if jitter.law != "lognormal":
        some = jitter.downlink or jitter.compute or jitter.uplink
        yield "cost.jitter.law", "" if some else "without a spread; give downlink, compute or uplink"
    if config.train.loss_samples != "all":
        asked = _asks_for_losses(config)
        yield "train.loss_samples", "" if asked else "where neither the rule nor the selector asks for losses"
    if not config.evaluate.personal:
        client = config.client
        own = plugins.build("client", client.name, client.working_options()).personal
        lacks = f"with the client method {client.name!r}, which has no models of clients"
        yield "evaluate.personal", "" if own else lacks


def _of_dropout(config: RunConfig) -> Iterator[tuple[str, str]]:
    pacing, dropout = config.pacing.pacing(), config.dropout
    if dropout.leave == "bernoulli":
        nothing = 'with dropout.chance = 0; give a chance, or say that nothing is lost with leave = "ignore"'
        yield _LEAVE, nothing if not dropout.chance else ""
    if dropout.partial:
        yield "dropout.partial", "" if pacing.deadline_us else "without a deadline; give pacing.deadline"
    if dropout.replace:
        filled = 'with pacing.refill = "arrival", which fills each place at once; it needs "step"'
        yield "dropout.replace", filled if pacing.refill == "arrival" else ""


def _of_staleness(config: RunConfig) -> Iterator[tuple[str, str]]:
    newest = 'with pacing.late = "drop", where every update is of the newest model'
    lacks = newest if config.pacing.pacing().cancels else ""
    if config.pacing.max_staleness is not None:
        yield "pacing.max_staleness", lacks
    if config.algorithm.rows != "start":
        yield "algorithm.rows", lacks


def _of_stop(stop: StopSection) -> Iterator[tuple[str, str]]:
    lacks = "" if stop.stop().metric else "without 'target' or 'patience'"
    if stop.metric != "mean_percent":
        yield "stop.metric", lacks
    if stop.rising == plugins.smaller_is_better(stop.metric):
        yield "stop.rising", lacks


def _of_memory(config: RunConfig) -> Iterator[tuple[str, str]]:
    asked = [
        key
        for key, value in (
            ("algorithm.memory", config.algorithm.memory),
            ("memory.slots", config.memory.slots),
        )
        if value
    ]
    if asked:
        remembers = _rule_of(config).needs.memory > 0
        lacks = f"with the rule {config.algorithm.name!r}, which remembers no absent clients"
        yield from ((key, "" if remembers else lacks) for key in asked)


def _rule_of(config: RunConfig) -> Any:
    rule = config.algorithm
    return build_rule(
        rule.name, rule.working_options(), [wrapper.named() for wrapper in rule.wrap], lr=config.train.lr
    )


def _asks_for_losses(config: RunConfig) -> bool:
    needs = _rule_of(config).needs
    if needs.losses or needs.search:
        return True
    selection = config.selection
    selector = plugins.build("selector", selection.name, selection.working_options())
    return "losses" in selector.needs


def refusals(lacks: Lacks) -> list[str]:
    """Return a line for each key without effect."""
    return [refusal(key, lack) for key, lack in lacks.items() if lack]


def refuse_idle(config: RunConfig) -> None:
    """Raise ConfigError if a key has no effect: of a run that is not read from a file with others."""
    if lines := refusals(lacks_of(config)):
        raise ConfigError("\n".join(f"{config.name}: {line}" for line in lines))


def settled(
    raws: Sequence[Mapping[str, Any]],
    sources: Sequence[str],
    check: Callable[[Mapping[str, Any], str], RunConfig],
    before: Callable[[], Sequence[RunConfig]] = lambda: (),
) -> list[RunConfig | ConfigError]:
    """Check configurations of one file: return each, or what is wrong with it.

    A key without effect is refused unless it has one in another of them, or in those `before`; then it is
    left out here.
    """
    found: list[RunConfig | ConfigError] = []
    for raw, source in zip(raws, sources, strict=True):
        try:
            found.append(check(raw, source))
        except ConfigError as error:
            found.append(error)
    lacks = [lacks_of(one) if not isinstance(one, ConfigError) else {} for one in found]
    if not any(map(refusals, lacks)):
        return found
    useful = {key for known in (*lacks, *map(lacks_of, before())) for key, lack in known.items() if not lack}
    for i, known in enumerate(lacks):
        idle = {key for key, lack in known.items() if lack}
        if lines := refusals({key: known[key] for key in known if key in idle - useful}):
            found[i] = ConfigError("\n".join(f"{sources[i]}: {line}" for line in lines))
        elif idle:
            found[i] = check(_without(raws[i], idle), sources[i])
    return found


def _without(raw: Mapping[str, Any], idle: set[str]) -> dict[str, Any]:
    """Return a configuration that is the same without keys that have no effect."""
    found = without(raw, idle - {_LEAVE})
    if _LEAVE in idle:
        found["dropout"]["leave"] = "ignore"
    return found
