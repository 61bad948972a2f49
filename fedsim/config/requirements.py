"""Finds the keys of a configuration that have no effect beside other keys, and refuses them.

Requirements within one table or plug-in are annotations (`fedsim.common.option_requirements`); requirements across two
tables are functions here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from fedsim import plugins
from fedsim.common.errors import ConfigError
from fedsim.common.option_requirements import lacks_in, refusal, without
from fedsim.config.errors import validated
from fedsim.config.run import RunConfig
from fedsim.config.section import PluginSection
from fedsim.config.timing import smaller_is_better
from fedsim.config.world import WorldConfig
from fedsim.engine.selector import Need

_LEAVE, _ADAPT = "dropout.leave", "adapt_steps"
Lacks = dict[str, str]
"""What each key that depends on another one lacks to have an effect; empty if it has an effect."""


def lacks_of(config: RunConfig) -> Lacks:
    """Return what each key lacks that differs from its default and depends on another key."""
    lacks: Lacks = {}
    for name, table in config:
        if isinstance(table, BaseModel):
            lacks |= _of_table(table, f"{name}.")
    for number, adversary in enumerate(config.adversary):
        lacks |= _of_table(adversary, f"adversary.{number}.")
    return lacks | dict(_across(config))


def _of_table(table: BaseModel, path: str) -> Lacks:
    lacks = dict(lacks_in(table, path))
    if isinstance(table, PluginSection | WorldConfig):
        lacks |= {f"{path}{place}": lack for place, lack in table.idle_options()}
    for number, wrapper in enumerate(getattr(table, "wrap", ())):
        lacks |= _of_table(wrapper, f"{path}wrap.{number}.")
    return lacks


def _across(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Yield the keys that depend on a key of another table."""
    yield from _of_dropout(config)
    yield from _of_staleness(config)
    yield from _of_stop(config)
    yield from _of_memory(config)
    jitter = config.cost.jitter
    if jitter.law != "lognormal":
        spread = jitter.downlink or jitter.compute or jitter.uplink
        yield "cost.jitter.law", "" if spread else "without a spread; give downlink, compute or uplink"
    if config.train.loss_samples != "all":
        lacks = "where neither the rule nor the selector asks clients for losses before training"
        yield "train.loss_samples", "" if _asks_for_losses(config) else lacks
    client = config.client.name
    if not config.evaluate.personal:
        lacks = f"with the client method {client!r}, which has no personal models"
        yield "evaluate.personal", "" if _method(config).personal else lacks
    if config.train.epochs != 1:
        method = _method(config)
        one_step = method.most_steps == 1 and method.passes(config.train.epochs) == method.passes(1)
        lacks = f"with the client method {client!r} and these options, which take one step a job"
        yield "train.epochs", lacks if one_step else ""
    yield from _of_adaptation(config)


def _of_adaptation(config: RunConfig) -> Iterator[tuple[str, str]]:
    client, steps = config.client, config.client.options.get(_ADAPT)
    if steps is None or steps == plugins.resolved("client", client.name, {}, client.supplied).get(_ADAPT):
        return
    lacks = "" if config.evaluate.personal else "with evaluate.personal = false"
    yield f"client.{_ADAPT}", lacks if config.task.unseen else "without unseen clients; give task.unseen"


def _of_dropout(config: RunConfig) -> Iterator[tuple[str, str]]:
    pacing, dropout = config.pacing.pacing(), config.dropout
    if dropout.leave == "bernoulli":
        nothing = 'with dropout.chance = 0; give a chance, or set leave = "ignore" to lose nothing'
        yield _LEAVE, nothing if not dropout.chance else ""
    if dropout.partial:
        one = (
            "with one epoch, of which a client cannot do fewer; give train.epochs"
            if _one_epoch(config)
            else ""
        )
        yield "dropout.partial", one if pacing.deadline_us else "without a deadline; give pacing.deadline"
    if dropout.replace:
        filled = 'with pacing.refill = "arrival", which fills each place at once; it needs "step"'
        yield "dropout.replace", filled if pacing.refill == "arrival" else ""


def _of_staleness(config: RunConfig) -> Iterator[tuple[str, str]]:
    newest = 'with pacing.late = "drop", where every update starts from the newest model'
    lacks = newest if config.pacing.pacing().cancels else ""
    if config.pacing.max_staleness is not None:
        yield "pacing.max_staleness", lacks
    if config.algorithm.rows != "start":
        yield "algorithm.rows", lacks


def _one_epoch(config: RunConfig) -> bool:
    return config.train.epochs == 1 and config.cost.completeness.mode == "all"


def _of_stop(config: RunConfig) -> Iterator[tuple[str, str]]:
    stop, evaluate = config.stop, config.evaluate
    never = (
        "where only the first and the last model are evaluated; give evaluate.every_steps or evaluate.every"
    )
    for key in ("target", "patience"):
        if getattr(stop, key) is not None:
            yield f"stop.{key}", "" if evaluate.every_steps or evaluate.every else never
    lacks = "" if stop.stop().metric else "without 'target' or 'patience'"
    if stop.metric != "mean_percent":
        yield "stop.metric", lacks
    if stop.split is not None:
        yield "stop.split", lacks
    if stop.rising == smaller_is_better(stop.metric):
        yield "stop.rising", lacks


def _of_memory(config: RunConfig) -> Iterator[tuple[str, str]]:
    if not (config.algorithm.memory or config.memory.slots):
        return
    remembers = config.algorithm.rule(config.train.lr).needs.memory > 0
    lacks = f"with the rule {config.algorithm.name!r}, which remembers no absent clients"
    if config.algorithm.memory:
        yield "algorithm.memory", "" if remembers else lacks
    if config.memory.slots:
        keeps = remembers or "updates" in _selector_needs(config)
        yield "memory.slots", "" if keeps else f"{lacks}, and a selector that reads no updates"


def _asks_for_losses(config: RunConfig) -> bool:
    needs = config.algorithm.rule(config.train.lr).needs
    if needs.search or "asked" in _selector_needs(config):
        return True
    return needs.losses and not _method(config).reports_loss


def _method(config: RunConfig) -> Any:
    return plugins.build("client", config.client.name, config.client.working_options())


def _selector_needs(config: RunConfig) -> frozenset[Need]:
    needs: frozenset[Need] = plugins.build(
        "selector", config.selection.name, config.selection.working_options()
    ).needs
    return needs


def refusals(lacks: Lacks) -> list[str]:
    """Return a message for each key without effect."""
    return [refusal(key, lack) for key, lack in lacks.items() if lack]


def refuse_idle(config: RunConfig) -> None:
    """Raise ConfigError for keys without effect in a run that was not read from a file with several arms."""
    if lines := refusals(lacks_of(config)):
        raise ConfigError("\n".join(f"{config.name}: {line}" for line in lines))


def settled(
    raws: Sequence[Mapping[str, Any]],
    sources: Sequence[str],
    before: Callable[[], Sequence[RunConfig]] = lambda: (),
) -> list[RunConfig | ConfigError]:
    """Check the configurations of one file, which `sources` name in messages; return each, or its error.

    A key without effect is an error, unless it has an effect in another configuration of the file or in those
    `before`; then it is left out.
    """
    checked = [_or_error(raw, source) for raw, source in zip(raws, sources, strict=True)]
    lacks = [lacks_of(config) if not isinstance(config, ConfigError) else {} for config in checked]
    if not any(map(refusals, lacks)):
        return checked
    useful = {key for keys in (*lacks, *map(lacks_of, before())) for key, lack in keys.items() if not lack}
    for i, keys in enumerate(lacks):
        idle = {key for key, lack in keys.items() if lack}
        if lines := refusals({key: lack for key, lack in keys.items() if key not in useful}):
            checked[i] = ConfigError("\n".join(f"{sources[i]}: {line}" for line in lines))
        elif idle:
            checked[i] = validated(RunConfig, without_idle(raws[i], idle), sources[i])
    return checked


def _or_error(raw: Mapping[str, Any], source: str) -> RunConfig | ConfigError:
    try:
        return validated(RunConfig, raw, source)
    except ConfigError as error:
        return error


def without_idle(raw: Mapping[str, Any], idle: set[str]) -> dict[str, Any]:
    """Return an equivalent configuration without the keys `idle`, which have no effect."""
    reduced = without(raw, idle - {_LEAVE})
    dropout = reduced.get("dropout")
    if _LEAVE in idle and isinstance(dropout, dict) and dropout.get("leave") == "bernoulli":
        dropout["leave"] = "ignore"
    return reduced
